"""Numba core of rewriting: bags of ids become lists of places of rows.

Flow: cpu.py calls rewrite_all; _lookup.py calls rewrite_chunk and sums the places.
_split_ids.py and _merge.py (or _merge_weighted.py) do the two passes over a chunk.
Meaning: reference.py (``rewrite_clusters_reference``) and reference_subsets.py, equal row by row.

Weights, wide codes and subset codes are *rare*: functions here take None where a call has none of
them. numba drops branches on None before it compiles, and with them a third of the work of compiling.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._merge import merge_chunk, num_slots
from grace_kernels._merge_subsets import make_subset_scratch, merge_subset_chunk
from grace_kernels._merge_weighted import merge_weighted_chunk
from grace_kernels._places import PARTS_AT
from grace_kernels._prefetch import QUEUE_SIZE
from grace_kernels._split_ids import make_split, split_chunk

RARE = 1  # anything but None
CHUNK_IDS = 512  # ids in flight: their rows fit in the cache
CODE_BYTES = 8  # column of a table


def rare_or_none(weighted: bool, tables: Iterable[tuple[int, ...]]) -> int | None:
    """Return RARE if bags have weights or a ``Table`` has a wide or a subset code, else None."""
    if weighted or any(table[CODE_BYTES] == 8 or table[PARTS_AT] != 0 for table in tables):
        return RARE
    return None


@jit
def make_scratch(longest: Any, generic: Any, splits: Any, rare: Any) -> Any:
    """Return the scratch of rewriting: split, hash table, of subset codes, weighted tables.

    Args:
        longest: Ids of the longest bag.
        generic: Whether bags are weighted or codes wide.
        splits: Whether a table has a subset code.
        rare: RARE, or None: then the last two are None.
    """
    num_entries = num_slots(longest) + 1
    split = make_split(CHUNK_IDS + longest, CHUNK_IDS + 1)
    hashed = np.zeros(num_entries, np.int64), np.empty(longest + 1, np.int64)
    if rare is None:
        return split, hashed, None, None
    subset_scratch = make_subset_scratch(longest if splits else 0, num_entries if splits else 0)
    wide = np.empty((4, num_slots(longest) if generic else 0), np.int64)
    return split, hashed, subset_scratch, (wide, subset_scratch[0])


@jit
def is_generic(table: Any, weight_bits: Any) -> Any:
    """Tell whether bags need the path that knows weights and wide codes (large blocks)."""
    return weight_bits.size > 0 or table[CODE_BYTES] == 8


@jit
def longest_bag(offsets: Any, first: Any, last: Any) -> Any:
    """Return the ids of the longest of the bags ``first .. last - 1``."""
    longest = np.int64(0)
    for bag in range(first, last):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    return longest


@jit
def end_of_chunk(offsets: Any, first: Any, last: Any) -> Any:
    """Return where a chunk ends that begins with bag ``first``: about CHUNK_IDS ids further."""
    stop = first + 1
    while (stop < last and offsets[stop + 1] - offsets[first] <= CHUNK_IDS
           and stop - first < CHUNK_IDS):  # fmt: skip
        stop += 1
    return stop


@jit
def rewrite_chunk(ids: Any, offsets: Any, first: int, last: int, weight_bits: Any, table: Any,
                  policy: int, rows: Any, origin: Any, out: int, ends: Any, scratch: Any,
                  epoch: int, queue: Any, rare: Any) -> Any:  # fmt: skip
    """Rewrite bags ``first .. last - 1``, one chunk, into ``rows[out:]``.

    Args:
        ids: Raw ids.
        offsets: int64, bag ``b`` is ``ids[offsets[b]:offsets[b + 1]]``.
        first: First bag.
        last: One past the last bag.
        weight_bits: int32 view of the weights, or empty.
        table: Where rows and codes lie.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        rows: int64, receives places; GROUP entries longer than the bags need.
        origin: int64, receives the position each row came from, or empty.
        out: Where to write first.
        ends: int64, ``ends[k + 1]`` receives the end of the k-th bag, ``ends[0]`` is ``out``.
        scratch: Of ``make_scratch``.
        epoch: Of the last bag merged with this scratch.
        queue: Rows to prefetch meanwhile.
        rare: RARE, or None where there are no weights and no wide or subset codes.

    Returns:
        (new epoch, ids asked for (padding and dropped ids left out), clustered ids, -1 or the
        position of a bad id).
    """
    split, hashed, subset_scratch, wide_scratch = scratch
    bad = split_chunk(ids, offsets, first, last, table, policy, origin.size > 0, split, queue)
    if bad >= 0:
        return epoch, np.int64(0), np.int64(0), bad
    bags = last - first
    clustered = split[3][bags]
    if rare is None:
        epoch = merge_chunk(split, bags, table, hashed, epoch, rows, out, ends, queue)
    elif is_generic(table, weight_bits):
        merge_weighted_chunk(split, bags, table, weight_bits, wide_scratch, rows, origin, out, ends)
    elif table[PARTS_AT] != 0:
        epoch = merge_subset_chunk(
            split, bags, table, hashed, subset_scratch, epoch, rows, out, ends, queue
        )
    else:
        epoch = merge_chunk(split, bags, table, hashed, epoch, rows, out, ends, queue)
    return epoch, split[1][bags] + clustered, clustered, np.int64(-1)


@jit
def rewrite_all(ids, offsets, weight_bits, table, policy, rows, origin, rare):
    """Rewrite every bag into row ids; return ends, ids asked for, position of a bad id or -1."""
    bags = offsets.size - 1
    ends = np.zeros(bags + 1, np.int64)
    longest, splits = longest_bag(offsets, 0, bags), table[PARTS_AT] != 0
    scratch = make_scratch(longest, is_generic(table, weight_bits), splits, rare)
    queue = np.zeros(QUEUE_SIZE, np.int64)
    epoch, total, first = np.int64(0), np.int64(0), np.int64(0)
    while first < bags:
        last = end_of_chunk(offsets, first, bags)
        epoch, asked, _, bad = rewrite_chunk(
            ids, offsets, first, last, weight_bits, table, policy, rows, origin, ends[first],
            ends[first : last + 1], scratch, epoch, queue, rare,
        )  # fmt: skip
        if bad >= 0:
            return ends, total, bad
        total += asked
        first = last
    return ends, total, np.int64(-1)
