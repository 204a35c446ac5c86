"""Numba core of the pair counts: the row of an item is counted over the bags that hold it.

Flow: called by ``pair_counts``.  Work is one increment for each two ids of a bag.  A row is read
out in rising order without a sort (``_counter_core``): items that many bags touch by a scan over all
counters, others through a mark for each touched cache line of counters.
Shapes: B bags, B1 = B + 1, N items, N1 = N + 1, L ids, E directed edges.
"""

# mypy: disable-error-code="call-arg"

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._llvm import CACHE_LINE, prefetch
from grace_kernels._places import U
from grace_torchrec.grouping._counter_core import (
    COUNTERS_AN_ID,
    GROUP_SHIFT,
    read_all,
    read_marked,
)

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
WORD_SHIFT = GROUP_SHIFT + 6  # counters whose marks share a word
BAGS_AHEAD = 4


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
        partners: Receives the partners of one item after the other, rising; what lies behind the
            last one may change too.
        counts: Receives their counts.

    Returns:
        How many edges were written.
    """
    num_items = indptr_N1.size - 1
    seen = np.zeros(num_items, np.int32)
    marks = np.zeros((num_items >> WORD_SHIFT) + 1, np.int64)
    used = 0
    for item in range(first, last):
        start = used
        bags = bags_L[indptr_N1[item] : indptr_N1[item + 1]]
        events = 0
        for bag in bags:
            events += offsets_B1[bag + 1] - offsets_B1[bag]
        if COUNTERS_AN_ID * events > num_items:
            _count_row(offsets_B1, ids_L, bags, seen)
            seen[item] = 0
            used = read_all(seen, partners, counts, used)
        elif events:
            _count_sparse_row(offsets_B1, ids_L, bags, seen, marks)
            seen[item] = 0
            used = read_marked(seen, marks, partners, counts, used)
        degrees_N[item] = used - start
    return used


@jit
def _count_row(offsets_B1: Int64s, ids_L: Ids, bags: Int32s, seen_N: Int32s) -> None:
    """Add the ids of ``bags`` to the counters."""
    for place in range(bags.size):
        prefetch_bag(offsets_B1, ids_L, bags, place + BAGS_AHEAD)
        bag = bags[place]
        for at in range(offsets_B1[bag], offsets_B1[bag + 1]):
            seen_N[U(ids_L[U(at)])] += 1


@jit
def _count_sparse_row(
    offsets_B1: Int64s, ids_L: Ids, bags: Int32s, seen_N: Int32s, marks: Int64s
) -> None:
    """Add the ids of ``bags`` to the counters and mark the groups that they lie in."""
    for place in range(bags.size):
        prefetch_bag(offsets_B1, ids_L, bags, place + BAGS_AHEAD)
        bag = bags[place]
        for at in range(offsets_B1[bag], offsets_B1[bag + 1]):
            partner = np.int64(ids_L[U(at)])
            seen_N[U(partner)] += 1
            marks[U(partner >> WORD_SHIFT)] |= np.int64(1) << ((partner >> GROUP_SHIFT) & 63)


@jit(inline=True)
def prefetch_bag(offsets_B1: Int64s, ids_L: Ids, bags: Int32s, place: int) -> None:
    """Ask for the first two cache lines of a bag that comes later: bags lie anywhere."""
    if place < bags.size:
        at = ids_L.ctypes.data + ids_L.itemsize * offsets_B1[bags[place]]
        prefetch(at)
        prefetch(at + CACHE_LINE)


@jit
def weighted_degrees(indptr_N1: Int64s, counts_E: Int32s) -> Int64s:
    """Return the sum of the counts of each item's edges, int64 ``[N]``."""
    degrees = np.zeros(indptr_N1.size - 1, np.int64)
    for item in range(degrees.size):
        for edge in range(indptr_N1[item], indptr_N1[item + 1]):
            degrees[item] += counts_E[edge]
    return degrees
