"""The same sums under a subset code: what reading them costs more, at the same cut by construction.

Flow: sums of a ClusterCode -> *subset_twin* -> the lookup case.  Neighbouring clusters are joined to
clusters of up to eight items, and of each joined cluster exactly the subsets are stored that the
parts stored: no stored subset crosses them, so every bag splits into the rows it read before.
The entries grow with the joined clusters, as those of ``subsets`` do: what is timed has their size.
Shapes: N items, C clusters, M members, E entries.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels.subset_tables import SubsetTables, pack_subsets
from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import MAX_CLUSTER
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode

Int64s = npt.NDArray[np.int64]


def subset_twin(sums: StoredSums) -> tuple[StoredSums, SubsetTables]:
    """Return sums that store the same sets in the same order under a SubsetCode, and its tables.

    Raises:
        GraceError: the sets differ: not timed.
    """
    code = sums.code.item_code_N.astype(np.int64)
    members = np.flatnonzero(code >= 0)
    members = members[np.argsort(code[members])]
    _, sizes_C = np.unique(code[members] >> 3, return_counts=True)
    first_slot_C, is_first_C = _joined(sizes_C)
    ends = np.append(np.flatnonzero(is_first_C), sizes_C.size)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes_C)])[ends]
    joined_sizes = np.diff(offsets)
    starts = np.repeat(np.cumsum(1 << joined_sizes) - (1 << joined_sizes), np.diff(ends))
    entries = [
        start + (_masks(size) << slot)
        for start, size, slot in zip(starts, sizes_C, first_slot_C, strict=True)
    ]
    twin = StoredSums.from_subsets(sums.num_items, offsets, members, np.concatenate(entries))
    same = np.array_equal(twin.set_indptr_R1, sums.set_indptr_R1)
    same = same and _same_sets(twin, sums)
    if not same or not isinstance(twin.code, SubsetCode):
        raise GraceError("lookup: the twin of the subset code stores other sets; not timed")
    return twin, pack_subsets(twin.code.next_E, twin.code.stored_W)


def _joined(sizes_C: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Join neighbours while they fit: the first slot of each cluster, and whether one begins anew."""
    first_slot, is_first = np.zeros(sizes_C.size, np.int64), np.ones(sizes_C.size, np.bool_)
    filled = MAX_CLUSTER
    for cluster, size in enumerate(sizes_C.tolist()):
        if filled + size <= MAX_CLUSTER:
            first_slot[cluster], is_first[cluster] = filled, False
        filled = int(first_slot[cluster]) + size
    return first_slot, is_first


def _masks(size: int) -> Int64s:
    """Return the masks of two or more of ``size`` items, rising."""
    masks = np.arange(1 << size)
    return masks[masks & (masks - 1) != 0]


def _same_sets(one: StoredSums, other: StoredSums) -> bool:
    """Tell whether sets of equal sizes hold the same items, in any order of the items."""
    row = np.repeat(np.arange(one.num_sums), np.diff(one.set_indptr_R1))
    ordered = [s.set_items_S[np.lexsort((s.set_items_S, row))] for s in (one, other)]
    return bool(np.array_equal(*ordered))
