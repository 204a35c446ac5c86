"""What the measured ratio says in words."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from grace_torchrec.demo.result import DemoResult, Measured, TableResult
from grace_torchrec.views.demo import demo_view


def result(ratio, low, high):
    table = TableResult("m.t", "use", "r", "use", 100, 60, 10, 5120, 1e-6, 1e-7)
    measured = Measured(
        "cpu", "fused", 128, 512, 10.0, 10.0 / ratio, ratio, (low, high), 1.0, (1, 1)
    )
    return DemoResult("t", 10, 5, 20.0, (table,), (0.7, 0.6), 0.1, 0.2, measured, "a40", 1.5, "r", "p", True)  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (1.3, 1.2, 1.4, "use: lookups measured 1.30 times faster here"),
        (0.5, 0.4, 0.6, "leave stock here: lookups measured 2.00 times slower on this machine"),
        (1.0, 0.9, 1.1, "no clear difference here: 0.90 to 1.10 times the stock speed"),
    ],
)
def test_the_verdict_follows_the_spread_of_the_ratio(ratio, low, high, words):
    assert result(ratio, low, high).verdict_here == words


def test_times_of_a_busy_machine_are_not_shown():
    found = result(1.3, 1.2, 1.4)
    busy = replace(found, measured=replace(found.measured, busy=True))
    shown, hidden = io.StringIO(), io.StringIO()
    Console(file=shown, width=200).print(demo_view(found))
    Console(file=hidden, width=200).print(demo_view(busy))
    assert "lookups of a batch: stock 10 us" in shown.getvalue()
    assert "too busy to tell" in hidden.getvalue()
    assert " us" not in hidden.getvalue().partition("measured here")[2]


def test_the_cut_is_counted_from_rows_read():
    assert result(1, 1, 1).cut == pytest.approx(0.4)
