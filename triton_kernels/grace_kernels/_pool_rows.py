"""Numba core of ``grace::pooled_rows``: bags that were rewritten before are gathered and summed.

Flow: cpu.py calls pool_span and pool_parallel; _merge.py says where a row lies, code of
_sum_rows.py adds rows up.  Rows of a chunk are prefetched while the chunk before is summed.
Meaning: reference.py (``pool_rewritten_reference``).
"""

from typing import Any

import numpy as np
from numba import prange

from grace_kernels._jit import jit
from grace_kernels._lookup import (
    POSITION,
    bags_inside,
    copy_head,
    span_start,
    sum_chunk,
    table_of,
)
from grace_kernels._places import HOT_AT, U, plain_place, stored_place
from grace_kernels._prefetch import prefetch_row
from grace_kernels._rewrite import CHUNK_IDS, end_of_chunk, longest_bag
from grace_kernels._sum_rows import AHEAD


@jit
def _place_of(row: Any, table: Any) -> Any:
    """Return where row ``row`` lies: below ``num_rows`` a plain row, from there on a stored row."""
    num_rows = table[5]
    # Arithmetic instead of a branch that would be mispredicted for every third row; what is not
    # chosen is an address that nobody reads.
    is_plain = (row - num_rows) >> 63  # -1 or 0
    plain = plain_place(row & is_plain, table)
    stored = stored_place(row - num_rows, table)
    return (plain & is_plain) | (stored & ~is_plain)


@jit
def pool_span(begin, end, row_ids, offsets, given, weights, features, stored, stride, out_at,
              out_stride):  # fmt: skip
    """Sum the bags ``begin .. end - 1``, counted through all features.

    Args:
        begin: First bag; bag ``b`` of feature ``f`` is number ``f * stride + b``.
        end: One past the last bag.
        row_ids: int64 rows of all features: below ``num_rows`` plain, from there on stored rows.
        offsets: int64 of ``row_ids``, of all features; checked by the caller.
        given: int64, the same of the bags before they were rewritten: MEAN divides by lengths.
        weights: float32 parallel to ``row_ids``, or empty.
        features: int64 ``[F, NUM_COLUMNS]`` of _lookup.py.
        stored: int64 ``[F]``, sums of each feature's table.
        stride: Bags of each feature.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.

    Returns:
        (-1 or the position of a row that its table has not, its feature).
    """
    longest = np.int64(1)
    for feature in range(features.shape[0]):
        low, high = bags_inside(begin, end, feature, stride)
        at = features[feature, POSITION] * stride
        longest = max(longest, longest_bag(offsets, at + low, at + high))
    rows = np.empty((2, CHUNK_IDS + longest + AHEAD), np.int64)
    ends = np.zeros((2, CHUNK_IDS + 2), np.int64)
    placed_weights = waiting_weights = weights[:0]
    turn, waiting, waiting_first, waiting_last = np.int64(0), np.int64(-1), np.int64(0), np.int64(0)
    for feature in range(features.shape[0]):
        low, high = bags_inside(begin, end, feature, stride)
        at = features[feature, POSITION] * stride
        table, bounds = table_of(features, feature), offsets[at : at + stride + 1]
        first = low
        while first < high:
            last = end_of_chunk(bounds, first, high)
            bad = _place_rows(row_ids, bounds[first], bounds[last], table, stored[feature],
                              rows[turn])  # fmt: skip
            if bad >= 0:
                return bad, feature
            count = bounds[last] - bounds[first]
            for bag in range(first, last):
                ends[turn, bag - first + 1] = bounds[bag + 1] - bounds[first]
            if weights.size > 0:
                placed_weights = weights[bounds[first] : bounds[last]]
            if waiting >= 0:
                copy_head(
                    rows[turn], count, rows[1 - turn], ends[1 - turn, waiting_last - waiting_first]
                )
                _sum(features, waiting, waiting_first, waiting_last, given, stride, rows[1 - turn],
                     waiting_weights, ends[1 - turn], out_at, out_stride)  # fmt: skip
            else:
                for i in range(min(count, AHEAD)):
                    prefetch_row(rows[turn, i], table[4])
            waiting, waiting_first, waiting_last = feature, first, last
            waiting_weights = placed_weights
            turn = 1 - turn
            first = last
    if waiting >= 0:
        copy_head(
            rows[turn], np.int64(0), rows[1 - turn], ends[1 - turn, waiting_last - waiting_first]
        )
        _sum(features, waiting, waiting_first, waiting_last, given, stride, rows[1 - turn],
             waiting_weights, ends[1 - turn], out_at, out_stride)  # fmt: skip
    return np.int64(-1), 0


@jit
def _sum(
    features, feature, first, last, given, stride, rows, row_weights, ends, out_at, out_stride
):
    """Sum a chunk that was placed."""
    at = features[feature, POSITION] * stride
    sum_chunk(features, feature, first, last, given[at : at + stride + 1], rows, row_weights, ends,
              out_at, out_stride)  # fmt: skip


@jit
def _place_rows(
    row_ids: Any, begin: int, end: int, table: Any, num_stored: int, places: Any
) -> Any:
    """Write where the rows ``row_ids[begin:end]`` lie to ``places``.

    Nothing branches on a row, so LLVM places several at once: what is outside is seen by its sign.

    Returns:
        -1, or the position of a row outside ``0 .. num_rows + num_stored - 1``; none is read.
    """
    last_row = table[5] + num_stored - 1
    outside = np.int64(0)
    if table[HOT_AT] == 0:
        for i in range(end - begin):
            row = row_ids[U(begin + i)]
            outside |= row | (last_row - row)
            places[U(i)] = _place_of(row, table)
    else:
        for i in range(end - begin):
            row = row_ids[U(begin + i)]
            outside |= row | (last_row - row)
            if outside >= 0:  # else its hot row is looked up outside of the table
                places[U(i)] = _place_of(row, table)
    if outside < 0:
        for position in range(begin, end):
            if row_ids[U(position)] < 0 or row_ids[U(position)] > last_row:
                return np.int64(position)
    return np.int64(-1)


@jit(parallel=True)
def pool_parallel(num_threads, row_ids, offsets, given, weights, features, stored, stride, out_at,
                  out_stride):  # fmt: skip
    """Divide all bags over the threads; returns as ``pool_span``."""
    bads = np.full(num_threads, -1, np.int64)
    whose = np.zeros(num_threads, np.int64)
    bags = features.shape[0] * stride
    for thread in prange(num_threads):
        begin = span_start(thread, num_threads, offsets, features, stride) if thread > 0 else 0
        end = bags
        if thread + 1 < num_threads:
            end = span_start(thread + 1, num_threads, offsets, features, stride)
        bads[thread], whose[thread] = pool_span(
            begin, end, row_ids, offsets, given, weights, features, stored, stride, out_at,
            out_stride,
        )  # fmt: skip
    for thread in range(num_threads):
        if bads[thread] >= 0:
            return bads[thread], whose[thread]
    return np.int64(-1), np.int64(0)
