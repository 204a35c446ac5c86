"""Numba core of the subset choice: which subsets of which clusters are worth a row.

Flow: called by ``subset_clusters``.  A *mask* has one bit for each slot of its cluster; the
masks of a cluster of k items own 2**k entries of a common table (``starts_C1``).  Stored subsets
split a mask into the fewest rows; the cost table holds that number and falls as subsets are
added.
Shapes: C clusters, C1 = C + 1, E entries of all tables, R stored subsets.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_torchrec.grouping._heap_core import pop, push, replace_top

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@jit
def count_masks(offsets_B1: Int64s, ids_L: Int32s, code_N: Int64s, num_entries: int) -> Int32s:
    """Count the masks that the bags leave of each cluster.

    Args:
        offsets_B1: Start of each bag.
        ids_L: Ids without repeats inside a bag.
        code_N: ``start * 8 + slot`` of each item, -1 where it is in no cluster.
        num_entries: Entries E.

    Returns:
        int32 ``[E]``; masks of one item are counted too.
    """
    counts = np.zeros(num_entries, np.int32)
    masks = np.zeros(num_entries // 4 + 1, np.uint8)  # starts are multiples of 4
    touched = np.empty(num_entries // 4 + 1, np.int64)
    for bag in range(offsets_B1.size - 1):
        num_touched = 0
        for at in range(offsets_B1[bag], offsets_B1[bag + 1]):
            code = code_N[ids_L[at]]
            if code < 0:
                continue
            start = code >> 3
            if masks[start >> 2] == 0:
                touched[num_touched] = start
                num_touched += 1
            masks[start >> 2] |= 1 << (code & 7)
        for at in range(num_touched):
            start = touched[at]
            counts[start + masks[start >> 2]] += 1
            masks[start >> 2] = 0
    return counts


@jit
def choose(starts_C1: Int64s, counts_E: Int32s, budget: int, least: int) -> Int64s:
    """Choose subsets greedily by the reads they save, over all clusters together.

    Args:
        starts_C1: Start of each cluster's entries.
        counts_E: Counts of :func:`count_masks`.
        budget: Most subsets R.
        least: Fewest reads that a stored subset must save.

    Returns:
        Entries ``start + mask`` of the chosen subsets, the most useful first.
    """
    num_clusters = starts_C1.size - 1
    costs = np.empty(counts_E.size, np.uint8)
    for cluster in range(num_clusters):
        costs[starts_C1[cluster]] = 0
        for mask in range(1, starts_C1[cluster + 1] - starts_C1[cluster]):
            costs[starts_C1[cluster] + mask] = costs[starts_C1[cluster] + (mask & (mask - 1))] + 1
    gains, best_C = np.zeros(256, np.int64), np.zeros(num_clusters, np.int64)
    keys, order = np.empty(num_clusters + 1, np.float64), np.empty(num_clusters + 1, np.int64)
    heap = 0
    for cluster in range(num_clusters):
        table = slice(starts_C1[cluster], starts_C1[cluster + 1])
        best_C[cluster], gain = _best_subset(counts_E[table], costs[table], gains)
        if gain >= least:
            heap = push(keys, order, heap, np.float64(gain), cluster)
    chosen, num_chosen = np.empty(budget, np.int64), 0
    while heap > 0 and num_chosen < budget:
        cluster = order[0]
        table = slice(starts_C1[cluster], starts_C1[cluster + 1])
        chosen[num_chosen] = starts_C1[cluster] + best_C[cluster]
        num_chosen += 1
        _store(costs[table], best_C[cluster])
        best_C[cluster], gain = _best_subset(counts_E[table], costs[table], gains)
        if gain >= least:
            replace_top(keys, order, heap, np.float64(gain), cluster)
        else:
            heap = pop(keys, order, heap)
    return chosen[:num_chosen]


@jit
def _store(costs: Bytes, subset: int) -> None:
    """Let the costs of one cluster use a subset."""
    others = (costs.size - 1) & ~subset
    rest = others
    while True:
        costs[rest | subset] = min(costs[rest | subset], costs[rest] + 1)
        if rest == 0:
            break
        rest = (rest - 1) & others


@jit
def _best_subset(counts: Int32s, costs: Bytes, gains: Int64s) -> tuple[int, int]:
    """Return the subset of two or more items that would save most, and how much."""
    for mask in range(counts.size):
        count, cost = counts[mask], np.int64(costs[mask])
        if count == 0 or cost <= 1:
            continue
        subset = mask
        while subset > 0:
            more = cost - 1 - np.int64(costs[mask ^ subset])
            if more > 0:
                gains[subset] += more * count
            subset = (subset - 1) & mask
    best, gain = 0, 0
    for subset in range(counts.size):
        if gains[subset] > gain and subset & (subset - 1) != 0:
            best, gain = subset, gains[subset]
        gains[subset] = 0
    return best, gain
