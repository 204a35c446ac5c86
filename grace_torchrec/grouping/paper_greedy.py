"""Paper greedy: clusters grown on the pair-count graph, the grouping method of GRACE.

Flow: trace -> pair counts -> *StoredSums* of disjoint clusters.  Source: GRACE, ASPLOS'23: sort
items by degree, take the busiest free one as anchor, admit the neighbour that adds the most
value per stored row, value = interpolated bounds, stop by a tolerance and a size limit.

Derived, because the paper's text leaves it open:
* degree is the weighted degree (on the paper's walk-through both name the same anchor);
* the bounds (see ``bounds``); the upper one is not capped by the item's own frequency;
* ties go to the lower id;
* what the tolerance compares (``Policy``), with the default that reaches the cheapest optimal
  groups of the walk-through. The patent application (US-20250298744-A1) words it "within a
  tolerance of the benefit of the candidate most recently added". Read with the text's "divides
  by the cache lines the cluster would consume", the benefit of a candidate is the value per row
  of the cluster it makes, which is ``enlarged``; read as what it adds, it is ``last_added``.
Shapes: N items, C clusters, C1 = C + 1, M members.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import _greedy_core
from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT, PairCounts, count_pairs
from grace_torchrec.sums.clusters import MAX_CLUSTER
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

Policy = Literal["enlarged", "marginal", "last_added", "first_edge", "floor"]
POLICIES: dict[Policy, int] = {
    "enlarged": _greedy_core.ENLARGED,
    "marginal": _greedy_core.MARGINAL,
    "last_added": _greedy_core.LAST_ADDED,
    "first_edge": _greedy_core.FIRST_EDGE,
    "floor": _greedy_core.FLOOR,
}
SIZE_LIMITS = range(3, MAX_CLUSTER + 1)


@dataclass(frozen=True)
class GrowthRule:
    """How far clusters grow; every policy compares values per stored row and is derived.

    Attributes:
        size_limit: Most items of a cluster, 2..8.
        tolerance: Threshold of ``policy``, 0 or more.
        interpolation: Where between its bounds a value is taken, 0 (lower) .. 1 (upper).
        policy: A candidate is admitted while

            * ``enlarged``: the cluster with it >= tolerance * the cluster without it;
            * ``marginal``: what it adds >= tolerance * the cluster without it;
            * ``last_added``: what it adds >= tolerance * what the newest member added;
            * ``first_edge``: what it adds >= tolerance * what the first pair gave;
            * ``floor``: what it adds >= tolerance, in reads per row: one price everywhere.

    Raises:
        GraceError: a value is outside its range.
    """

    size_limit: int = MAX_CLUSTER
    tolerance: float = 0.4
    interpolation: float = 0.5
    policy: Policy = "enlarged"

    def __post_init__(self) -> None:
        """Check the ranges once."""
        if not 2 <= self.size_limit <= MAX_CLUSTER:
            raise GraceError(f"grouping: size_limit {self.size_limit}, give 2..{MAX_CLUSTER}")
        if not 0 <= self.tolerance < float("inf"):
            raise GraceError(f"grouping: tolerance {self.tolerance}, give a number of 0 or more")
        if not 0 <= self.interpolation <= 1:
            raise GraceError(f"grouping: interpolation {self.interpolation}, give 0..1")
        if self.policy not in POLICIES:
            raise GraceError(f"grouping: policy {self.policy!r}, give one of {', '.join(POLICIES)}")


def fit(
    trace: Trace,
    budget: int,
    seed: int = 0,
    *,
    size_limit: int = MAX_CLUSTER,
    tolerance: float = 0.4,
    interpolation: float = 0.5,
    policy: Policy = "enlarged",
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
) -> StoredSums:
    """Choose clusters for ``trace`` whose sums fit in ``budget``.

    Args:
        trace: The train bags.
        budget: Most sums to store, 0 or more.
        seed: Taken by every method; this one draws nothing.
        size_limit: See :class:`GrowthRule`, as the next three.
        tolerance: See :class:`GrowthRule`.
        interpolation: See :class:`GrowthRule`.
        policy: See :class:`GrowthRule`.
        memory_limit_bytes: Most memory the pair counts may take.

    Returns:
        At most ``budget`` sums; clusters by falling estimated value per stored row, so the
        first ones are the best for a smaller budget.

    Raises:
        GraceError: an argument is outside its range, or the pair counts pass the limit.
    """
    rule = GrowthRule(size_limit, tolerance, interpolation, policy)
    check_budget(budget)
    return grow_clusters(count_pairs(trace, memory_limit_bytes), budget, rule)


def grow_clusters(pairs: PairCounts, budget: int, rule: GrowthRule) -> StoredSums:
    """Grow clusters on counted pairs; see :func:`fit` for the result."""
    anchors_N = np.argsort(-pairs.weighted_degrees(), kind="stable")
    offsets_C1, members_M, values_C = _greedy_core.grow(
        pairs.indptr_N1,
        pairs.partners_E,
        pairs.counts_E,
        anchors_N,
        budget,
        rule.size_limit,
        rule.interpolation,
        rule.tolerance,
        POLICIES[rule.policy],
    )
    sizes_C = np.diff(offsets_C1)
    order_C = np.argsort(-values_C / ((1 << sizes_C) - 1 - sizes_C), kind="stable")
    ordered_C1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes_C[order_C])])
    source_M = np.repeat(offsets_C1[order_C] - ordered_C1[:-1], sizes_C[order_C])
    members = members_M[source_M + np.arange(members_M.size)]
    return StoredSums.from_clusters(pairs.num_items, ordered_C1, members)
