"""Guess: the best method and the cut to expect, from three properties of a trace, in a moment.

Flow: trace -> *Properties* -> *Guess*, for a first look; ``choose`` fits and judges instead.
Source: GRACE, ASPLOS'23, sets its parameters by a small decision tree over three properties of a
data set.  The tree is not public.  Derived, ours: the properties, and a logistic regression on them
for the cut of each method, fitted on measured cuts (``python -m bench guess``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.choose import LEAST_GAIN, NONE, Allow
from grace_torchrec.grouping.partners import RankedBags, ranked_bags
from grace_torchrec.traces.trace import Trace

MOST_CUT = 0.5  # of pairs; sets of more items pass it on no trace that was measured
DRAWN_PAIRS = 4000
LEAST_SHARE = 0.5 / DRAWN_PAIRS  # of pairs that recur, where none of those drawn did
# method -> the factor of each entry of ``features``
COEFFICIENTS: Mapping[str, tuple[float, ...]] = {
    "grace": (-1.0731, -0.052, -0.3984, 4.0727, 0.8466, 0.2866),
    "grace_floor": (-0.171, -0.1842, -0.4039, 3.838, 0.9587, 0.295),
    "subsets": (-0.1271, -0.2728, -0.4101, 4.5663, 0.9477, 0.2315),
    "set_merge": (0.686, -0.3058, -0.3962, 3.9756, 1.0723, 0.3092),
}
METHODS: Mapping[Allow, tuple[str, ...]] = {
    "in_line": ("grace", "grace_floor", "subsets"),
    "ahead": ("grace", "grace_floor", "subsets", "set_merge"),
}


@dataclass(frozen=True)
class Properties:
    """What decides how much sums can save.

    Attributes:
        pooling_factor: Ids per bag.
        requests_per_item: Ids per item that is requested at all.
        recurrence: Share of the pairs of a bag that meet in another bag too, 0..1.
    """

    pooling_factor: float
    requests_per_item: float
    recurrence: float


@dataclass(frozen=True)
class Guess:
    """What a table would probably gain.

    Attributes:
        method: ``none`` where less than the least gain is expected.
        cut: Expected cut of that method on held-out bags, 0 for ``none``.
        cuts: Method -> expected cut.
    """

    method: str
    cut: float
    cuts: Mapping[str, float]


def measure_properties(trace: Trace, seed: int = 0) -> Properties:
    """Measure the three properties; pairs are drawn, bag by bag in proportion to their pairs.

    Args:
        trace: The train bags.
        seed: Of the pairs that are drawn.

    >>> measure_properties(Trace.from_bags([[0, 1], [1, 0], [2]])).recurrence
    1.0
    """
    bags = ranked_bags(trace)
    requested = int(np.count_nonzero(np.diff(bags.indptr_N1)))
    return Properties(
        trace.pooling_factor, trace.num_ids / max(requested, 1), _recurrence(bags, seed)
    )


def guess(properties: Properties, budget_share: float, allow: Allow = "in_line") -> Guess:
    """Guess the best method for a budget.

    Args:
        properties: See :func:`measure_properties`.
        budget_share: Sums over rows of the table; fitted on 1/4 to 1, beyond it is extrapolated.
        allow: See ``choose.fit_auto``.

    Raises:
        GraceError: the budget is below 0, or no number.
    """
    if not 0 <= budget_share < math.inf:
        raise GraceError(f"guess: budget_share {budget_share}, give a number of 0 or more")
    if not budget_share or not properties.recurrence:
        return Guess(NONE, 0.0, dict.fromkeys(METHODS[allow], 0.0))
    known = features(properties, budget_share)
    cuts = {
        method: MOST_CUT * _logistic(float(np.dot(COEFFICIENTS[method], known)))
        for method in METHODS[allow]
    }
    best = max(cuts, key=lambda method: cuts[method])
    if cuts[best] < LEAST_GAIN:
        return Guess(NONE, 0.0, cuts)
    return Guess(best, cuts[best], cuts)


def features(properties: Properties, budget_share: float) -> tuple[float, ...]:
    """Return what the logit of a cut is a sum of, each times its coefficient."""
    recurrence = max(properties.recurrence, LEAST_SHARE)
    return (
        1.0,
        math.log(properties.pooling_factor),
        math.log(properties.requests_per_item),
        recurrence,
        math.log(recurrence),
        math.log2(budget_share),
    )


def _recurrence(bags: RankedBags, seed: int) -> float:
    """Return the share of drawn pairs that meet in two or more bags."""
    lengths = np.diff(bags.offsets_B1).astype(np.float64)
    weights = lengths * (lengths - 1)
    if not weights.sum():
        return 0.0
    rng = np.random.default_rng(seed)
    bag_P = rng.choice(lengths.size, DRAWN_PAIRS, p=weights / weights.sum())
    one = rng.integers(0, lengths[bag_P].astype(np.int64))
    other = rng.integers(0, lengths[bag_P].astype(np.int64) - 1)
    other += other >= one
    starts = bags.offsets_B1[bag_P]
    pairs = zip(bags.ranks_L[starts + one], bags.ranks_L[starts + other], strict=True)
    return sum(_meet_again(bags, int(a), int(b)) for a, b in pairs) / DRAWN_PAIRS


def _meet_again(bags: RankedBags, one: int, other: int) -> bool:
    """Tell whether two items stand together in two or more bags."""
    first, last = bags.indptr_N1[:-1], bags.indptr_N1[1:]
    together = np.intersect1d(
        bags.bags_L[first[one] : last[one]],
        bags.bags_L[first[other] : last[other]],
        assume_unique=True,
    )
    return together.size > 1


def _logistic(value: float) -> float:
    """Return the logistic function, from 0 to 1."""
    return 1.0 / (1.0 + math.exp(-value)) if value > -700 else 0.0
