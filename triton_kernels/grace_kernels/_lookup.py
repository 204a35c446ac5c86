"""Numba core of the lookup: bags of several features, rewritten, gathered and summed.

Flow: cpu.py calls lookup_span or lookup_parallel with a table of what differs between features;
_rewrite.py says which rows a bag reads, code of _sum_rows.py adds them up.

How it is fast: bags go in chunks of about CHUNK_IDS ids.  While one chunk is rewritten, the rows
of the chunk before are prefetched; then these are summed from the cache.  Where SUMS_PREFETCH says so
they are prefetched while rows are summed: those of a table without sums, which are known at once, and
all on CPUs where mixing costs more than it brings (_prefetch.py).  Chunks of different features
follow each other in the same way.
"""

from typing import Any

import numpy as np
from numba import prange

from grace_kernels._jit import jit
from grace_kernels._llvm import call_sum
from grace_kernels._places import PARTS_AT, U
from grace_kernels._prefetch import QUEUE_SIZE, prefetch_rest, refill
from grace_kernels._rewrite import (
    CHUNK_IDS,
    end_of_chunk,
    is_generic,
    longest_bag,
    make_scratch,
    rewrite_chunk,
)
from grace_kernels._split_ids import GROUP
from grace_kernels._sum_rows import AHEAD

# Columns of the features: twelve of ``Table``, then position in the batch, rows are summed by the
# function at, bytes from the start of an output row, MEAN pooling, whether that function prefetches.
ROW_BYTES, TABLE_COLUMNS = 4, 12
POSITION, SUM_AT, OUT_BYTES, IS_MEAN, SUMS_PREFETCH, NUM_COLUMNS = 12, 13, 14, 15, 16, 17


@jit
def first_misfit(offsets: Any, lengths: Any) -> Any:
    """Return the first bag that ends before it begins or has another length than given, or -1.

    Args:
        offsets: int64 ``[B + 1]``.
        lengths: Integers ``[B]``, or an empty array where only offsets are given.
    """
    for bag in range(offsets.size - 1):
        if offsets[bag + 1] < offsets[bag]:  # a difference could wrap around
            return bag
        if lengths.size > 0 and offsets[bag + 1] - offsets[bag] != lengths[bag]:
            return bag
    return -1


@jit
def table_of(features: Any, feature: Any) -> Any:
    """Return the ``Table`` of a feature."""
    f = features[feature]
    return (f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11])


@jit
def sum_chunk(features: Any, feature: Any, first: int, last: int, given: Any, rows: Any,
              row_weights: Any, ends: Any, out_at: int, out_stride: int) -> Any:  # fmt: skip
    """Sum the rows at the addresses ``rows`` into the outputs of bags ``first .. last - 1``.

    Args:
        features: Int64 ``[F, NUM_COLUMNS]``.
        feature: Which of them.
        first: First bag.
        last: One past the last bag.
        given: Int64 offsets of the feature's bags as asked for: MEAN divides by their length.
        rows: Int64 addresses.
        row_weights: Float32 parallel to them, or empty.
        ends: Int64, ends of the bags in ``rows``.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.
    """
    sum_at, mean = features[feature, SUM_AT], features[feature, IS_MEAN]
    for bag in range(first, last):
        length = given[bag + 1] - given[bag]
        divisor = np.float32(length) if mean != 0 and length > 1 else np.float32(1.0)
        out = out_at + bag * out_stride + features[feature, OUT_BYTES]
        call_sum(sum_at, rows.ctypes.data, row_weights.ctypes.data, ends[bag - first],
                 ends[bag - first + 1], out, divisor)  # fmt: skip


@jit
def lookup_span(begin, end, ids, offsets, weights, features, stride, policy, out_at, out_stride,
                reads, rare):  # fmt: skip
    """Serve the bags ``begin .. end - 1``, counted through all features.

    Args:
        begin: First bag; bag ``b`` of feature ``f`` is number ``f * stride + b``.
        end: One past the last bag.
        ids: Ids of all features.
        offsets: int64, of all features of the batch.
        weights: float32 parallel to ``ids``, or empty.
        features: int64 ``[F, NUM_COLUMNS]``.
        stride: Bags of each feature.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        out_at: Address of the output.
        out_stride: Bytes between the outputs of two bags.
        reads: int64 ``[F, 2]``, ids asked for and rows read are added.
        rare: RARE of _rewrite.py, or None where no bag has weights and no code is wide or of subsets.

    Returns:
        (-1 or the position of a bad id, its feature).
    """
    weight_bits = weights.view(np.int32)
    longest, generic, splits = _what_comes(begin, end, offsets, weight_bits, features, stride)
    room = CHUNK_IDS + longest + GROUP + AHEAD
    rows = np.empty((2, room), np.int64)
    origin = np.empty(room if weights.size > 0 else 0, np.int64)
    row_weights = np.empty((2, origin.size), np.float32)
    ends = np.zeros((2, CHUNK_IDS + 2), np.int64)
    scratch = make_scratch(longest, generic, splits, rare)
    queue = np.zeros(QUEUE_SIZE, np.int64)
    # int64 from the start: a literal would make numba compile everything it reaches twice
    epoch, clustered, turn = np.int64(0), np.int64(0), np.int64(0)
    waiting, waiting_first, waiting_last = np.int64(-1), np.int64(0), np.int64(0)  # chunk before
    for feature in range(features.shape[0]):
        low, high = bags_inside(begin, end, feature, stride)
        at = features[feature, POSITION] * stride
        table = table_of(features, feature)
        given = offsets[at : at + stride + 1]
        first = low
        while first < high:
            last = end_of_chunk(given, first, high)
            epoch, asked, clustered, bad = rewrite_chunk(
                ids, given, first, last, weight_bits, table, policy, rows[turn], origin, np.int64(0),
                ends[turn], scratch, epoch, queue, rare,
            )  # fmt: skip
            if bad >= 0:
                return bad, feature
            count = ends[turn, last - first]
            reads[feature, 0] += asked
            reads[feature, 1] += count
            for i in range(count if weights.size > 0 else 0):
                row_weights[turn, i] = weights[origin[i]]
            if waiting >= 0:
                _finish(features, waiting, waiting_first, waiting_last, offsets, stride,
                        rows[1 - turn], row_weights[1 - turn], ends[1 - turn], rows[turn], count,
                        out_at, out_stride, queue)  # fmt: skip
            queued, taken = count, clustered if weights.size == 0 else np.int64(0)
            if features[feature, SUMS_PREFETCH] != 0:  # but for the first ones
                queued = min(count, AHEAD) if waiting != feature else np.int64(0)
                taken = np.int64(0)
            refill(
                queue, rows[turn].ctypes.data, queued, table[4], given[last] - given[first], taken
            )
            waiting, waiting_first, waiting_last = feature, first, last
            turn = 1 - turn
            first = last
    if waiting >= 0:
        _finish(features, waiting, waiting_first, waiting_last, offsets, stride, rows[1 - turn],
                row_weights[1 - turn], ends[1 - turn], rows[turn], np.int64(0), out_at, out_stride,
                queue)  # fmt: skip
    return np.int64(-1), 0


@jit
def _what_comes(begin, end, offsets, weight_bits, features, stride):
    """Return the longest bag of a span, if a chunk needs the generic path, if a mask is split."""
    longest, generic, splits = np.int64(1), False, False
    for feature in range(features.shape[0]):
        low, high = bags_inside(begin, end, feature, stride)
        at = features[feature, POSITION] * stride
        table = table_of(features, feature)
        longest = max(longest, longest_bag(offsets, at + low, at + high))
        generic |= is_generic(table, weight_bits)
        splits |= table[PARTS_AT] != 0
    return longest, generic, splits


@jit
def copy_head(source: Any, size: Any, target: Any, end: Any) -> Any:
    """Let a list be followed by the ``AHEAD`` rows that come after it: they are prefetched."""
    for i in range(AHEAD):
        target[U(end + i)] = source[U(i)] if i < size else target[U(max(end - 1, 0))]


@jit
def _finish(features, feature, first, last, offsets, stride, rows, row_weights, ends, next_rows,
            num_next, out_at, out_stride, queue):  # fmt: skip
    """Prefetch what is left of a chunk, and sum it; ``next_rows`` are those of the chunk after."""
    copy_head(next_rows, num_next, rows, ends[last - first])
    prefetch_rest(queue)
    at = features[feature, POSITION] * stride
    given = offsets[at : at + stride + 1]
    sum_chunk(features, feature, first, last, given, rows, row_weights, ends, out_at, out_stride)


@jit
def bags_inside(begin, end, feature, stride):
    """Return which bags of a feature are among the bags ``begin .. end - 1`` of all features."""
    low = min(max(begin - feature * stride, 0), stride)
    return low, max(low, min(end - feature * stride, stride))


@jit
def span_start(thread: Any, num_threads: Any, offsets: Any, features: Any, stride: Any) -> Any:
    """Return the first bag of a thread: bytes of rows asked for are divided evenly."""
    total = np.int64(0)
    for feature in range(features.shape[0]):
        at = features[feature, POSITION] * stride
        total += (offsets[at + stride] - offsets[at]) * features[feature, ROW_BYTES]
    share = total * thread // num_threads
    for feature in range(features.shape[0]):
        at = features[feature, POSITION] * stride
        size = (offsets[at + stride] - offsets[at]) * features[feature, ROW_BYTES]
        if share < size:
            wanted = offsets[at] + share // features[feature, ROW_BYTES]
            bag = np.searchsorted(offsets[at : at + stride + 1], wanted, side="right") - 1
            return feature * stride + bag
        share -= size
    return features.shape[0] * stride


@jit(parallel=True)
def lookup_parallel(num_threads, ids, offsets, weights, features, stride, policy, out_at,
                    out_stride, reads, rare):  # fmt: skip
    """Divide all bags over the threads; returns as ``lookup_span``."""
    counts = np.zeros((num_threads, reads.shape[0], 2), np.int64)
    bads = np.full(num_threads, -1, np.int64)
    whose = np.zeros(num_threads, np.int64)
    bags = features.shape[0] * stride
    for thread in prange(num_threads):
        begin = span_start(thread, num_threads, offsets, features, stride) if thread > 0 else 0
        end = bags
        if thread + 1 < num_threads:
            end = span_start(thread + 1, num_threads, offsets, features, stride)
        bads[thread], whose[thread] = lookup_span(
            begin, end, ids, offsets, weights, features, stride, policy, out_at, out_stride,
            counts[thread], rare,
        )  # fmt: skip
    reads += counts.sum(axis=0)
    for thread in range(num_threads):
        if bads[thread] >= 0:
            return bads[thread], whose[thread]
    return np.int64(-1), np.int64(0)
