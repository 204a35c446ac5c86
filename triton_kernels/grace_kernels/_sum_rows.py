"""Adding rows up: the inner loop as LLVM vectors, because numba has no vector type.

Flow: _lookup.py and _pool_rows.py hand over lists of row addresses; ``sum_function`` returns the
machine code that adds such rows up, compiled for one dimension and one type of rows.

How it is fast: (1) the sum of up to 256 columns stays in registers while the rows stream by;
(2) rows are prefetched: either by who made the list, or here, ``AHEAD`` places further in the
list, also across the end of the bag: then ``AHEAD`` valid addresses must follow the list.
"""

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from grace_kernels._jit import compile_for_address
from grace_kernels._llvm import (
    CACHE_LINE,
    F16,
    F32,
    I8,
    I64,
    PTR,
    emit_prefetch,
    llvm_function,
    splat,
    target_has,
)

FLOAT32, FLOAT16, INT8 = 0, 1, 2
ITEM_BYTES = {FLOAT32: 4, FLOAT16: 2, INT8: 1}
HEAD_BYTES = {FLOAT32: 0, FLOAT16: 0, INT8: 4}  # fbgemm's int8 rows begin with scale and bias
LANES = 16
AHEAD = 32  # rows
# 256 columns fill half of the 32 AVX-512 registers; AVX2 has 16 registers of half the width.
WIDEST = 256 if target_has("avx512f") else 64
PIECES = (256, 128, 64, 32, 16, 4, 1)


@functools.cache
def sum_function(dim: int, kind: int, weighted: bool, prefetches: bool) -> int:
    """Return the address of ``sum(addresses, weights, begin, end, out, divisor)``.

    It adds up the rows at the int64 addresses ``begin .. end - 1`` of the list at ``addresses``,
    times the float32 at ``weights`` if it is weighted, into ``dim`` float32 at ``out``, and
    divides by ``divisor`` (the stock MEAN divides too: equal bits).

    Args:
        dim: Columns of a row.
        kind: FLOAT32, FLOAT16 or INT8 (fbgemm's rows: fp16 scale, fp16 bias, ``dim`` uint8).
        weighted: Whether rows are multiplied by weights.
        prefetches: Whether it prefetches rows itself.
    """
    by_weight, ahead = int(weighted), int(prefetches)

    def sum_rows(addresses, weights, begin, end, out, divisor):  # type: ignore[no-untyped-def]
        sum_columns(addresses, weights, begin, end, out, divisor, dim, kind, by_weight, ahead)

    # A name of its own: machine code of one name, some from the disk cache and some new, could
    # be linked to each other's.
    name = f"sum_{dim}_of_kind_{kind}_weighted_{by_weight}_ahead_{ahead}"
    sum_rows.__name__ = sum_rows.__qualname__ = name
    compiled = compile_for_address(sum_rows, types.void(*[types.int64] * 5, types.float32))
    _kept.append(compiled)
    return int(compiled.address)


_kept: list[Any] = []  # compiled functions live as long as the process


def _pieces(dim: int) -> tuple[int, ...]:
    """Return ``dim`` as a sum of widths that registers hold."""
    pieces = []
    for width in PIECES:
        while width <= min(dim, WIDEST):
            pieces.append(width)
            dim -= width
    return tuple(pieces)


@intrinsic(prefer_literal=True)
def sum_columns(typing_context: Any, addresses: Any, weights: Any, begin: Any, end: Any, out: Any,
                divisor: Any, dim: Any, kind: Any, weighted: Any, prefetches: Any) -> Any:  # fmt: skip
    """Do what ``sum_function`` describes; the last four are literals."""
    known = (dim, kind, weighted, prefetches)
    if not all(isinstance(value, types.IntegerLiteral) for value in known):
        return None
    row = _Row(*(value.literal_value for value in known))

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        first = 0
        for columns in _pieces(row.dim):
            _emit_sum_loop(b, args[:6], row, first, columns)
            first += columns
        return context.get_dummy_value()

    numbers = [types.int64] * 5
    return types.void(*numbers, types.float32, *known), codegen


@dataclass(frozen=True)
class _Row:
    """What is known about a row when its loop is compiled."""

    dim: int
    kind: int
    weighted: int
    prefetches: int

    def bytes_before(self, column: int) -> int:
        """Return where a column begins."""
        return HEAD_BYTES[self.kind] + column * ITEM_BYTES[self.kind]


def _emit_sum_loop(b: Any, args: Any, row: _Row, first: int, columns: int) -> None:
    """Emit ``for i in begin..end: accumulators += columns of row i``, then store them divided."""
    addresses, weights, begin, end, out, divisor = args
    lanes = min(LANES, columns)
    vector = ir.VectorType(F32, lanes)
    before = b.block
    head, body, done = (b.append_basic_block(name) for name in ("rows", "row", "rows_done"))
    b.branch(head)

    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(begin, before)
    # int8 rows have a bias each: its sum over the rows is one more accumulator
    kinds = [vector] * (columns // lanes) + ([F32] if row.kind == INT8 else [])
    sums = [b.phi(kind) for kind in kinds]
    for total, kind in zip(sums, kinds, strict=True):
        zero = 0.0 if kind is F32 else [0.0] * lanes
        total.add_incoming(ir.Constant(kind, zero), before)
    b.cbranch(b.icmp_signed("<", i, end), body, done)

    b.position_at_end(body)
    entry = b.add(addresses, b.shl(i, I64(3)))
    start = b.load(b.inttoptr(entry, PTR), typ=I64)
    if row.prefetches:
        later = b.load(b.inttoptr(b.add(entry, I64(8 * AHEAD)), PTR), typ=I64)
        last = row.bytes_before(first + columns) - 1
        lines = range(row.bytes_before(first) if first else 0, last, CACHE_LINE)
        for at in sorted({*lines, last}) if row.kind == INT8 else lines:
            emit_prefetch(b, b.add(later, I64(at)))
    weight = None
    if row.weighted:
        weight = b.load(b.inttoptr(b.add(weights, b.shl(i, I64(2))), PTR), typ=F32, align=4)
    added = _emit_add_row(b, start, weight, sums, row, first, lanes)
    for total, value in zip(sums, added, strict=True):
        total.add_incoming(value, b.block)
    i.add_incoming(b.add(i, I64(1)), b.block)
    b.branch(head)

    b.position_at_end(done)
    if row.kind == INT8:
        bias = splat(b, sums.pop(), vector)
        sums = [b.fadd(total, bias) for total in sums]
    _emit_store(b, sums, b.add(out, I64(4 * first)), divisor, vector)


def _emit_add_row(
    b: Any, start: Any, weight: Any, sums: list[Any], row: _Row, first: int, lanes: int
) -> list[Any]:
    """Emit the accumulators plus one row."""
    vector = ir.VectorType(F32, lanes)
    by, bias = weight, None
    if row.kind == INT8:
        scale, bias = (
            b.fpext(b.load(b.inttoptr(b.add(start, I64(at)), PTR), typ=F16, align=1), F32)
            for at in (0, 2)
        )
        by = scale if weight is None else b.fmul(scale, weight)
        bias = bias if weight is None else b.fmul(bias, weight)
    by = None if by is None else splat(b, by, vector)
    added = []
    for number in range(len(sums) - (row.kind == INT8)):
        offset = row.bytes_before(first + number * lanes)
        at = b.inttoptr(b.add(start, I64(offset)), PTR)
        value = _emit_load(b, at, row.kind, lanes)
        total = sums[number]
        added.append(b.fadd(total, value) if by is None else _fused(b, value, by, total, lanes))
    return added if bias is None else [*added, b.fadd(sums[-1], bias)]


def _emit_load(b: Any, at: Any, kind: int, lanes: int) -> Any:
    """Emit a load of ``lanes`` columns as float32."""
    vector = ir.VectorType(F32, lanes)
    if kind == FLOAT32:
        return b.load(at, typ=vector, align=4)
    if kind == FLOAT16:
        return b.fpext(b.load(at, typ=ir.VectorType(F16, lanes), align=2), vector)
    return b.uitofp(b.load(at, typ=ir.VectorType(I8, lanes), align=1), vector)


def _emit_store(b: Any, sums: list[Any], out: Any, divisor: Any, vector: Any) -> None:
    """Emit the stores of the sums, divided unless the divisor is 1."""
    by = splat(b, divisor, vector)
    is_mean = b.fcmp_ordered("!=", divisor, ir.Constant(F32, 1.0))
    with b.if_else(is_mean) as (divided, plain):
        for branch, finish in (
            (divided, lambda total: b.fdiv(total, by)),
            (plain, lambda total: total),
        ):
            with branch:
                for number, total in enumerate(sums):
                    at = b.inttoptr(b.add(out, I64(number * vector.count * 4)), PTR)
                    b.store(finish(total), at, align=4)


def _fused(b: Any, x: Any, y: Any, z: Any, lanes: int) -> Any:
    """Emit ``x * y + z``, fused where the CPU can."""
    kind = ir.VectorType(F32, lanes)
    function = llvm_function(b, f"llvm.fmuladd.v{lanes}f32", kind, [kind] * 3)
    return b.call(function, [x, y, z])
