"""Triton reduction: rows of a bag are gathered from two memories and added up, a program per bag.

Flow: clusters.py (or raw ids) -> *pool_rows*; *pooled_lookup* does both in one program: the bag is
rewritten into its own slots of a scratch list, a barrier, then pooled from there, so that the
address arithmetic of one bag runs while the rows of others are on their way.
Meaning: ``pool_rows_reference`` and ``pooled_lookup_reference``; numba twin: _lookup.py.

Where a row lies: id r < N is row r of ``rows`` (HBM or pinned host memory, or its copy among the
hot rows); ``N + j`` is stored row j of the fast tier, from ``num_hbm_sums`` on of the host tier.
One pointer is selected per row, then every row is loaded once, 16 bytes a lane. Host memory is
read in place through its mapped address; nothing here is managed memory.

Row formats: float32, float16, bfloat16; int8 and int4 as fbgemm lays them out: float16 scale,
float16 bias, then D values of 8 or 4 bits (low half first), maybe padding; value * scale + bias.
Sums are float32; their order is the device's (a few rows in parallel), not the order of the bag.

Shapes: L slots, B bags, B1 = B + 1, N items, R stored rows, D dimension, W bytes of a row.
"""

# mypy: disable-error-code="no-untyped-def, import-untyped"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace_kernels.clusters import RewrittenBags, check_bags, is_narrow, rewrite_bag

__all__ = ["DeviceRows", "pool_rows", "pooled_lookup"]

HEADER_BYTES = 4  # float16 scale and float16 bias in front of a quantised row
FLOAT_ROWS = (torch.float32, torch.float16, torch.bfloat16)


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

    ``BITS`` 0: elements are floats, ``WIDTH`` columns. Else elements are int32 words, one header
    and ``WIDTH`` words of ``32 // BITS`` values. ``ROWS`` rows are in flight at a time.
    """
    column = tl.arange(0, WIDTH)
    lane = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    if BITS > 0:
        PER_WORD: tl.constexpr = 32 // BITS
        shift = tl.arange(0, PER_WORD) * BITS
        packed = tl.zeros((ROWS, WIDTH, PER_WORD), tl.float32)
        biases = tl.zeros((ROWS,), tl.float32)
    for first in range(0, num_ids, ROWS):
        here = first + lane < num_ids
        slot = begin + first + lane
        row = tl.load(row_ids_ptr + slot, mask=here, other=-1).to(tl.int64)
        here = row >= 0
        at = _row_pointers(
            row, rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, PITCH, STORED, HOT
        )
        if BITS == 0:
            mask = here[:, None] & (column < DIM)[None, :]
            value = tl.load(at[:, None] + column[None, :], mask=mask, other=0).to(tl.float32)
            if WEIGHTED:
                value *= tl.load(weights_ptr + slot, mask=here, other=0)[:, None]
            total += value
        else:
            head = tl.load(at, mask=here, other=0)
            factor = (head & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            bias = (head >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            mask = here[:, None] & (column < DIM // PER_WORD)[None, :]
            word = tl.load(at[:, None] + 1 + column[None, :], mask=mask, other=0)
            if WEIGHTED:
                weight = tl.load(weights_ptr + slot, mask=here, other=0)
                factor *= weight
                bias *= weight
            value = (word[:, :, None] >> shift[None, None, :]) & ((1 << BITS) - 1)
            packed += value.to(tl.float32) * factor[:, None, None]
            biases += bias
    if BITS == 0:
        tl.store(out_ptr + column, tl.sum(total, 0) * scale, mask=column < DIM)
    else:
        place = column[:, None] * PER_WORD + tl.arange(0, PER_WORD)[None, :]
        pooled = (tl.sum(packed, 0) + tl.sum(biases, 0)) * scale
        tl.store(out_ptr + place, pooled, mask=place < DIM)


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
    ids_ptr, offsets_ptr, bits_ptr, code_ptr, row_ids_ptr, row_bits_ptr, row_weights_ptr,
    lengths_ptr, asked_ptr, bad_ptr,
    rows_ptr, hbm_ptr, host_ptr, hot_ptr, num_rows, num_hbm_sums, out_ptr, out_pitch,
    LOG: tl.constexpr, NARROW: tl.constexpr, POLICY: tl.constexpr, CODED: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, PITCH: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr,
    STORED: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Program ``b`` rewrites bag ``b`` into its slots of the scratch list and pools it."""
    bag = tl.program_id(0)
    begin = tl.load(offsets_ptr + bag).to(tl.int64)
    num_ids = (tl.load(offsets_ptr + bag + 1).to(tl.int64) - begin).to(tl.int32)
    written, asked = rewrite_bag(
        ids_ptr, bits_ptr, code_ptr, begin, num_ids, num_rows, row_ids_ptr, row_bits_ptr, bad_ptr,
        LOG, NARROW, POLICY, WEIGHTED, CODED,
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


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """Where the rows of one table lie; every tensor is on the device or in pinned host memory.

    Attributes:
        rows: ``[N, D]`` float rows, or uint8 ``[N, W]`` quantised rows.
        dim: Dimension D.
        bits: 0 for float rows, 8 or 4.
        hbm: ``[R', ...]`` stored rows of the fast tier: sums, then hot rows; None: no stored rows.
        host: ``[R'', ...]`` the sums that follow, or None.
        hot_row_N: int32 row of ``hbm`` that copies the item, -1 if none; or None.
        num_hbm_sums: Sums in ``hbm``.
    """

    rows: Tensor
    dim: int
    bits: int = 0
    hbm: Tensor | None = None
    host: Tensor | None = None
    hot_row_N: Tensor | None = None
    num_hbm_sums: int = 0

    def __post_init__(self) -> None:
        """Check types and sizes once.

        Raises:
            ValueError: a row format without a kernel, or tensors of different formats.
        """
        if self.bits not in (0, 4, 8):
            raise ValueError(f"rows have 0 (float), 8 or 4 bits, got {self.bits}")
        if (self.rows.dtype in FLOAT_ROWS) != (self.bits == 0):
            raise ValueError(f"no kernel reads {self.rows.dtype} rows of {self.bits} bits")
        if self.bits:
            self._check_quantised()
        elif self.rows.shape[1] != self.dim:
            raise ValueError(f"rows have {self.rows.shape[1]} columns, dim is {self.dim}")
        if self.hbm is None and (self.host is not None or self.hot_row_N is not None):
            raise ValueError("stored rows need a fast tier, give an empty one")
        for tensor in (self.rows, self.hbm, self.host):
            if tensor is not None and (
                tensor.dtype != self.rows.dtype
                or tensor.shape[1] != self.rows.shape[1]
                or not tensor.is_contiguous()
            ):
                raise ValueError("stored rows must be contiguous and of the format of the table")
        if self.hot_row_N is not None and self.hot_row_N.dtype != torch.int32:
            raise ValueError(f"hot rows must be int32, got {self.hot_row_N.dtype}")

    def _check_quantised(self) -> None:
        """Quantised rows are read as 32-bit words: nothing may cross one."""
        row_bytes, words = self.rows.shape[1], self.dim * self.bits // 8
        if self.rows.dtype != torch.uint8 or row_bytes % 4 or self.dim * self.bits % 32:
            raise ValueError(
                f"rows of {self.bits} bits must be uint8, of whole 4-byte words; "
                f"got {self.rows.dtype}, {row_bytes} bytes, dim {self.dim}"
            )
        if row_bytes < HEADER_BYTES + words:
            raise ValueError(f"{row_bytes} bytes are too few for {self.dim} values and a header")

    def kernel_tensors(self) -> tuple[Tensor | None, ...]:
        """Return rows, fast tier, host tier and hot map as the kernels take them."""
        tiers = (self.rows, self.hbm, self.hbm if self.host is None else self.host)
        if self.bits:
            tiers = tuple(None if t is None else t.view(torch.int32) for t in tiers)  # type: ignore[assignment]
        return (*tiers, self.hot_row_N)

    def kernel_constants(self) -> dict[str, int]:
        """Return the sizes the kernels are compiled for."""
        columns = self.dim * self.bits // 32 if self.bits else self.dim
        pitch = self.rows.shape[1] // 4 if self.bits else self.dim
        return {
            "DIM": self.dim,
            "WIDTH": 1 << (columns - 1).bit_length(),
            "PITCH": pitch,
            "BITS": self.bits,
            "STORED": self.hbm is not None,
            "HOT": self.hot_row_N is not None,
        }


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
    bits, row_bits = (
        None if w is None else w.view(torch.int32) for w in (weights_L, row_weights)
    )
    rows_in_flight, warps = pool_shape(table.dim, table.bits)
    if num_bags:
        pooled_lookup_kernel[(num_bags,)](
            ids_L, offsets_B1, bits, item_code_N, scratch, row_bits, row_weights,
            lengths, asked, bad_ids,
            *table.kernel_tensors(), num_rows, table.num_hbm_sums, out_BD, out_BD.stride(0),
            LOG=log, NARROW=is_narrow(log, num_sums, weighted), POLICY=policy,
            CODED=item_code_N.numel() > 0, **table.kernel_constants(), ROWS=rows_in_flight,
            MEAN=mean, WEIGHTED=weighted, num_warps=max(warps, (1 << log) // 128),
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


def _check_out(out_BD: Tensor, num_bags: int, dim: int) -> None:
    """Refuse an output that the kernels would not fill exactly."""
    if out_BD.shape != (num_bags, dim) or out_BD.dtype != torch.float32 or out_BD.stride(1) != 1:
        raise ValueError(f"output must be float32 [{num_bags}, {dim}], got {list(out_BD.shape)}")
