"""The ways in which the kernels are compiled that compile_check.py holds to its limits.

Flow: *variants* -> compile_check.py.  Warps and rows in flight come from the launchers' own
functions, so what is checked is what is launched.
Shapes: D dimension.
"""

# mypy: disable-error-code="import-untyped"

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grace_kernels.build_sums import build_rows_kernel, build_shape
from grace_kernels.clusters import rewrite_clusters_kernel
from grace_kernels.pieces import piece_warps
from grace_kernels.pooling import (
    lookup_warps,
    pool_rows_kernel,
    pool_shape,
    pooled_lookup_kernel,
)

REWRITE_SASS = {32: 400}  # most instructions of the rewriting kernel, by ids of a piece
SUBSET_SASS = {32: 480}  # splitting masks comes on top: a second scan, the walk, a rank


@dataclass(frozen=True)
class Variant:
    """One way to compile a kernel.

    Attributes:
        kernel: The ``triton.jit`` function.
        types: Triton type of every argument, None where the launcher passes None.
        constants: Compile-time values.
        warps: Warps of a program.
        wide_loads: Least number of 16-byte loads.
        max_sass: Limit of instructions, or None.
        usual: One of the few that every test run compiles.
    """

    kernel: Any
    types: dict[str, str | None]
    constants: dict[str, Any]
    warps: int
    wide_loads: int = 0
    max_sass: int | None = None
    usual: bool = False


def variants() -> Iterator[Variant]:
    """Yield every variant that is checked: what the launchers choose for usual tables."""
    for log in (5, 6, 7, 8, 9):
        yield _rewrite(log, usual=log < 7)
        yield _rewrite(log, subsets=True, usual=log < 7)
    for log in (6, 8):
        yield _rewrite(log, ids="*i64", narrow=False)
        yield _rewrite(log, weighted=True, narrow=False, usual=log == 6)
        yield _rewrite(log, ids="*i64", narrow=False, subsets=True)
        yield _rewrite(log, weighted=True, narrow=False, subsets=True)
    for rows, dims in (("*fp32", (64, 128, 256)), ("*fp16", (64, 128)), ("*bf16", (128,))):
        for dim in dims:
            yield _pool(rows, dim, stored=False)
            yield _pool(
                rows, dim, usual=(rows == "*fp32" and dim < 256) or (rows == "*fp16" and dim == 64)
            )
    yield _pool("*fp32", 128, weighted=True, hot=True, mean=True, usual=True)
    for bits, dim in ((8, 64), (8, 128), (4, 64), (4, 128)):
        yield _pool("*u8", dim, bits, usual=dim == 64)
    for rows, dim, bits in (("*fp32", 64, 0), ("*fp32", 128, 0), ("*fp16", 64, 0), ("*u8", 64, 8)):
        usual = rows == "*fp32" and dim == 128
        yield _lookup(rows, dim, bits, log=7, usual=usual)
        yield _lookup(rows, dim, bits, log=7, subsets=True, usual=usual)
    yield _lookup("*fp32", 64, 0, log=6, weighted=True)
    yield _lookup("*fp32", 64, 0, log=6, weighted=True, subsets=True)
    yield _build("*fp32", 64, usual=True)
    yield _build("*fp16", 128)


def _wide_loads(rows: str, dim: int, num_rows: int, warps: int) -> int:
    """Return the 16-byte loads a lane needs for ``num_rows`` rows; quantised rows have none."""
    item_bytes = {"*fp32": 4, "*fp16": 2, "*bf16": 2}.get(rows, 0)
    return num_rows * dim * item_bytes // (16 * 32 * warps)


def _bag_types(ids: str, weighted: bool, subsets: bool) -> dict[str, str | None]:
    """Return the types of the arguments that rewriting takes."""
    bits = "*i32" if weighted else None
    types: dict[str, str | None] = {"ids_ptr": ids, "offsets_ptr": "*i64", "code_ptr": "*i32"}
    types |= {"parts_ptr": "*i32" if subsets else None, "marks_ptr": "*i64" if subsets else None}
    types |= {"bits_ptr": bits, "row_bits_ptr": bits, "num_rows": "i64", "bad_ptr": "*i32"}
    return types | {"lengths_ptr": "*i32", "asked_ptr": "*i32"}


def _rewrite(
    log: int, *, weighted: bool = False, ids: str = "*i32", narrow: bool = True,
    subsets: bool = False, usual: bool = False,
) -> Variant:  # fmt: skip
    """Return a variant of the rewriting kernel for pieces of ``1 << log`` ids."""
    constants = {"LOG": log, "NARROW": narrow, "POLICY": 0, "WEIGHTED": weighted, "CODED": True}
    constants |= {"SUBSETS": subsets}
    types = _bag_types(ids, weighted, subsets) | {"rows_ptr": "*i32"}
    limits = SUBSET_SASS if subsets else REWRITE_SASS
    limit = limits.get(1 << log) if narrow else None
    warps = piece_warps(1 << log)
    return Variant(rewrite_clusters_kernel, types, constants, warps, max_sass=limit, usual=usual)


def _pool_types(rows: str, stored: bool, hot: bool) -> dict[str, str | None]:
    """Return the types of the arguments that say where rows lie."""
    tier = rows if stored else None
    types: dict[str, str | None] = {"rows_ptr": rows, "hbm_ptr": tier, "host_ptr": tier}
    types |= {"hot_ptr": "*i32" if hot else None, "num_rows": "i64", "num_hbm_sums": "i64"}
    return types | {"out_ptr": "*fp32", "out_pitch": "i64", "offsets_ptr": "*i64"}


def _pool_constants(dim: int, bits: int, stored: bool, weighted: bool) -> dict[str, Any]:
    """Return the compile-time values of the reduction; quantised rows are padded to 16 bytes."""
    pitch = -(-(4 + dim * bits // 8) // 16) * 16 if bits else dim
    constants = {"DIM": dim, "WIDTH": dim // 2 if bits == 4 else dim, "PITCH": pitch, "BITS": bits}
    constants |= {"ROWS": pool_shape(dim, bits)[0], "WEIGHTED": weighted}
    return constants | {"STORED": stored, "HOT": False, "MEAN": False}


def _pool(
    rows: str, dim: int, bits: int = 0, *, stored: bool = True, weighted: bool = False,
    hot: bool = False, mean: bool = False, usual: bool = False,
) -> Variant:  # fmt: skip
    """Return a variant of the reduction."""
    types = _pool_types(rows, stored, hot) | {"row_ids_ptr": "*i32", "lengths_ptr": "*i32"}
    types["weights_ptr"] = "*fp32" if weighted else None
    constants = _pool_constants(dim, bits, stored, weighted) | {"HOT": hot, "MEAN": mean}
    num_rows, warps = pool_shape(dim, bits)
    wide = _wide_loads(rows, dim, num_rows, warps)
    return Variant(pool_rows_kernel, types, constants, warps, wide, usual=usual)


def _lookup(
    rows: str, dim: int, bits: int, *, log: int, weighted: bool = False, subsets: bool = False,
    usual: bool = False,
) -> Variant:  # fmt: skip
    """Return a variant of rewriting and reduction in one program."""
    types = _bag_types("*i32", weighted, subsets) | _pool_types(rows, True, False)
    types |= {"row_ids_ptr": "*i32", "row_weights_ptr": "*fp32" if weighted else None}
    constants = _pool_constants(dim, bits, True, weighted)
    constants |= {"LOG": log, "NARROW": not weighted, "POLICY": 0, "CODED": True}
    constants |= {"SUBSETS": subsets}
    warps = lookup_warps(dim, bits, 1 << log)
    wide = _wide_loads(rows, dim, pool_shape(dim, bits)[0], warps)
    return Variant(pooled_lookup_kernel, types, constants, warps, wide, usual=usual)


def _build(rows: str, dim: int, *, usual: bool = False) -> Variant:
    """Return a variant of the building of stored rows."""
    sets, warps = build_shape(dim)
    types: dict[str, str | None] = {"rows_ptr": rows, "out_ptr": rows, "num_sets": "i64"}
    types |= {"indptr_ptr": "*i64", "items_ptr": "*i32"}
    constants = {"DIM": dim, "WIDTH": dim, "SETS": sets}
    wide = _wide_loads(rows, dim, sets, warps)
    return Variant(build_rows_kernel, types, constants, warps, wide, usual=usual)
