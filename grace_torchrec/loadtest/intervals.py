"""Intervals: what rounds say of the median of a ratio, whatever its distribution.

Flow: a ratio of each round -> *median_interval* -> result, text.
Source: order statistics (the sign test turned around).  Of R rounds, the interval from the k-th smallest to
the k-th largest misses the median where fewer than k rounds are on one side of it, with probability
2 * P(Binomial(R, 1/2) < k), exactly.  Up to five rounds even the smallest and the largest miss it in more than
5 % of the cases (two rounds: in every second one), so there is no interval of 95 %.  A bootstrap of so few
rounds knows nothing more: it returns the same two numbers.  Rounds are taken as independent.
Shapes: R rounds.
"""

import math

import numpy as np
import numpy.typing as npt

MISSES = 0.05  # of the intervals, at most
LEAST_ROUNDS = 6  # 2 / 2**6 is the first below MISSES


def median_interval(values_R: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the narrowest interval that holds the median in 95 % of the cases; None: too few rounds.

    Args:
        values_R: A number of each round.

    >>> median_interval(np.arange(10.0)), median_interval(np.arange(5.0))
    ((1.0, 8.0), None)
    """
    rounds = values_R.size
    if not np.isfinite(values_R).all():
        return None
    cut, below = 0, 1
    while 2 * below <= MISSES * 2**rounds and 2 * cut < rounds:
        cut += 1
        below += math.comb(rounds, cut)
    if not cut:
        return None
    ordered = np.sort(values_R)
    return float(ordered[cut - 1]), float(ordered[rounds - cut])
