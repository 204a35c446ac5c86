"""Numba core of the pair counts: the row of an item is counted over the bags that hold it.

Flow: called by ``pair_counts``.  Work is one increment for each two ids of a bag.  A row is read
out in rising order without a sort: items that many bags touch by a scan over all counters,
others through a bitmap of the touched counters.
Shapes: B bags, B1 = B + 1, N items, N1 = N + 1, L ids, E directed edges.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
_DE_BRUIJN = 0x03F79D71B4CB0A89  # its 64 windows of six bits differ: they name the lowest set bit
_LOW_BIT = np.zeros(64, np.int64)
for _bit in range(64):
    _LOW_BIT[((_DE_BRUIJN << _bit) & (2**64 - 1)) >> 58] = _bit
_MULTIPLIER = np.uint64(_DE_BRUIJN)
_ONE, _ZERO, _SHIFT, _LAST_BIT = np.uint64(1), np.uint64(0), np.uint64(58), np.uint64(63)


@jit
def bags_of_items(offsets_B1: Int64s, ids_L: Ids, num_items: int) -> tuple[Int64s, Int32s]:
    """Invert the bags: (indptr ``[N + 1]``, bag ``[L]``), the bags that hold each item."""
    starts = np.zeros(num_items + 1, np.int64)
    for item in ids_L:
        starts[item + 1] += 1
    for item in range(num_items):
        starts[item + 1] += starts[item]
    fill = starts[:-1].copy()
    bags = np.empty(ids_L.size, np.int32)
    for bag in range(offsets_B1.size - 1):
        for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
            bags[fill[ids_L[place]]] = bag
            fill[ids_L[place]] += 1
    return starts, bags


@jit
def count_pairs(
    offsets_B1: Int64s,
    ids_L: Ids,
    indptr_N1: Int64s,
    bags_L: Int32s,
    first: int,
    last: int,
    degrees_N: Int64s,
    partners: Int32s,
    counts: Int32s,
) -> int:
    """Count all pairs of the items ``first .. last - 1``, in bags without repeats.

    Args:
        offsets_B1: Start of each bag in ``ids_L``.
        ids_L: Ids of the bags.
        indptr_N1: Start of each item in ``bags_L``.
        bags_L: The bags that hold each item.
        first: First item.
        last: Item behind the last one.
        degrees_N: Receives the edges of each of these items.
        partners: Receives the partners of one item after the other, rising.
        counts: Receives their counts.

    Returns:
        How many edges were written.
    """
    num_items = indptr_N1.size - 1
    seen = np.zeros(num_items, np.int32)
    touched = np.zeros((num_items + 63) // 64, np.uint64)
    used = 0
    for item in range(first, last):
        start = used
        bags = bags_L[indptr_N1[item] : indptr_N1[item + 1]]
        events = 0
        for bag in bags:
            events += offsets_B1[bag + 1] - offsets_B1[bag]
        if events > num_items:
            _count_row(offsets_B1, ids_L, bags, seen)
            seen[item] = 0
            used = _read_by_scan(seen, partners, counts, used)
        elif events:
            _count_sparse_row(offsets_B1, ids_L, bags, seen, touched)
            seen[item] = 0
            used = _read_by_bitmap(seen, touched, partners, counts, used)
        degrees_N[item] = used - start
    return used


@jit
def _count_row(offsets_B1: Int64s, ids_L: Ids, bags: Int32s, seen_N: Int32s) -> None:
    """Add the ids of ``bags`` to the counters."""
    for bag in bags:
        for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
            seen_N[ids_L[place]] += 1


@jit
def _count_sparse_row(
    offsets_B1: Int64s, ids_L: Ids, bags: Int32s, seen_N: Int32s, touched: npt.NDArray[np.uint64]
) -> None:
    """Add the ids of ``bags`` to the counters and mark the touched ones in the bitmap."""
    for bag in bags:
        for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
            partner = ids_L[place]
            seen_N[partner] += 1
            touched[partner >> 6] |= _ONE << (np.uint64(partner) & _LAST_BIT)


@jit
def _read_by_scan(seen_N: Int32s, partners_E: Int32s, counts_E: Int32s, used: int) -> int:
    """Append the counters that are not 0, and clear them; return the new end."""
    for partner in range(seen_N.size):
        if seen_N[partner] > 0:
            partners_E[used] = partner
            counts_E[used] = seen_N[partner]
            seen_N[partner] = 0
            used += 1
    return used


@jit
def _read_by_bitmap(
    seen_N: Int32s,
    touched: npt.NDArray[np.uint64],
    partners_E: Int32s,
    counts_E: Int32s,
    used: int,
) -> int:
    """Append the marked counters that are not 0, clear them and their marks."""
    for word in range(touched.size):
        bits = touched[word]
        touched[word] = _ZERO
        while bits != _ZERO:
            low = bits & (~bits + _ONE)
            bits ^= low
            partner = (word << 6) + _LOW_BIT[(low * _MULTIPLIER) >> _SHIFT]
            if seen_N[partner] > 0:  # the row's own item is marked, with a counter of 0
                partners_E[used] = partner
                counts_E[used] = seen_N[partner]
                seen_N[partner] = 0
                used += 1
    return used


@jit
def weighted_degrees(indptr_N1: Int64s, counts_E: Int32s) -> Int64s:
    """Return the sum of the counts of each item's edges, int64 ``[N]``."""
    degrees = np.zeros(indptr_N1.size - 1, np.int64)
    for item in range(degrees.size):
        for edge in range(indptr_N1[item], indptr_N1[item + 1]):
            degrees[item] += counts_E[edge]
    return degrees
