"""Triton building of stored rows: each is the sum of the original rows of its set.

Flow: StoredSums + weights -> *build_rows* -> stored rows.  Meaning: ``build_rows_reference``.
A program forms ``SETS`` sums side by side; each set is added up in its own order in float32, so
the result does not depend on how sets share programs.
Shapes: N items, R stored rows, R1 = R + 1, S items of all sets together, D dimension.
"""

# mypy: disable-error-code="no-untyped-def, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

from grace_kernels.device_rows import FLOAT_ROWS

__all__ = ["build_rows"]


@triton.jit
def build_rows_kernel(
    rows_ptr, indptr_ptr, items_ptr, num_sets, out_ptr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, SETS: tl.constexpr,
):  # fmt: skip
    """Program ``p`` builds the stored rows ``p * SETS .. (p + 1) * SETS - 1``."""
    stored = tl.program_id(0).to(tl.int64) * SETS + tl.arange(0, SETS)
    exists = stored < num_sets
    begin = tl.load(indptr_ptr + stored, mask=exists, other=0)
    size = tl.load(indptr_ptr + stored + 1, mask=exists, other=0) - begin
    column = tl.arange(0, WIDTH)
    total = tl.zeros((SETS, WIDTH), tl.float32)
    for place in range(0, tl.max(size, 0).to(tl.int32)):
        here = place < size
        item = tl.load(items_ptr + begin + place, mask=here, other=0).to(tl.int64)
        mask = here[:, None] & (column < DIM)[None, :]
        at = rows_ptr + item[:, None] * DIM + column[None, :]
        total += tl.load(at, mask=mask, other=0).to(tl.float32)
    out = out_ptr + stored[:, None] * DIM + column[None, :]
    mask = exists[:, None] & (column < DIM)[None, :]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=mask)


def build_rows(rows_ND: Tensor, set_indptr_R1: Tensor, set_items_S: Tensor, out_RD: Tensor) -> None:
    """Write the sum of every set into ``out_RD``.

    Args:
        rows_ND: float32, float16 or bfloat16 ``[N, D]``, contiguous.
        set_indptr_R1: int64 ``[R + 1]``, may start above 0 (a slice of the indptr of all sets).
        set_items_S: int32 or int64 item ids of all sets, each in ``0 .. N - 1``.
        out_RD: ``[R, D]`` of the type of ``rows_ND``, contiguous; every row is written.

    Raises:
        ValueError: a type or shape is not one of the above.
    """
    num_sets, dim = set_indptr_R1.numel() - 1, rows_ND.shape[1]
    if rows_ND.dtype not in FLOAT_ROWS or out_RD.dtype != rows_ND.dtype:
        raise ValueError(f"sums of {rows_ND.dtype} rows cannot be written as {out_RD.dtype}")
    if out_RD.shape != (num_sets, dim):
        raise ValueError(f"output must be [{num_sets}, {dim}], got {list(out_RD.shape)}")
    if not (rows_ND.is_contiguous() and out_RD.is_contiguous() and set_items_S.is_contiguous()):
        raise ValueError("rows, items and output must be contiguous")
    sets, warps = build_shape(dim)
    if num_sets:
        build_rows_kernel[(-(-num_sets // sets),)](
            rows_ND, set_indptr_R1, set_items_S, num_sets, out_RD,
            DIM=dim, WIDTH=1 << (dim - 1).bit_length(), SETS=sets, num_warps=warps,
        )  # fmt: skip


def build_shape(dim: int) -> tuple[int, int]:
    """Return (sets, warps) of a program: 16 values a lane.

    >>> build_shape(64), build_shape(256)
    ((16, 2), (8, 4))
    """
    width = 1 << (dim - 1).bit_length()
    sets = min(16, max(1, 2048 // width))
    return sets, min(8, max(1, sets * width // 512))
