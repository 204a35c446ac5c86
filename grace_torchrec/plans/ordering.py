"""Ordering: stored sums in the order in which they go to HBM.

Flow: sums + what each is worth -> *sums in falling order of worth* -> placement, which puts a prefix
of them into HBM, so that an address stays one comparison.  Sums of a cluster have their addresses
by arithmetic and stay together; sums of a set code go one by one.
Shapes: N items, R sums, C clusters, C1 = C + 1, M members.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels.reference import SLOT_BITS
from grace_torchrec.sums.clusters import ClusterCode, list_members
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def groups_of(sums: StoredSums) -> Ints:
    """Return the group of each sum, int64 ``[R]``, rising: sums of a group stay together."""
    if isinstance(sums.code, SetCode):
        return np.arange(sums.num_sums)
    starts_C = _starts(sums.code)
    if isinstance(sums.code, ClusterCode):
        return np.searchsorted(starts_C, np.arange(sums.num_sums), side="right") - 1
    return np.searchsorted(starts_C, sums.code.entries(), side="right") - 1


def worth_together(worth_R: Floats, group_R: Ints) -> Floats:
    """Return the mean worth of the sums of each sum's group.

    >>> worth_together(np.array([4.0, 0.0, 1.0]), np.array([0, 0, 1])).tolist()
    [2.0, 2.0, 1.0]
    """
    if not worth_R.size:
        return worth_R
    rows = np.bincount(group_R)
    return (np.bincount(group_R, worth_R) / np.maximum(rows, 1))[group_R]


def in_order_of(sums: StoredSums, worth_R: Floats) -> StoredSums:
    """Return the same sums, those worth most first; groups stay together.

    A set code may then read equal bags in other rows: ties between sets go to the lower row.

    Args:
        sums: Any sums.
        worth_R: What each is worth; the mean of a group counts.
    """
    if not sums.num_sums:
        return sums
    together_R = worth_together(worth_R, groups_of(sums))
    if isinstance(sums.code, SetCode):
        return _sets_in_order(sums, sums.code, np.argsort(-together_R, kind="stable"))
    offsets_C1, members_M = list_members(sums.code.item_code_N)
    worth_C = np.zeros(offsets_C1.size - 1)
    worth_C[groups_of(sums)] = together_R  # a cluster without stored subsets stays at 0
    order_C = np.argsort(-worth_C, kind="stable")
    sizes_C = np.diff(offsets_C1)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes_C[order_C])])
    source = np.repeat(offsets_C1[:-1][order_C] - offsets[:-1], sizes_C[order_C])
    members = members_M[source + np.arange(members_M.size)]
    if isinstance(sums.code, ClusterCode):
        return StoredSums.from_clusters(sums.num_items, offsets, members)
    tables_C = 1 << sizes_C
    new_starts = np.empty(tables_C.size, np.int64)
    new_starts[order_C] = np.cumsum(tables_C[order_C]) - tables_C[order_C]
    entries_R, group_R = sums.code.entries(), groups_of(sums)
    moved = entries_R - _starts(sums.code)[group_R] + new_starts[group_R]
    return StoredSums.from_subsets(sums.num_items, offsets, members, moved)


def one_by_one(sums: StoredSums, counts_N: Ints) -> StoredSums:
    """Return the same sums with a set code: each goes to HBM or stays by itself.

    Args:
        sums: Any sums.
        counts_N: How often each item is requested.
    """
    return StoredSums.from_sets(sums.num_items, sums.set_indptr_R1, sums.set_items_S, counts_N)


def _sets_in_order(sums: StoredSums, code: SetCode, order_R: Ints) -> StoredSums:
    """Give the sets of a set code other rows; where they hang stays."""
    sizes_R = np.diff(sums.set_indptr_R1)[order_R]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes_R)])
    source = np.repeat(sums.set_indptr_R1[:-1][order_R] - indptr[:-1], sizes_R)
    row_R = np.empty(order_R.size, np.int32)
    row_R[order_R] = np.arange(order_R.size, dtype=np.int32)
    moved = SetCode(
        code.home_indptr_N1, row_R[code.set_row_R], code.others_indptr_R1, code.others_S
    )
    items = sums.set_items_S[source + np.arange(sums.set_items_S.size)]
    return StoredSums(sums.num_items, indptr, items, moved)


def _starts(code: ClusterCode | SubsetCode) -> Ints:
    """Return where each cluster's rows (or entries) start, rising."""
    item_code_N = code.item_code_N
    return np.unique(item_code_N[item_code_N >= 0] >> SLOT_BITS).astype(np.int64)
