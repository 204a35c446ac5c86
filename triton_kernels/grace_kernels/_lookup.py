"""Numba core of the CPU ops: all bags of a feature, rewritten, gathered and summed.

Flow: cpu.py calls rewrite_all, lookup_range and lookup_parallel; _merge.py decides which rows a
bag reads, _sum_rows.py adds them up.
"""

from typing import Any

import numpy as np
from numba import prange

from grace_kernels._jit import jit
from grace_kernels._merge import (
    MAX_EPOCH,
    MAX_FAST_IDS,
    merge_bag,
    merge_weighted_bag,
    num_slots,
    split_bag,
)
from grace_kernels._sum_rows import (
    AHEAD,
    CACHE_LINE,
    prefetch,
    sum_bag_f16,
    sum_bag_f32,
    weighted_sum_bag_f16,
    weighted_sum_bag_f32,
)

NO_HOT_ROWS = np.zeros(0, np.int32)
CHUNK_IDS = 2048  # ids rewritten before their rows are summed: the address list stays in cache


@jit
def first_misfit(offsets: Any, lengths: Any) -> Any:
    """Return the first bag that ends before it begins or has another length than given, or -1.

    Args:
        offsets: int64 ``[B + 1]``.
        lengths: Integers ``[B]``, or an empty array where only offsets are given.
    """
    for bag in range(offsets.size - 1):
        length = offsets[bag + 1] - offsets[bag]
        if length < 0 or (lengths.size > 0 and length != lengths[bag]):
            return bag
    return -1


@jit
def _longest(offsets: Any) -> Any:
    """Return the length of the longest bag."""
    longest = 0
    for bag in range(offsets.size - 1):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    return longest


@jit
def _scratch(longest, weighted):
    """Return the scratch of merging: clustered ids, hash table, table of the weighted path."""
    multi = np.empty((3, longest + 1), np.int64)
    table = np.zeros(num_slots(min(longest, MAX_FAST_IDS)), np.int64)
    wide = np.empty((4, num_slots(longest) if weighted else 0), np.int64)
    return multi, table, wide


@jit
def _rewrite_range(ids, offsets, first, last, weight_bits, item_code, hot_row, num_rows, policy,
                   layout, rows, origin, ends, scratch, epoch):  # fmt: skip
    """Rewrite bags ``first .. last - 1`` into ``rows``.

    Returns:
        (new epoch, ids asked for (padding and dropped ids left out), -1 or the position of a
        bad id); ``ends[k + 1]`` gets the end of the k-th bag.
    """
    multi, table, wide = scratch
    generic = weight_bits.size > 0 or item_code.itemsize == 8  # wide codes have large blocks
    asked = np.int64(0)
    out = np.int64(0)
    for bag in range(first, last):
        before = out
        out, clustered, bad = split_bag(
            ids, offsets[bag], offsets[bag + 1], item_code, hot_row, num_rows, policy, layout, rows,
            origin, out, multi,
        )  # fmt: skip
        if bad >= 0:
            return epoch, asked, bad
        asked += out - before + clustered
        if clustered > 0:
            if generic or clustered >= MAX_FAST_IDS:
                if wide.shape[1] < num_slots(clustered):
                    wide = np.zeros((4, num_slots(clustered)), np.int64)
                out = merge_weighted_bag(
                    multi, clustered, layout, weight_bits, wide, rows, origin, out
                )
            else:
                epoch += 1
                if epoch > MAX_EPOCH:
                    table[:] = 0
                    epoch = 1
                out = merge_bag(multi, clustered, layout, table, epoch, rows, out)
        ends[bag - first + 1] = out
    return epoch, asked, np.int64(-1)


@jit
def rewrite_all(ids, offsets, weight_bits, item_code, num_rows, policy, rows, origin):
    """Rewrite every bag into row ids; return ends, ids asked for, position of a bad id or -1."""
    row_ids = (np.int64(0), num_rows, num_rows, np.int64(1) << 62, np.int64(1))
    ends = np.zeros(offsets.size, np.int64)
    _, asked, bad = _rewrite_range(
        ids, offsets, 0, offsets.size - 1, weight_bits, item_code, NO_HOT_ROWS, num_rows, policy,
        row_ids, rows, origin, ends, _scratch(_longest(offsets), weight_bits.size > 0), 0,
    )  # fmt: skip
    return ends, asked, bad


@jit
def lookup_range(first, last, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                 layout, dim, half, mean, policy, out_at, out_stride):  # fmt: skip
    """Serve bags ``first .. last - 1``, a chunk of about CHUNK_IDS ids at a time.

    Returns:
        (ids asked for, rows read, -1 or the position of a bad id).
    """
    longest = np.int64(1)
    for bag in range(first, last):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    weighted = weights.size > 0
    rows = np.empty(CHUNK_IDS + longest + AHEAD + 1, np.int64)
    origin = np.empty(CHUNK_IDS + longest + 1 if weighted else 0, np.int64)
    row_weights = np.empty(CHUNK_IDS + longest + 1 if weighted else 0, np.float32)
    ends = np.zeros(CHUNK_IDS + 2, np.int64)
    scratch = _scratch(longest, weighted)
    epoch, asked, read = 0, np.int64(0), np.int64(0)
    begin = first
    while begin < last:
        stop = begin + 1
        while (stop < last and offsets[stop + 1] - offsets[begin] <= CHUNK_IDS
               and stop - begin < CHUNK_IDS):  # fmt: skip
            stop += 1
        epoch, wanted, bad = _rewrite_range(
            ids, offsets, begin, stop, weight_bits, item_code, hot_row, num_rows, policy, layout,
            rows, origin, ends, scratch, epoch,
        )  # fmt: skip
        if bad >= 0:
            return asked, read, bad
        count = ends[stop - begin]
        asked += wanted
        read += count
        for i in range(count if weighted else 0):
            row_weights[i] = weights[origin[i]]
        _sum_chunk(
            begin,
            stop,
            offsets,
            rows,
            row_weights,
            ends,
            layout,
            dim,
            half,
            mean,
            out_at,
            out_stride,
        )
        begin = stop
    return asked, read, np.int64(-1)


@jit
def _sum_chunk(begin, stop, offsets, rows, row_weights, ends, layout, dim, half, mean, out_at,
               out_stride):  # fmt: skip
    """Sum the rows at the addresses ``rows`` into the outputs of bags ``begin .. stop - 1``."""
    plain_at, _, _, _, row_bytes = layout
    count = ends[stop - begin]
    for i in range(AHEAD):
        rows[count + i] = rows[count - 1] if count > 0 else plain_at
        if i < count:
            for line in range(0, row_bytes, CACHE_LINE):
                prefetch(rows[i] + line)
    addresses, weights_at = rows.ctypes.data, row_weights.ctypes.data
    for bag in range(begin, stop):
        a, b = ends[bag - begin], ends[bag - begin + 1]
        length = offsets[bag + 1] - offsets[bag]
        divisor = np.float32(length) if mean and length > 1 else np.float32(1.0)
        out = out_at + bag * out_stride
        if row_weights.size > 0:
            if half:
                weighted_sum_bag_f16(addresses, weights_at, a, b, out, dim, divisor)
            else:
                weighted_sum_bag_f32(addresses, weights_at, a, b, out, dim, divisor)
        elif half:
            sum_bag_f16(addresses, weights_at, a, b, out, dim, divisor)
        else:
            sum_bag_f32(addresses, weights_at, a, b, out, dim, divisor)


@jit(parallel=True)
def lookup_parallel(num_threads, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                    layout, dim, half, mean, policy, out_at, out_stride):  # fmt: skip
    """Divide the bags over the threads by number of ids; returns as ``lookup_range``."""
    bags = offsets.size - 1
    asks = np.zeros(num_threads, np.int64)
    reads = np.zeros(num_threads, np.int64)
    bads = np.full(num_threads, -1, np.int64)
    total = offsets[bags] - offsets[0]
    for thread in prange(num_threads):
        share = offsets[0] + total * thread // num_threads
        next_share = offsets[0] + total * (thread + 1) // num_threads
        first = np.searchsorted(offsets[: bags + 1], share) if thread > 0 else 0
        last = (
            np.searchsorted(offsets[: bags + 1], next_share) if thread + 1 < num_threads else bags
        )
        asks[thread], reads[thread], bads[thread] = lookup_range(
            first, last, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows, layout,
            dim, half, mean, policy, out_at, out_stride,
        )  # fmt: skip
    first_bad = np.int64(-1)
    for thread in range(num_threads):
        if bads[thread] >= 0 and (first_bad < 0 or bads[thread] < first_bad):
            first_bad = bads[thread]
    return asks.sum(), reads.sum(), first_bad
