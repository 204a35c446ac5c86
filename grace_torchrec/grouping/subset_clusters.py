"""Subset clusters: large disjoint clusters that store only their most useful subsets.

Flow: trace -> ranked bags, best partners -> clusters -> *StoredSums* with a SubsetCode.
Derived from GRACE: its clusters pay 2**k - 1 - k rows for k items, most of them never read. Here
clusters of up to 8 items are merged for what they share per pair of items, and then the subsets
that save most are stored, whatever cluster they are of.
Shapes: N items, C clusters, C1 = C + 1, M members, R stored subsets.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.grouping import _cluster_merge_core, _subset_core
from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.partners import (
    LEAST_SUPPORT,
    Partners,
    RankedBags,
    best_partners,
    ranked_bags,
)
from grace_torchrec.sums.clusters import MAX_CLUSTER
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

FEWEST_PARTNERS, MOST_PARTNERS = 32, 512
PAIRS_KEPT = 3 << 19  # dense tables of few items keep more partners each: they are cheap there


@dataclass(frozen=True, eq=False)
class RankedSubsets:
    """Clusters, and their subsets in order of value: one choice serves every smaller budget.

    Attributes:
        num_items: Rows N of the table.
        cluster_offsets_C1: int64 ``[C + 1]``.
        members_M: int64 item ids.
        entries_R: int64, ``start + mask`` of each subset, the most useful first.
    """

    num_items: int
    cluster_offsets_C1: npt.NDArray[np.int64]
    members_M: npt.NDArray[np.int64]
    entries_R: npt.NDArray[np.int64]

    def first(self, budget: int) -> StoredSums:
        """Return the sums for a budget: the most useful subsets.

        Items that stand in none of them leave their cluster, and clusters without one are left
        out: tables are as large as what they are needed for.
        """
        sizes_C = np.diff(self.cluster_offsets_C1)
        starts_C1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(1 << sizes_C)])
        chosen = self.entries_R[:budget]
        cluster_R = np.searchsorted(starts_C1, chosen, side="right") - 1
        masks_R = chosen - starts_C1[cluster_R]
        used_C = np.zeros(sizes_C.size, np.int64)
        np.bitwise_or.at(used_C, cluster_R, masks_R)
        used_bits = (used_C[:, None] >> np.arange(MAX_CLUSTER)) & 1
        cluster, slot = np.nonzero(used_bits)
        members = self.members_M[self.cluster_offsets_C1[cluster] + slot]
        kept_C = np.flatnonzero(used_C)
        kept_sizes = used_bits[kept_C].sum(axis=1)
        kept_starts = np.zeros(sizes_C.size, np.int64)
        kept_starts[kept_C] = np.cumsum(1 << kept_sizes) - (1 << kept_sizes)
        new_slots = np.cumsum(used_bits, axis=1) - 1  # of the items that stay
        bits = (masks_R[:, None] >> np.arange(MAX_CLUSTER)) & 1
        new_masks = (bits << np.maximum(new_slots[cluster_R], 0)).sum(axis=1)
        return StoredSums.from_subsets(
            self.num_items,
            np.concatenate([np.zeros(1, np.int64), np.cumsum(kept_sizes)]),
            members,
            kept_starts[cluster_R] + new_masks,
        )


def fit(trace: Trace, budget: int, seed: int = 0) -> StoredSums:
    """Choose clusters and subsets for ``trace``.

    Args:
        trace: The train bags.
        budget: Most sums to store, 0 or more.
        seed: Taken by every method; this one draws nothing.

    Returns:
        At most ``budget`` sums, in the order of the code (cluster by cluster): for smaller
        budgets see :func:`rank_subsets`.

    Raises:
        GraceError: the budget is below 0.

    >>> fit(Trace.from_bags([[0, 1, 2], [0, 1], [2, 3], [1, 0]]), 4).set_items_S.tolist()
    [0, 1]
    """
    check_budget(budget)
    bags = ranked_bags(trace)
    partners = best_partners(bags, cluster_partners(bags.num_items))
    return rank_subsets(bags, partners, budget).first(budget)


def cluster_partners(num_items: int) -> int:
    """Return how many partners of each item are first candidates.

    >>> cluster_partners(3_706), cluster_partners(1_000_000)
    (424, 32)
    """
    return min(max(PAIRS_KEPT // max(num_items, 1), FEWEST_PARTNERS), MOST_PARTNERS)


def rank_subsets(bags: RankedBags, partners: Partners, budget: int) -> RankedSubsets:
    """Merge clusters on counted bags and rank up to ``budget`` subsets."""
    cluster_N = _cluster_merge_core.merge(
        bags.offsets_B1,
        bags.ranks_L,
        bags.indptr_N1,
        bags.bags_L,
        partners.partners_NK,
        partners.counts_NK,
        MAX_CLUSTER,
        LEAST_SUPPORT,
        partners.partners_NK.shape[1],
    )
    offsets_C1, ranks_M = _list_clusters(cluster_N)
    sizes_C = np.diff(offsets_C1)
    starts_C1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(1 << sizes_C)])
    slots_M = np.arange(ranks_M.size) - np.repeat(offsets_C1[:-1], sizes_C)
    code_N = np.full(bags.num_items, -1, np.int64)
    code_N[ranks_M] = np.repeat(starts_C1[:-1], sizes_C) * 8 + slots_M
    counts_E = _subset_core.count_masks(bags.offsets_B1, bags.ranks_L, code_N, int(starts_C1[-1]))
    most = min(budget, int(starts_C1[-1]))
    entries = _subset_core.choose(starts_C1, counts_E, most, LEAST_SUPPORT)
    return RankedSubsets(bags.num_items, offsets_C1, bags.item_of_rank_N[ranks_M], entries)


def _list_clusters(
    cluster_N: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List clusters of two or more, in order of their most frequent item, items by rank.

    Returns:
        (offsets ``[C + 1]``, ranks ``[M]``).
    """
    _, first, which, sizes = np.unique(
        cluster_N, return_index=True, return_inverse=True, return_counts=True
    )
    members = np.flatnonzero(sizes[which] > 1)
    ranks_M = members[np.argsort(first[which[members]], kind="stable")]
    clusters = np.flatnonzero(sizes > 1)
    sizes_C = sizes[clusters[np.argsort(first[clusters])]]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes_C)]), ranks_M
