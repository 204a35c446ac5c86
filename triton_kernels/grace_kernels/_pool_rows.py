"""Numba core of ``grace::pooled_rows``: bags that were rewritten before are gathered and summed.

Flow: cpu.py calls pool_rows_range and pool_rows_parallel; _merge.py says where a row lies,
_lookup.py sums a chunk of places.
Meaning: reference.py (``pool_rewritten_reference``).
"""

from typing import Any

import numpy as np
from numba import prange

from grace_kernels._jit import jit
from grace_kernels._lookup import CHUNK_IDS, _longest, _sum_chunk
from grace_kernels._merge import U, plain_place, stored_place
from grace_kernels._sum_rows import AHEAD


@jit
def _place_rows(row_ids: Any, begin: int, end: int, hot_row: Any, num_rows: int, num_stored: int,
                layout: Any, places: Any) -> Any:  # fmt: skip
    """Write where the rows ``row_ids[begin:end]`` lie to ``places``.

    Returns:
        -1, or the position of a row outside ``0 .. num_rows + num_stored - 1``; none is read.
    """
    for position in range(begin, end):
        row = row_ids[U(position)]
        if row < 0 or row >= num_rows + num_stored:
            return np.int64(position)
        # Arithmetic instead of a branch that would be mispredicted for every third row; what is
        # not chosen is an address that nobody reads.
        is_plain = (row - num_rows) >> 63  # -1 or 0
        plain = plain_place(row & is_plain, layout, hot_row)
        stored = stored_place(row - num_rows, layout)
        places[U(position - begin)] = (plain & is_plain) | (stored & ~is_plain)
    return np.int64(-1)


@jit
def pool_rows_range(first, last, row_ids, offsets, given, weights, hot_row, num_rows, num_stored,
                    layout, dim, half, mean, out_at, out_stride):  # fmt: skip
    """Sum bags ``first .. last - 1``, a chunk of about CHUNK_IDS rows at a time.

    Args:
        first: First bag.
        last: One past the last bag.
        row_ids: int64: below ``num_rows`` plain rows, from there on stored rows.
        offsets: int64 ``[B + 1]`` of ``row_ids``; checked by the caller.
        given: int64 ``[B + 1]``, offsets of the bags before they were rewritten: MEAN divides by
            their lengths.
        weights: float32 parallel to ``row_ids``, or empty.
        hot_row: Row of the fast tier that copies the item, -1 if none; or empty.
        num_rows: Rows of the table.
        num_stored: Sums of the table, in both tiers.
        layout: Where rows lie.
        dim: Values of a row.
        half: Rows are float16.
        mean: MEAN pooling.
        out_at: Address of the output of bag 0.
        out_stride: Bytes between the outputs of two bags.

    Returns:
        -1, or the position of a row that the table has not.
    """
    places = np.empty(CHUNK_IDS + _longest(offsets[first : last + 1]) + AHEAD + 1, np.int64)
    ends = np.zeros(CHUNK_IDS + 2, np.int64)
    begin = first
    while begin < last:
        start = offsets[begin]
        stop = begin + 1
        while (stop < last and offsets[stop + 1] - start <= CHUNK_IDS
               and stop - begin < CHUNK_IDS):  # fmt: skip
            stop += 1
        end = offsets[stop]
        bad = _place_rows(row_ids, start, end, hot_row, num_rows, num_stored, layout, places)
        if bad >= 0:
            return bad
        for bag in range(begin, stop):
            ends[bag - begin + 1] = offsets[bag + 1] - start
        chunk_weights = weights[start:end] if weights.size > 0 else weights
        _sum_chunk(begin, stop, given, places, chunk_weights, ends, layout, dim, half, mean, out_at,
                   out_stride)  # fmt: skip
        begin = stop
    return np.int64(-1)


@jit(parallel=True)
def pool_rows_parallel(num_threads, row_ids, offsets, given, weights, hot_row, num_rows, num_stored,
                       layout, dim, half, mean, out_at, out_stride):  # fmt: skip
    """Divide the bags over the threads by number of rows; returns as ``pool_rows_range``."""
    bags = offsets.size - 1
    bads = np.full(num_threads, -1, np.int64)
    total = offsets[bags] - offsets[0]
    for thread in prange(num_threads):
        share = offsets[0] + total * thread // num_threads
        next_share = offsets[0] + total * (thread + 1) // num_threads
        first = np.searchsorted(offsets, share) if thread > 0 else 0
        last = np.searchsorted(offsets, next_share) if thread + 1 < num_threads else bags
        bads[thread] = pool_rows_range(
            first, last, row_ids, offsets, given, weights, hot_row, num_rows, num_stored, layout,
            dim, half, mean, out_at, out_stride,
        )  # fmt: skip
    first_bad = np.int64(-1)
    for thread in range(num_threads):
        if bads[thread] >= 0 and (first_bad < 0 or bads[thread] < first_bad):
            first_bad = bads[thread]
    return first_bad
