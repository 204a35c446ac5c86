"""GRACE with one price: clusters grow while a row of theirs saves at least the floor.

Flow: trace -> pair counts -> *StoredSums* of disjoint clusters.  Derived: the paper's tolerance
compares a cluster with itself, so the budget goes to large clusters of the busiest items; a floor
on the marginal value per row is the same price everywhere and leaves rows for the others. The
floor is chosen on validation bags, coarsely first, then around the best.
Shapes as in ``paper_greedy``.
"""

from collections.abc import Callable

from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT, PairCounts, count_pairs
from grace_torchrec.grouping.paper_greedy import GrowthRule, grow_clusters
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

COARSE_FLOORS = tuple(4.0**power for power in range(-1, 5))
FINER_STEPS = (2.0, 2**0.5)  # times and divided by, around the best so far
DEFAULT_FLOOR = 2.0


def fit(
    trace: Trace,
    budget: int,
    seed: int = 0,
    *,
    floor: float = DEFAULT_FLOOR,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
) -> StoredSums:
    """Choose clusters for ``trace`` whose every growth saves ``floor`` reads a row.

    Args:
        trace: The train bags.
        budget: Most sums to store, 0 or more.
        seed: Taken by every method; this one draws nothing.
        floor: Least reads that a row must save over all bags of ``trace``.
        memory_limit_bytes: Most memory the pair counts may take.

    Raises:
        GraceError: an argument is outside its range, or the pair counts pass the limit.
    """
    check_budget(budget)
    return grow_to_floor(count_pairs(trace, memory_limit_bytes), budget, floor)


def grow_to_floor(pairs: PairCounts, budget: int, floor: float) -> StoredSums:
    """Grow clusters on counted pairs; see :func:`fit`."""
    return grow_clusters(pairs, budget, GrowthRule(tolerance=floor, policy="floor"))


def floor_cuts(cut_of: Callable[[float], float]) -> dict[float, float]:
    """Return the cut of every floor that was tried: a coarse grid, then ever closer to the best.

    Args:
        cut_of: Floor -> cut on validation bags.
    """
    cuts = {floor: cut_of(floor) for floor in COARSE_FLOORS}
    for step in FINER_STEPS:
        best = best_floor(cuts)
        cuts |= {floor: cut_of(floor) for floor in (best / step, best * step)}
    return cuts


def best_floor(cuts: dict[float, float]) -> float:
    """Return the floor of the greatest cut; ties go to the higher floor, which stores less.

    >>> best_floor({1.0: .3, 2.0: .3, 4.0: .2})
    2.0
    """
    return max(cuts, key=lambda floor: (cuts[floor], floor))
