"""Cluster code: every subset of two or more items of a cluster owns one stored row.

Flow: grouping -> *StoredSums with a ClusterCode* -> rewriting.  Source: GRACE, ASPLOS'23 (all
subsets in bit-pattern order, so that an address is arithmetic on the item).  Derived: one
packed integer an item, ``first row of the cluster's block * 8 + slot``, makes the address
``block + mask - 1 - bit_length(mask)`` with a single gather and no size classes.
Shapes: N items, C clusters, M members in all, K cluster size, R stored rows (sums).
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels.reference import SLOT_BITS
from grace_torchrec.errors import GraceError
from grace_torchrec.sums.covering import check_covers

MAX_CLUSTER = 8


@dataclass(frozen=True, eq=False)
class ClusterCode:
    """Which cluster and slot each item has.

    Attributes:
        item_code_N: int32 ``[N]`` (int64 past 2**28 rows): ``block * 8 + slot``, -1 where the
            item is in no cluster. ``block`` is the first stored row of the cluster.
    """

    item_code_N: npt.NDArray[np.int32] | npt.NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """Metadata bytes that serving keeps for this code."""
        return int(self.item_code_N.nbytes)

    @property
    def item_bytes(self) -> int:
        """Bytes of :attr:`num_bytes` that one more item, in no sum, would take."""
        return int(self.item_code_N.itemsize)

    def check(self, num_items: int, num_stored: int) -> None:
        """Refuse a code of another table, or one that names rows past ``num_stored``.

        Raises:
            GraceError: the message names both values.
        """
        if self.item_code_N.shape != (num_items,):
            raise GraceError(
                f"stored sums: the code has {self.item_code_N.shape}, expected {num_items} items"
            )
        last_block = int(self.item_code_N.max(initial=-1)) >> SLOT_BITS
        if last_block < 0:
            return
        members = int((self.item_code_N >> SLOT_BITS == last_block).sum())
        if last_block + num_sums(members) > num_stored:
            raise GraceError(
                f"stored sums: the code names row {last_block + num_sums(members) - 1}, "
                f"there are {num_stored}"
            )

    def first(self, budget: int) -> tuple["ClusterCode", int]:
        """Return the code of the first clusters that fit in ``budget`` rows, and their rows."""
        blocks, members = np.unique(
            self.item_code_N[self.item_code_N >= 0] >> SLOT_BITS, return_counts=True
        )
        ends = blocks.astype(np.int64) + (1 << members) - 1 - members
        kept = int(ends[ends <= budget].max(initial=0))
        inside = (self.item_code_N >= 0) & (self.item_code_N >> SLOT_BITS < kept)
        code_N = np.where(inside, self.item_code_N, -1)
        return ClusterCode(narrow(code_N, kept)), kept

    def listed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the clusters: (offsets ``[C + 1]``, members in slot order)."""
        return list_members(self.item_code_N)


def list_members(
    item_code_N: npt.NDArray[np.int32] | npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read clusters back out of packed codes: (offsets ``[C + 1]``, members in slot order).

    >>> [part.tolist() for part in list_members(np.array([-1, 1, 0, 8], np.int32))]
    [[0, 2, 3], [2, 1, 3]]
    """
    members = np.flatnonzero(item_code_N >= 0)
    members = members[np.argsort(item_code_N[members], kind="stable")]
    slots = item_code_N[members] & ((1 << SLOT_BITS) - 1)
    return np.append(np.flatnonzero(slots == 0), members.size), members


def narrow(
    item_code_N: npt.NDArray[np.int32] | npt.NDArray[np.int64], num_blocks: int
) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """Return packed codes in four bytes where the numbers of their blocks leave room."""
    return item_code_N.astype(np.int32) if num_blocks < 2**28 else item_code_N.astype(np.int64)


def num_sums(cluster_size: int) -> int:
    """Return how many sums a cluster of ``cluster_size`` items stores.

    >>> num_sums(5)
    26
    """
    return int((1 << cluster_size) - 1 - cluster_size)


def cluster_code(
    num_items: int, cluster_offsets_C1: npt.NDArray[np.int64], members_M: npt.NDArray[np.int64]
) -> ClusterCode:
    """Lay the clusters out one after the other and give every member its packed code.

    Args:
        num_items: Rows N of the table.
        cluster_offsets_C1: Cluster ``c`` is ``members_M[offsets[c]:offsets[c + 1]]``, 2..8 items.
        members_M: Item ids in slot order.

    Raises:
        GraceError: a cluster has fewer than 2 or more than 8 items, an id is outside the
            table, or an item is in two clusters.
    """
    sizes = check_clusters(num_items, cluster_offsets_C1, members_M)
    sums = (1 << sizes) - 1 - sizes
    blocks = np.cumsum(sums) - sums
    slots = np.arange(members_M.size) - np.repeat(cluster_offsets_C1[:-1], sizes)
    code = np.full(num_items, -1, np.int64)
    code[members_M] = (np.repeat(blocks, sizes) << SLOT_BITS) | slots
    return ClusterCode(narrow(code, int(sums.sum())))


def check_clusters(
    num_items: int, cluster_offsets_C1: npt.NDArray[np.int64], members_M: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the sizes of disjoint clusters of 2..8 items.

    Raises:
        GraceError: the offsets do not cover the members, a cluster has another size, an id is
            outside the table, or an item is in two.
    """
    check_covers("cluster_offsets", cluster_offsets_C1, "members", members_M.size)
    sizes = np.diff(cluster_offsets_C1)
    if sizes.size and (sizes.min() < 2 or sizes.max() > MAX_CLUSTER):
        raise GraceError(
            f"clusters hold 2..{MAX_CLUSTER} items, got {int(sizes.min())}..{int(sizes.max())}"
        )
    if members_M.size and (members_M.min() < 0 or members_M.max() >= num_items):
        raise GraceError(f"cluster members must be in 0..{num_items - 1}")
    taken_N = np.zeros(num_items, np.bool_)
    taken_N[members_M] = True
    if np.count_nonzero(taken_N) != members_M.size:
        raise GraceError("an item is in two clusters")
    return sizes


def cluster_sets(
    cluster_offsets_C1: npt.NDArray[np.int64], members_M: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List the items of every stored row, clusters in order, subsets in bit-pattern order.

    Returns:
        (indptr ``[R + 1]``, items): CSR of stored row -> item ids.
    """
    sizes = np.diff(cluster_offsets_C1)
    num_sums, num_items = np.zeros_like(sizes), np.zeros_like(sizes)
    of_size = {int(k): (np.flatnonzero(sizes == k), *_subset_patterns(int(k))) for k in set(sizes)}
    for clusters, lengths, slots in of_size.values():
        num_sums[clusters], num_items[clusters] = lengths.size, slots.size
    indptr = np.zeros(int(num_sums.sum()) + 1, np.int64)
    items = np.empty(int(num_items.sum()), np.int64)
    first_sum, first_item = np.cumsum(num_sums) - num_sums, np.cumsum(num_items) - num_items
    for clusters, lengths, slots in of_size.values():  # all clusters of one size together
        indptr[1 + first_sum[clusters, None] + np.arange(lengths.size)] = lengths
        members = members_M[cluster_offsets_C1[clusters, None] + slots]
        items[first_item[clusters, None] + np.arange(slots.size)] = members
    return np.cumsum(indptr), items


@functools.cache
def _subset_patterns(size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (length of each subset, slots of all subsets) for masks with two or more bits."""
    masks = [mask for mask in range(1 << size) if mask.bit_count() > 1]
    slots = [[slot for slot in range(size) if mask >> slot & 1] for mask in masks]
    return (
        np.array([len(s) for s in slots], np.int64),
        np.array([slot for s in slots for slot in s], np.int64),
    )
