"""Subset code: a cluster stores only its most useful subsets, a table splits what bags hold.

Flow: grouping -> *StoredSums with a SubsetCode* -> rewriting.  Derived from GRACE's clusters,
which store every subset: here 8 items cost what their useful subsets cost, not 247 rows.
A *mask* has one bit for each slot of its cluster; the masks of a cluster of k items are the
entries ``start .. start + 2**k - 1`` of one common table, and an item's packed code
``start * 8 + slot`` needs one gather. Stored rows are in order of their entries, so the row of
a stored entry is its rank: a bitmap and a count for every 64 entries.
Shapes: N items, C clusters, C1 = C + 1, M members, E entries, W words, R stored rows.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels.packed_codes import ITEMS_A_WORD
from grace_kernels.reference import SLOT_BITS
from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import check_clusters, list_members, narrow

WORD_BITS = 64
SPLIT_TOGETHER = 256  # clusters whose masks are split at a time
NEVER = 100  # parts: more than a mask has items
MARK_BYTES = 8  # a word for ITEMS_A_WORD entries in grace_kernels.subset_tables
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SubsetCode:
    """How a mask of a cluster splits into stored subsets and single items.

    Attributes:
        item_code_N: int32 ``[N]`` (int64 past 2**28 entries): ``start * 8 + slot``, -1 where the
            item is in no cluster.
        next_E: uint8 ``[E]``: the part of a mask that is read first. It holds the lowest item of
            the mask and is stored, or is that item alone; all parts together are the fewest.
        stored_W: uint64 ``[W]``: a bit for each entry that is stored.
        ranks_W: int32 ``[W]``: stored entries before each word.
    """

    item_code_N: npt.NDArray[np.int32] | Int64s
    next_E: npt.NDArray[np.uint8]
    stored_W: npt.NDArray[np.uint64]
    ranks_W: npt.NDArray[np.int32]

    @property
    def num_bytes(self) -> int:
        """Metadata bytes that serving keeps for this code: marks and ranks share words there."""
        marks = -(-self.next_E.size // ITEMS_A_WORD) * MARK_BYTES
        return int(self.item_code_N.nbytes + self.next_E.nbytes + marks)

    @property
    def item_bytes(self) -> int:
        """Bytes of :attr:`num_bytes` that one more item, in no sum, would take."""
        return int(self.item_code_N.itemsize)

    def check(self, num_items: int, num_stored: int) -> None:
        """Refuse a code that reads outside its table or outside ``num_stored`` stored rows.

        Raises:
            GraceError: the message names what does not fit.
        """
        if self.item_code_N.shape != (num_items,):
            raise GraceError(
                f"stored sums: the code has {self.item_code_N.shape}, expected {num_items} items"
            )
        words = -(-self.next_E.size // WORD_BITS)
        if self.stored_W.shape != (words,) or self.ranks_W.shape != (words,):
            raise GraceError(f"stored sums: {self.next_E.size} entries need {words} words of marks")
        starts, sizes = _tables(self.item_code_N)
        if starts.size and int((starts + (1 << sizes)).max()) > self.next_E.size:
            raise GraceError("stored sums: the code names an entry past the end of its table")
        marks = np.unpackbits(self.stored_W.view(np.uint8), bitorder="little")
        ones = marks.reshape(words, WORD_BITS).sum(axis=1, dtype=np.int64)
        if not np.array_equal(self.ranks_W, np.cumsum(ones) - ones) or ones.sum() != num_stored:
            raise GraceError(
                f"stored sums: the code marks {int(ones.sum())} rows, there are {num_stored}"
            )
        _check_parts(self.next_E, marks, starts, sizes)

    def listed(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return what :func:`subset_code` makes this code of: offsets, members, entries rising."""
        return *list_members(self.item_code_N), self.entries()

    def entries(self) -> Int64s:
        """Return the entry behind each stored row, int64 ``[R]``, rising."""
        return np.flatnonzero(np.unpackbits(self.stored_W.view(np.uint8), bitorder="little"))


def subset_code(
    num_items: int,
    cluster_offsets_C1: Int64s,
    members_M: Int64s,
    entries_R: Int64s,
    parts_E: npt.NDArray[np.uint8] | None = None,
) -> tuple[SubsetCode, Int64s, Int64s]:
    """Lay out the tables of all clusters and the stored subsets.

    Args:
        num_items: Rows N of the table.
        cluster_offsets_C1: Cluster ``c`` is ``members_M[offsets[c]:offsets[c + 1]]``, 2..8 items.
        members_M: Item ids in slot order.
        entries_R: Entries ``start + mask`` to store, in any order; ``start`` is the sum of
            ``2 ** size`` over the clusters before.
        parts_E: ``next_E`` of the code as it was; default: it is formed, which takes longest of all.

    Returns:
        (code, indptr ``[R + 1]``, items): the code and the items of each stored row.

    Raises:
        GraceError: a cluster is too small or too large or shares an item, an entry repeats, is
            outside the tables, or is a mask of fewer than two items; parts are of other clusters.
    """
    sizes = check_clusters(num_items, cluster_offsets_C1, members_M)
    starts_C1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(1 << sizes)])
    slots = np.arange(members_M.size) - np.repeat(cluster_offsets_C1[:-1], sizes)
    code = np.full(num_items, -1, np.int64)
    code[members_M] = (np.repeat(starts_C1[:-1], sizes) << SLOT_BITS) | slots
    entries = np.sort(entries_R)
    if entries.size and np.diff(entries).min(initial=1) < 1:
        raise GraceError("stored sums: a subset is stored twice")
    if entries.size and not 0 <= entries[0] <= entries[-1] < starts_C1[-1]:
        raise GraceError("stored sums: a subset is of no cluster")
    cluster_R = np.repeat(np.arange(sizes.size), np.diff(np.searchsorted(entries, starts_C1)))
    masks_R = (entries - starts_C1[cluster_R]).astype(np.uint8)
    bits_R8 = np.unpackbits(masks_R[:, None], axis=1, bitorder="little")
    num_items_R = bits_R8.sum(axis=1, dtype=np.int64)
    if entries.size and num_items_R.min() < 2:
        raise GraceError("stored sums: a subset has fewer than two items")
    place = np.flatnonzero(bits_R8)
    first_R = cluster_offsets_C1[cluster_R]
    items = members_M[first_R[place >> 3] + (place & 7)]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_items_R)])
    words = -(-int(starts_C1[-1]) // WORD_BITS)
    marks = np.zeros(words * WORD_BITS, np.uint8)
    marks[entries] = 1
    stored_W = np.packbits(marks, bitorder="little").view(np.uint64)
    ones = marks.reshape(words, WORD_BITS).sum(axis=1, dtype=np.int64)
    if parts_E is None:
        parts_E = _first_parts(starts_C1, marks)
    elif parts_E.dtype != np.uint8 or parts_E.shape != (int(starts_C1[-1]),):
        raise GraceError("stored sums: the parts of masks are those of other clusters")
    made = SubsetCode(
        narrow(code, int(starts_C1[-1])),
        parts_E,
        stored_W,
        (np.cumsum(ones) - ones).astype(np.int32),
    )
    return made, indptr, items.astype(np.int64)


def _first_parts(starts_C1: Int64s, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the first part of every mask, so that all parts together are the fewest.

    Clusters of one size go together, and masks of as many items: what is left of a mask after its
    first part has fewer, so its best split is known.
    """
    sizes_C = np.diff(starts_C1)
    parts_E = np.zeros(int(starts_C1[-1]), np.uint8)
    for size in np.unique(sizes_C).tolist():
        starts = starts_C1[:-1][sizes_C == size]
        splits = _splits(size.bit_length() - 1)
        for first in range(0, starts.size, SPLIT_TOGETHER):
            entries = np.arange(size)[:, None] + starts[first : first + SPLIT_TOGETHER]
            # Parts times 256 and the number of a split: the smallest has the fewest, the first of equals.
            reads = np.where(marks[entries] == 1, 1 << 8, NEVER << 8).astype(np.uint16)
            reads[1 << np.arange(size.bit_length() - 1)] = 1 << 8  # one item is always there
            costs, parts = np.zeros_like(reads), np.zeros(entries.shape, np.uint8)
            for masks_K, parts_KP in splits:
                cost = reads[parts_KP]
                cost += costs[masks_K[:, None] ^ parts_KP]
                cost += np.arange(parts_KP.shape[1], dtype=np.uint16)[:, None]
                best = cost.min(axis=1)
                parts[masks_K] = np.take_along_axis(parts_KP, (best & 255).astype(np.intp), axis=1)
                costs[masks_K] = best & ~np.uint16(255)
            parts_E[entries] = parts
    return parts_E


@functools.cache
def _splits(num_items: int) -> list[tuple[Int64s, Int64s]]:
    """Return masks of one item, of two, ... (``[K]``) and what may be read first of each (``[K, P]``).

    A first part holds the lowest item: that item alone, then the larger parts before the smaller.
    """
    found: dict[int, tuple[list[int], list[list[int]]]] = {}
    for mask in range(1, 1 << num_items):
        low = mask & -mask
        others = rest = mask ^ low
        parts = [low]
        while rest:
            parts.append(low | rest)
            rest = (rest - 1) & others
        masks, of_mask = found.setdefault(mask.bit_count(), ([], []))
        masks.append(mask)
        of_mask.append(parts)
    return [(np.array(masks), np.array(of_mask)) for _, (masks, of_mask) in sorted(found.items())]


def _tables(item_code_N: npt.NDArray[np.int32] | Int64s) -> tuple[Int64s, Int64s]:
    """Return start and size of every cluster that the codes name."""
    code = item_code_N[item_code_N >= 0].astype(np.int64)
    starts, which = np.unique(code >> SLOT_BITS, return_inverse=True)
    sizes = np.zeros(starts.size, np.int64)
    np.maximum.at(sizes, which, (code & 7) + 1)
    return starts, sizes


def _check_parts(
    next_E: npt.NDArray[np.uint8], marks: npt.NDArray[np.uint8], starts: Int64s, sizes: Int64s
) -> None:
    """Refuse a table with a part that is not of its mask's lowest item, is outside it or not stored."""
    ends = np.cumsum(1 << sizes)
    first_E = np.repeat(ends - (1 << sizes), 1 << sizes)
    start_E = np.repeat(starts, 1 << sizes)
    masks = (np.arange(first_E.size) - first_E).astype(np.uint8)
    parts = next_E[: masks.size]
    if not np.array_equal(starts[1:], ends[:-1]) or starts[:1].any():  # tables with gaps between
        parts = next_E[start_E + masks]
    lowest_is_left = (parts & masks & -masks) == 0
    several = np.flatnonzero(parts & (parts - np.uint8(1)))
    if (
        (lowest_is_left != (masks == 0)).any()
        or (parts & ~masks).any()
        or not marks[start_E[several] + parts[several]].all()
    ):
        raise GraceError("stored sums: the table splits a mask into what is not stored")
