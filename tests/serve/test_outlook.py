"""The outlook expects of a batch what batches took that were computed."""

from types import SimpleNamespace

import pytest

from grace_torchrec.serve import outlook as module
from grace_torchrec.serve.outlook import Outlook


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=found.perf_counter))
    return found


def batch(outlook: Outlook, clock: Clock, rows: int, seconds: float, computed: bool = True) -> None:
    began_s = outlook.begin(0, rows)
    clock.now_s += seconds
    outlook.end(0, rows, began_s, computed=computed)


def test_a_batch_takes_as_long_as_batches_of_its_rows_did(clock) -> None:
    outlook = Outlook(1)
    for rows in (1, 2, 3):
        batch(outlook, clock, rows, 0.1 + 0.2 * rows)
    outlook.begin(0, 10)
    assert outlook.expected_start_s(0, 8) == pytest.approx(0.1 + 0.2 * 10)
    clock.now_s += 0.6
    assert outlook.expected_start_s(0, 8) == pytest.approx(1.5)
    # what waits fills one batch and three rows, which take a new request along
    assert outlook.expected_start_s(11, 8) == pytest.approx(1.5 + (0.1 + 1.6) + (0.1 + 0.6))


def test_a_batch_that_fails_teaches_nothing(clock) -> None:
    outlook = Outlook(1)
    batch(outlook, clock, 4, 1.0)
    error_us = outlook.mean_error_us
    for _ in range(50):
        batch(outlook, clock, 4, 1e-4, computed=False)
    assert (outlook.busy, outlook.mean_error_us) == (0, error_us)
    assert outlook.expected_start_s(0, 8) == 0
    outlook.begin(0, 4)
    assert outlook.expected_start_s(0, 8) == pytest.approx(1.0)
