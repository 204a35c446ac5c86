"""CPU twins of the ops, in numba: rewriting, and rewriting + gather + sum in one pass.

Flow: ops.py registers these for the CPU; meaning in reference.py; cores in _merge.py (which
rows a bag reads) and _sum_rows.py (adding rows up).
Shapes: L ids, B bags, B1 = B + 1, N items, R stored rows, D embedding dimension.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from grace_kernels._merge import (
    EPOCH_SHIFT,
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
from grace_kernels.reference import RAISE

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
CHUNK_IDS = 2048  # ids rewritten before their rows are summed: the address list stays in cache
EMPTY_I32 = np.zeros(0, np.int32)
EMPTY_F32 = np.zeros(0, np.float32)
EMPTY_I64 = np.zeros(0, np.int64)


def rewrite_clusters(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    item_code_N: Ids,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Numba twin of :func:`grace_kernels.reference.rewrite_clusters_reference`.

    Args:
        ids_L: int32 or int64 ``[L]``, raw ids in any order; -1 is padding.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        item_code_N: Packed cluster codes, -1 where the item is in no cluster.

    Returns:
        rows int64, offsets int64 ``[B + 1]``, weights float32 or None; equal to the reference
        row by row.

    Raises:
        BadId: an id is outside ``0 .. N - 1``.
    """
    _, rows, offsets, weights = rewrite_counted(
        ids_L, offsets_B1, weights_L, item_code_N, item_code_N.size, RAISE
    )
    return rows, offsets, weights


def rewrite_counted(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    item_code_N: Ids,
    num_rows: int,
    policy: int,
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Rewrite as :func:`rewrite_clusters` does, under any policy; count the ids asked for.

    Args:
        ids_L: int32 or int64; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        item_code_N: Packed codes, or an empty array where the table has no sums.
        num_rows: Rows N of the table.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        ids asked for (padding and dropped ids left out), then as :func:`rewrite_clusters`.

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    num_ids = int(offsets_B1[-1] - offsets_B1[0])
    weighted = weights_L is not None
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    rows = np.empty(num_ids + 1, np.int64)
    origin = np.empty(num_ids + 1, np.int64) if weighted else EMPTY_I64
    offsets, asked, bad = _rewrite_all(
        ids_L, offsets_B1, bits, item_code_N, num_rows, policy, rows, origin
    )
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]))
    end = int(offsets[-1])
    weights = None if weights_L is None else weights_L[origin[:end]]
    return int(asked), rows[:end], offsets, weights


class BadId(ValueError):
    """An id is outside its table: ``position`` in the ids, ``id`` itself."""

    def __init__(self, position: int, id_: int) -> None:
        super().__init__(f"id {id_} at position {position} is outside the table")
        self.position = position
        self.id = id_


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
                   origin, out, new_offsets, multi, table, masks, scratch, epoch):  # fmt: skip  # type: ignore[no-untyped-def]
    """Rewrite bags ``first .. last - 1`` into ``rows[out:]``.

    Returns:
        (new ``out``, new epoch, ids asked for (padding and dropped ids left out), -1 or the
        position of a bad id); ``new_offsets`` gets the end of each bag.
    """
    generic = weight_bits.size > 0
    asked = np.int64(0)
    for bag in range(first, last):
        before = out
        out, clustered, bad = split_bag(
            ids, offsets[bag], offsets[bag + 1], item_code, num_rows, policy, rows, origin, out, multi
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
                out = merge_bag(multi, clustered, num_rows, table, masks, epoch, rows, out)
        new_offsets[bag - first + 1] = out
    return out, epoch, asked, np.int64(-1)


@njit(nogil=True, cache=True)
def _rewrite_all(ids, offsets, weight_bits, item_code, num_rows, policy, rows, origin):  # type: ignore[no-untyped-def]
    """Rewrite every bag; return the new offsets, ids asked for, position of a bad id or -1."""
    longest = _longest(offsets)
    multi = np.empty((3, longest + 1), np.int64)
    table = np.zeros(num_slots(min(longest, MAX_FAST_IDS)), np.int64)
    masks = np.empty(longest + 1, np.int64)
    scratch = np.empty((4, 0), np.int64)
    new_offsets = np.zeros(offsets.size, np.int64)
    out, epoch, asked, bad = _rewrite_range(
        ids, offsets, 0, offsets.size - 1, weight_bits, item_code, num_rows, policy, rows, origin, 0,
        new_offsets, multi, table, masks, scratch, 0,
    )  # fmt: skip
    return new_offsets, asked, bad


@dataclass(frozen=True)
class TableRows:
    """Where the rows of one table lie, as numpy arrays over the tensors' own memory.

    Attributes:
        rows_ND: Original rows, float32 or float16.
        hbm_RD: Stored rows of the fast tier: sums first, then hot rows.
        host_RD: Stored rows of the host tier: the sums that follow.
        item_code_N: Packed cluster codes, or empty.
        hot_row_N: int32 row of ``hbm_RD`` that holds a copy of the item, -1 if none; or empty.
        num_hbm_sums: Sums in ``hbm_RD``.
    """

    rows_ND: npt.NDArray[Any]
    hbm_RD: npt.NDArray[Any]
    host_RD: npt.NDArray[Any]
    item_code_N: Ids
    hot_row_N: npt.NDArray[np.int32]
    num_hbm_sums: int


def pooled_lookup(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    table: TableRows,
    out_BD: npt.NDArray[np.float32],
    *,
    mean: bool,
    policy: int,
    num_threads: int,
) -> tuple[int, int]:
    """Rewrite, gather and sum the bags of one feature into ``out_BD``.

    Args:
        ids_L: int32 or int64; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        table: The rows.
        out_BD: float32 ``[B, D]``, rows contiguous in D; overwritten.
        mean: Divide by the length of the bag as given.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        num_threads: Threads the bags are divided over.

    Returns:
        (ids asked for, rows read): ids without padding and dropped ones.

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    weights = weights_L if weights_L is not None else EMPTY_F32
    args = (
        ids_L, offsets_B1, bits, weights, table.item_code_N, table.hot_row_N, table.rows_ND.shape[0],
        table.rows_ND.ctypes.data, table.hbm_RD.ctypes.data, table.host_RD.ctypes.data,
        table.num_hbm_sums, table.rows_ND.shape[1], table.rows_ND.itemsize == 2, mean, policy,
        out_BD.ctypes.data, out_BD.strides[0],
    )  # fmt: skip
    bags = offsets_B1.size - 1
    if num_threads == 1 or bags < 2 * num_threads:
        asked, read, bad = _lookup_range(0, bags, *args)
    else:
        asked, read, bad = _lookup_parallel(num_threads, *args)
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]))
    return int(asked), int(read)


@njit(nogil=True, cache=True)
def _lookup_range(first, last, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                  plain_at, hbm_at, host_at, num_hbm_sums, dim, half, mean, policy, out_at,
                  out_stride):  # fmt: skip  # type: ignore[no-untyped-def]
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
    masks = np.empty(longest + 1, np.int64)
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
            ends, multi, table, masks, scratch, epoch,
        )  # fmt: skip
        if bad >= 0:
            return asked, read, bad
        asked += wanted
        _rows_to_addresses(rows, count, num_rows, hot_row, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes)
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
                    weighted_sum_bag_f16(rows.ctypes.data, row_weights.ctypes.data, ends[place], ends[place + 1], out, dim, divisor)
                else:
                    weighted_sum_bag_f32(rows.ctypes.data, row_weights.ctypes.data, ends[place], ends[place + 1], out, dim, divisor)
            elif half:
                sum_bag_f16(rows.ctypes.data, 0, ends[place], ends[place + 1], out, dim, divisor)
            else:
                sum_bag_f32(rows.ctypes.data, 0, ends[place], ends[place + 1], out, dim, divisor)
        read += count
        begin = stop
    return asked, read, np.int64(-1)


@njit(nogil=True, cache=True)
def _rows_to_addresses(rows, count, num_rows, hot_row, plain_at, hbm_at, host_at, num_hbm_sums,
                       row_bytes):  # fmt: skip  # type: ignore[no-untyped-def]
    """Turn row ids into absolute addresses in place, without a branch on the row."""
    if hot_row.size > 0:  # a hot row is addressed as a stored row of the fast tier
        for i in range(count):
            row = rows[i]
            if row < num_rows and hot_row[row] >= 0:
                rows[i] = hbm_at + np.int64(hot_row[row]) * row_bytes
            else:
                rows[i] = _address(row, num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes)
        return
    for i in range(count):
        rows[i] = _address(rows[i], num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes)


@njit(nogil=True, cache=True)
def _address(row, num_rows, plain_at, hbm_at, host_at, num_hbm_sums, row_bytes):  # type: ignore[no-untyped-def]
    """Return the address of a row: plain below N, then sums of the fast tier, then of host."""
    plain = (row - num_rows) >> 63  # -1 or 0
    in_hbm = ((row - num_rows - num_hbm_sums) >> 63) & ~plain
    in_host = ~plain & ~in_hbm
    base = (plain_at & plain) | (hbm_at & in_hbm) | (host_at & in_host)
    skipped = (num_rows & ~plain) + (num_hbm_sums & in_host)
    return base + (row - skipped) * row_bytes


@njit(nogil=True, cache=True, parallel=True)
def _lookup_parallel(num_threads, ids, offsets, weight_bits, weights, item_code, hot_row, num_rows,
                     plain_at, hbm_at, host_at, num_hbm_sums, dim, half, mean, policy, out_at,
                     out_stride):  # fmt: skip  # type: ignore[no-untyped-def]
    """Divide the bags over the threads by number of ids."""
    bags = offsets.size - 1
    asks = np.zeros(num_threads, np.int64)
    reads = np.zeros(num_threads, np.int64)
    bads = np.full(num_threads, -1, np.int64)
    total = offsets[bags] - offsets[0]
    for thread in prange(num_threads):
        first = np.searchsorted(offsets[: bags + 1], offsets[0] + total * thread // num_threads)
        last = np.searchsorted(offsets[: bags + 1], offsets[0] + total * (thread + 1) // num_threads)
        first = 0 if thread == 0 else first
        last = bags if thread == num_threads - 1 else last
        asked, read, bad = _lookup_range(
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
