"""Triton reduction: rows of a bag are gathered from two memories and added up, a program per bag.

Flow: clusters.py (or raw ids) -> *pool_rows*; *pooled_lookup* does both in one program: the bag is
rewritten into its own slots of a scratch list, a barrier, then pooled from there, so that the
address arithmetic of one bag runs while the rows of others are on their way.
Meaning: ``pool_rows_reference`` and ``pooled_lookup_reference``; numba twin: _lookup.py.

Where a row lies: id r < N is row r of ``rows`` (HBM or pinned host memory, or its copy among the
hot rows); ``N + j`` is stored row j in HBM, from ``num_hbm_sums`` on in host memory.
One pointer is selected per row, then every row is loaded once, 16 bytes a lane. Host memory is
read in place through its mapped address; nothing here is managed memory.

Sums are float32; their order is the device's (a few rows in parallel), not the order of the bag.

Shapes: L slots, B bags, B1 = B + 1, N items, R stored rows, D dimension, W bytes of a row.
"""

# mypy: disable-error-code="no-untyped-def, import-untyped"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace_kernels.clusters import rewrite_bag
from grace_kernels.device_rows import HEADER_BYTES, DeviceRows, DeviceSubsets, RewrittenBags
from grace_kernels.pieces import check_bags, is_narrow

__all__ = ["pool_rows", "pooled_lookup"]

_HEADER_BYTES = tl.constexpr(HEADER_BYTES)


@triton.jit
def _row_pointers(
    row, rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums,
    PITCH: tl.constexpr, STORED: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Return the address of every row; ``PITCH`` elements lie between two rows."""
    at = rows_ptr + row * PITCH  # int64: row * PITCH passes 2**31 at 17M rows of 128
    if STORED:
        stored = row - num_rows
        is_stored = stored >= 0
        in_host = stored >= num_hbm_sums
        if HOT:
            hot = tl.load(hot_ptr + row, mask=(row >= 0) & (row < num_rows), other=-1).to(tl.int64)
            stored = tl.where(hot >= 0, hot, stored)
            is_stored = is_stored | (hot >= 0)
            in_host = in_host & (hot < 0)
        in_hbm = hbm_ptr + stored * PITCH
        there = tl.where(in_host, host_ptr + (stored - num_hbm_sums) * PITCH, in_hbm)
        at = tl.where(is_stored, there, at)
    return at


@triton.jit
def pool_bag(
    row_ids_ptr, weights_ptr, begin, num_ids,
    rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, out_ptr, scale,
    DIM: tl.constexpr, WIDTH: tl.constexpr, PITCH: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, WEIGHTED: tl.constexpr, STORED: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Write ``scale`` times the sum of the rows of one bag to ``out_ptr``.

    ``BITS`` 0: elements are floats, ``WIDTH`` columns. Else elements are bytes: a header, then
    ``WIDTH`` bytes of ``8 // BITS`` values. ``ROWS`` rows are in flight at a time.
    """
    column = tl.arange(0, WIDTH)
    inside = column < DIM // (2 if BITS == 4 else 1)
    lane = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    if BITS > 0:
        high = tl.zeros((ROWS, WIDTH), tl.float32)  # second value of every byte of 4-bit rows
        biases = tl.zeros((ROWS,), tl.float32)
    for first in range(0, num_ids, ROWS):
        slot = begin + first + lane
        row = tl.load(row_ids_ptr + slot, mask=first + lane < num_ids, other=-1).to(tl.int64)
        here = row >= 0
        at = _row_pointers(
            row, rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, PITCH, STORED, HOT
        )
        mask = here[:, None] & inside[None, :]
        if BITS == 0:
            value = tl.load(at[:, None] + column[None, :], mask=mask, other=0).to(tl.float32)
            if WEIGHTED:
                value *= tl.load(weights_ptr + slot, mask=here, other=0)[:, None]
            total += value
        else:
            head = at.to(tl.pointer_type(tl.float16), bitcast=True)
            factor = tl.load(head, mask=here, other=0).to(tl.float32)
            bias = tl.load(head + 1, mask=here, other=0).to(tl.float32)
            # 4 bytes behind the start of an aligned row: 4 bytes a lane is the widest load
            byte = tl.load(at[:, None] + _HEADER_BYTES + column[None, :], mask=mask, other=0)
            if WEIGHTED:
                weight = tl.load(weights_ptr + slot, mask=here, other=0)
                factor *= weight
                bias *= weight
            if BITS == 4:
                high += (byte >> 4).to(tl.float32) * factor[:, None]
                byte = byte & 15
            total += byte.to(tl.float32) * factor[:, None]
            biases += bias
    pooled = tl.sum(total, 0)
    if BITS > 0:
        pooled += tl.sum(biases, 0)
    if BITS == 4:
        tl.store(out_ptr + 2 * column, pooled * scale, mask=inside)
        upper = tl.sum(high, 0) + tl.sum(biases, 0)
        tl.store(out_ptr + 2 * column + 1, upper * scale, mask=inside)
    else:
        tl.store(out_ptr + column, pooled * scale, mask=inside)


@triton.jit
def _mean_scale(num_ids):
    """Return 1 over the length of the bag as it was given, 1 for an empty bag."""
    return 1.0 / tl.maximum(num_ids, 1).to(tl.float32)


@triton.jit
def pool_rows_kernel(
    row_ids_ptr, weights_ptr, offsets_ptr, lengths_ptr,
    rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, out_ptr, out_pitch,
    DIM: tl.constexpr, WIDTH: tl.constexpr, PITCH: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr,
    STORED: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Program ``b`` pools the first ``lengths[b]`` slots of bag ``b``."""
    bag = tl.program_id(0)
    begin = tl.load(offsets_ptr + bag).to(tl.int64)
    num_ids = tl.load(lengths_ptr + bag)
    scale = 1.0
    if MEAN:
        scale = _mean_scale(tl.load(offsets_ptr + bag + 1).to(tl.int64) - begin)
    pool_bag(
        row_ids_ptr, weights_ptr, begin, num_ids,
        rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums,
        out_ptr + bag.to(tl.int64) * out_pitch, scale,
        DIM, WIDTH, PITCH, BITS, ROWS, WEIGHTED, STORED, HOT,
    )  # fmt: skip


@triton.jit
def pooled_lookup_kernel(
    ids_ptr, offsets_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr,
    row_ids_ptr, row_bits_ptr, row_weights_ptr, lengths_ptr, asked_ptr, bad_ptr,
    rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, out_ptr, out_pitch,
    LOG: tl.constexpr, NARROW: tl.constexpr, POLICY: tl.constexpr, CODED: tl.constexpr,
    SUBSETS: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, PITCH: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr,
    STORED: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Program ``b`` rewrites bag ``b`` into its slots of the scratch list and pools it."""
    bag = tl.program_id(0)
    begin = tl.load(offsets_ptr + bag).to(tl.int64)
    num_ids = (tl.load(offsets_ptr + bag + 1).to(tl.int64) - begin).to(tl.int32)
    written, asked = rewrite_bag(
        ids_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, begin, num_ids, num_rows,
        row_ids_ptr, row_bits_ptr, bad_ptr, LOG, NARROW, POLICY, WEIGHTED, CODED, SUBSETS,
    )  # fmt: skip
    tl.store(lengths_ptr + bag, written)
    tl.store(asked_ptr + bag, asked)
    tl.debug_barrier()  # the lanes read rows that other lanes wrote
    scale = 1.0
    if MEAN:
        scale = _mean_scale(num_ids)
    pool_bag(
        row_ids_ptr, row_weights_ptr, begin, written,
        rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums,
        out_ptr + bag.to(tl.int64) * out_pitch, scale,
        DIM, WIDTH, PITCH, BITS, ROWS, WEIGHTED, STORED, HOT,
    )  # fmt: skip


def pool_rows(
    bags: RewrittenBags,
    offsets_B1: Tensor,
    table: DeviceRows,
    out_BD: Tensor,
    *,
    mean: bool,
) -> None:
    """Add up the rows of every bag into ``out_BD``.

    Args:
        bags: Row ids in their slots, a length per bag, weights or None.
        offsets_B1: int32 or int64 ``[B + 1]``: where bags begin; their given lengths divide MEAN.
        table: The rows.
        out_BD: float32 ``[B, D]``, unit stride in D; every row is written.
        mean: Divide by the length of the bag as it was given.

    Raises:
        ValueError: the output has another shape or type.
    """
    num_bags = offsets_B1.numel() - 1
    _check_out(out_BD, num_bags, table.dim)
    rows_in_flight, warps = pool_shape(table.dim, table.bits)
    if num_bags:
        pool_rows_kernel[(num_bags,)](
            bags.rows_L, bags.weights_L, offsets_B1, bags.lengths_B,
            *table.kernel_tensors(), table.rows.shape[0], table.num_hbm_sums,
            out_BD, out_BD.stride(0),
            **table.kernel_constants(), ROWS=rows_in_flight, MEAN=mean,
            WEIGHTED=bags.weights_L is not None, num_warps=warps,
        )  # fmt: skip


def pooled_lookup(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    item_code_N: Tensor,
    table: DeviceRows,
    out_BD: Tensor,
    *,
    num_sums: int,
    mean: bool,
    policy: int,
    bad_ids: Tensor,
    piece: int | None = None,
    subsets: DeviceSubsets | None = None,
) -> tuple[Tensor, Tensor]:
    """Rewrite and pool raw bags with one launch and no host sync.

    Args:
        ids_L: As in ``rewrite_clusters``, like every argument up to ``item_code_N``.
        offsets_B1: Where bags begin.
        weights_L: Weights, or None.
        item_code_N: Packed codes, or empty.
        table: The rows.
        out_BD: float32 ``[B, D]``, unit stride in D; every row is written.
        num_sums: Stored rows R of all clusters.
        mean: Divide by the length of the bag as it was given.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        bad_ids: Counter of bad ids under RAISE, int32 ``[1]``.
        piece: Ids that are sorted together.
        subsets: What splits masks, or None, as in ``rewrite_clusters``.

    Returns:
        int32 ``[B]`` ids asked for and rows read.

    Raises:
        ValueError: as in ``rewrite_clusters`` and ``pool_rows``.
    """
    num_bags, log = check_bags(ids_L, offsets_B1, weights_L, item_code_N, bad_ids, piece)
    _check_out(out_BD, num_bags, table.dim)
    num_rows = table.rows.shape[0]
    wide_rows = num_rows + num_sums >= 2**31
    scratch = torch.empty_like(ids_L, dtype=torch.int64 if wide_rows else torch.int32)
    lengths = torch.empty(num_bags, dtype=torch.int32, device=ids_L.device)
    asked = torch.empty_like(lengths)
    weighted = weights_L is not None
    row_weights: Any = torch.empty_like(weights_L) if weights_L is not None else None
    bits, row_bits = (None if w is None else w.view(torch.int32) for w in (weights_L, row_weights))
    parts, marks = (None, None) if subsets is None else subsets.kernel_tensors()
    num_blocks = num_sums if subsets is None else subsets.num_entries
    if num_bags:
        pooled_lookup_kernel[(num_bags,)](
            ids_L, offsets_B1, bits, item_code_N, parts, marks, scratch, row_bits, row_weights,
            lengths, asked, bad_ids,
            *table.kernel_tensors(), num_rows, table.num_hbm_sums, out_BD, out_BD.stride(0),
            LOG=log, NARROW=is_narrow(log, num_blocks, weighted), POLICY=policy,
            CODED=item_code_N.numel() > 0, SUBSETS=parts is not None, **table.kernel_constants(),
            ROWS=pool_shape(table.dim, table.bits)[0], MEAN=mean, WEIGHTED=weighted,
            num_warps=lookup_warps(table.dim, table.bits, 1 << log),
        )  # fmt: skip
    return asked, lengths


def pool_shape(dim: int, bits: int) -> tuple[int, int]:
    """Return (rows in flight, warps) of a program: at most 64 values a lane and 8 loads in flight.

    Derived from the resource reports of compile_check.py, not from a clock.

    >>> pool_shape(64, 0), pool_shape(128, 0), pool_shape(1024, 0)
    ((16, 2), (16, 4), (8, 8))
    """
    width = 1 << (dim - 1).bit_length()
    rows = min(16, max(1, 8192 // width))
    return rows, min(8, max(1, rows * width // 512))


def lookup_warps(dim: int, bits: int, piece: int) -> int:
    """Return the warps of a program that rewrites pieces of ``piece`` ids, then pools."""
    return max(pool_shape(dim, bits)[1], piece // 128)


def _check_out(out_BD: Tensor, num_bags: int, dim: int) -> None:
    """Refuse an output that the kernels would not fill exactly."""
    if out_BD.shape != (num_bags, dim) or out_BD.dtype != torch.float32 or out_BD.stride(1) != 1:
        raise ValueError(f"output must be float32 [{num_bags}, {dim}], got {list(out_BD.shape)}")
