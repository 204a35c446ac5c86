"""Intervals: they hold the median as often as they say, and there is none where no one could."""

import numpy as np
import pytest

from grace_torchrec.loadtest.intervals import LEAST_ROUNDS, median_interval


@pytest.mark.parametrize("rounds", [6, 7, 10, 21])
def test_the_interval_holds_the_median_in_95_percent_of_the_cases(rounds: int) -> None:
    draw = np.random.default_rng(rounds).exponential(size=(2000, rounds))  # lopsided; median log 2
    found = [median_interval(values) for values in draw]
    held = np.mean([one is not None and one[0] <= np.log(2) <= one[1] for one in found])
    assert held >= 0.94  # 0.95 less the chance of 2000 draws


def test_fewer_rounds_have_no_interval_and_neither_have_rounds_without_answers() -> None:
    for rounds in range(LEAST_ROUNDS):
        assert median_interval(np.arange(float(rounds))) is None
    assert median_interval(np.arange(float(LEAST_ROUNDS))) == (0.0, LEAST_ROUNDS - 1.0)
    assert median_interval(np.array([1.0] * 9 + [np.nan])) is None
