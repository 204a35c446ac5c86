"""Numba core of the CPU ops: all bags of a feature, rewritten, gathered and summed.

Flow: cpu.py calls rewrite_all, lookup_range and lookup_parallel; _merge.py decides which rows a
bag reads, _sum_rows.py adds them up.
"""

from typing import Any

import numpy as np
from numba import njit, prange

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

CHUNK_IDS = 2048  # ids rewritten before their rows are summed: the address list stays in cache


@njit(nogil=True, cache=True)
def first_fall(offsets: Any) -> Any:
    """Return the first bag whose end lies before its begin, or -1."""
    for bag in range(offsets.size - 1):
        if offsets[bag + 1] < offsets[bag]:
            return bag
    return -1


@njit(nogil=True, cache=True)
def _longest(offsets: Any) -> Any:
    """Return the length of the longest bag."""
    longest = 0
    for bag in range(offsets.size - 1):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    return longest


@njit(nogil=True, cache=True)
def _rewrite_range(ids, offsets, first, last, weight_bits, item_code, num_rows, policy, rows,
                   origin, out, new_offsets, multi, table, scratch, epoch):  # fmt: skip
    """Rewrite bags ``first .. last - 1`` into ``rows[out:]``.

    Returns:
        (new ``out``, new epoch, ids asked for (padding and dropped ids left out), -1 or the
        position of a bad id); ``new_offsets`` gets the end of each bag.
    """
    generic = weight_bits.size > 0 or item_code.itemsize == 8  # wide codes have large blocks
    asked = np.int64(0)
    for bag in range(first, last):
        before = out
        out, clustered, bad = split_bag(
            ids,
            offsets[bag],
            offsets[bag + 1],
            item_code,
            num_rows,
            policy,
            rows,
            origin,
            out,
            multi,
        )
        if bad >= 0:
            return out, epoch, asked, bad
        asked += out - before + clustered
        if clustered > 0:
            if generic or clustered >= MAX_FAST_IDS:
                if scratch.shape[1] < num_slots(clustered):
                    scratch = np.zeros((4, num_slots(clustered)), np.int64)
                out = merge_weighted_bag(
                    multi, clustered, num_rows, weight_bits, scratch, rows, origin, out
                )
            else:
                epoch += 1
                if epoch > MAX_EPOCH:
                    table[:] = 0
                    epoch = 1
                out = merge_bag(multi, clustered, num_rows, table, epoch, rows, out)
        new_offsets[bag - first + 1] = out
    return out, epoch, asked, np.int64(-1)


@njit(nogil=True, cache=True)
def rewrite_all(ids, offsets, weight_bits, item_code, num_rows, policy, rows, origin):
    """Rewrite every bag; return the new offsets, ids asked for, position of a bad id or -1."""
    longest = _longest(offsets)
    multi = np.empty((3, longest + 1), np.int64)
    table = np.zeros(num_slots(min(longest, MAX_FAST_IDS)), np.int64)
    scratch = np.empty((4, 0), np.int64)
    new_offsets = np.zeros(offsets.size, np.int64)
    _, _, asked, bad = _rewrite_range(
        ids, offsets, 0, offsets.size - 1, weight_bits, item_code, num_rows, policy, rows, origin, 0,
        new_offsets, multi, table, scratch, 0,
    )  # fmt: skip
    return new_offsets, asked, bad


@njit(nogil=True, cache=True)
def lookup_range(first, last, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                  plain_at, hbm_at, host_at, num_hbm_sums, dim, half, mean, policy, out_at,
                  out_stride):  # fmt: skip
    """Serve bags ``first .. last - 1``, a chunk of about CHUNK_IDS ids at a time."""
    longest = 1
    for bag in range(first, last):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    capacity = CHUNK_IDS + longest
    rows = np.empty(capacity + AHEAD + 1, np.int64)
    weighted = weights.size > 0
    origin = np.empty(capacity + 1 if weighted else 0, np.int64)
    row_weights = np.empty(capacity + 1 if weighted else 0, np.float32)
    multi = np.empty((3, longest + 1), np.int64)
    table = np.zeros(num_slots(min(longest, MAX_FAST_IDS)), np.int64)
    scratch = np.empty((4, num_slots(longest) if weighted else 0), np.int64)
    ends = np.zeros(CHUNK_IDS + 2, np.int64)
    row_bytes = dim * (2 if half else 4)
    epoch = 0
    asked = np.int64(0)
    read = np.int64(0)
    begin = first
    while begin < last:
        stop = begin + 1
        while (stop < last and offsets[stop + 1] - offsets[begin] <= CHUNK_IDS
               and stop - begin < CHUNK_IDS):  # fmt: skip
            stop += 1
        count, epoch, wanted, bad = _rewrite_range(
            ids, offsets, begin, stop, weight_bits, item_code, num_rows, policy, rows, origin, 0,
            ends, multi, table, scratch, epoch,
        )  # fmt: skip
        if bad >= 0:
            return asked, read, bad
        asked += wanted
        _rows_to_addresses(
            rows, count, num_rows, hot_row, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes
        )
        for i in range(AHEAD):
            rows[count + i] = rows[count - 1] if count > 0 else plain_at
            if i < count:
                for line in range(0, row_bytes, CACHE_LINE):
                    prefetch(rows[i] + line)
        for i in range(count if weighted else 0):
            row_weights[i] = weights[origin[i]]
        for bag in range(begin, stop):
            place = bag - begin
            length = offsets[bag + 1] - offsets[bag]
            divisor = np.float32(length) if mean and length > 1 else np.float32(1.0)
            out = out_at + bag * out_stride
            if weighted:
                if half:
                    weighted_sum_bag_f16(
                        rows.ctypes.data,
                        row_weights.ctypes.data,
                        ends[place],
                        ends[place + 1],
                        out,
                        dim,
                        divisor,
                    )
                else:
                    weighted_sum_bag_f32(
                        rows.ctypes.data,
                        row_weights.ctypes.data,
                        ends[place],
                        ends[place + 1],
                        out,
                        dim,
                        divisor,
                    )
            elif half:
                sum_bag_f16(rows.ctypes.data, 0, ends[place], ends[place + 1], out, dim, divisor)
            else:
                sum_bag_f32(rows.ctypes.data, 0, ends[place], ends[place + 1], out, dim, divisor)
        read += count
        begin = stop
    return asked, read, np.int64(-1)


@njit(nogil=True, cache=True)
def _rows_to_addresses(rows, count, num_rows, hot_row, plain_at, hbm_at, host_at, num_hbm_sums,
                       row_bytes):  # fmt: skip
    """Turn row ids into absolute addresses in place, without a branch on the row."""
    if hot_row.size > 0:  # a hot row is addressed as a stored row of the fast tier
        for i in range(count):
            row = rows[i]
            if row < num_rows and hot_row[row] >= 0:
                rows[i] = hbm_at + np.int64(hot_row[row]) * row_bytes
            else:
                rows[i] = _address(
                    row, num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes
                )
        return
    for i in range(count):
        rows[i] = _address(rows[i], num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes)


@njit(nogil=True, cache=True)
def _address(row, num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes):
    """Return the address of a row: plain below N, then sums of the fast tier, then of host."""
    plain = (row - num_rows) >> 63  # -1 or 0
    in_hbm = ((row - num_rows - num_hbm_sums) >> 63) & ~plain
    in_host = ~plain & ~in_hbm
    base = (plain_at & plain) | (hbm_at & in_hbm) | (host_at & in_host)
    skipped = (num_rows & ~plain) + (num_hbm_sums & in_host)
    return base + (row - skipped) * row_bytes


@njit(nogil=True, cache=True, parallel=True)
def lookup_parallel(num_threads, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                     plain_at, hbm_at, host_at, num_hbm_sums, dim, half, mean, policy, out_at,
                     out_stride):  # fmt: skip
    """Divide the bags over the threads by number of ids."""
    bags = offsets.size - 1
    asks = np.zeros(num_threads, np.int64)
    reads = np.zeros(num_threads, np.int64)
    bads = np.full(num_threads, -1, np.int64)
    total = offsets[bags] - offsets[0]
    for thread in prange(num_threads):
        first = np.searchsorted(offsets[: bags + 1], offsets[0] + total * thread // num_threads)
        last = np.searchsorted(
            offsets[: bags + 1], offsets[0] + total * (thread + 1) // num_threads
        )
        first = 0 if thread == 0 else first
        last = bags if thread == num_threads - 1 else last
        asked, read, bad = lookup_range(
            first, last, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows, plain_at,
            hbm_at, host_at, num_hbm_sums, dim, half, mean, policy, out_at, out_stride,
        )  # fmt: skip
        asks[thread] = asked
        reads[thread] = read
        bads[thread] = bad
    first_bad = -1
    for thread in range(num_threads):
        if bads[thread] >= 0 and (first_bad < 0 or bads[thread] < first_bad):
            first_bad = bads[thread]
    return asks.sum(), reads.sum(), first_bad
