"""Adding rows up: the inner loop as LLVM vectors, because numba has no vector type.

Flow: _lookup.py hands over a list of absolute row addresses; :func:`sum_bag` adds the rows up.

How it is fast: (1) the sum of up to 256 columns stays in registers while the rows stream by;
(2) the row that is ``AHEAD`` places further in the list is prefetched, also across the end of
the bag, so the list must be followed by ``AHEAD`` valid addresses. Columns are cut in pieces of
256, 128, .. 1, so one compiled function serves every dimension.

Reading the code that builds LLVM instructions: ``b`` is the builder, a *phi* is a loop variable
(one value from before the loop, one from the last round), ``PTR`` casts an integer address.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from grace_kernels._jit import jit

AHEAD = 32  # rows
FLOAT32, FLOAT16 = 0, 1
LANES = 16
# Prefetch into the second cache level: the first has too few line buffers for rows that are far
# away, and what it prefetches it evicts again.
READ, LEVEL_2, DATA = 0, 2, 1
CACHE_LINE = 64
# 256 columns fill half of the 32 AVX-512 registers; AVX2 has 16 registers of half the width.
WIDEST = 256 if llvm.get_host_cpu_features().get("avx512f", False) else 64

I32, I64, F32, F16 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.HalfType()
PTR = ir.PointerType()


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address`` (any address is allowed)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _emit_prefetch(b, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic(prefer_literal=True)
def sum_columns(typing_context: Any, addresses: Any, weights: Any, begin: Any, end: Any, shift: Any,
                out: Any, divisor: Any, width: Any, kind: Any, weighted: Any) -> Any:  # fmt: skip
    """Sum ``width`` columns of rows ``begin .. end - 1`` of the list into float32 at ``out``.

    Args:
        typing_context: numba's.
        addresses: Address of int64 row addresses, ``AHEAD`` valid ones past ``end``.
        weights: Address of float32 weights, parallel to ``addresses`` (unused if not weighted).
        begin: First entry.
        end: One past the last entry.
        shift: Bytes from the start of a row to the first column.
        out: Address of ``width`` float32.
        divisor: float32 every sum is divided by (the stock MEAN divides too: equal bits).
        width: Literal, a power of two up to 256.
        kind: Literal FLOAT32 or FLOAT16, type of the rows.
        weighted: Literal 0 or 1.
    """
    if not all(isinstance(value, types.IntegerLiteral) for value in (width, kind, weighted)):
        return None
    columns, row_kind, by_weight = width.literal_value, kind.literal_value, weighted.literal_value

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _emit_sum_loop(b, args, columns, row_kind, bool(by_weight))
        return context.get_dummy_value()

    address = types.int64
    signature = types.void(
        address, address, address, address, address, address, types.float32, width, kind, weighted
    )
    return signature, codegen


def _emit_sum_loop(b: Any, args: Any, columns: int, kind: int, weighted: bool) -> None:
    """Emit ``for i in begin..end: accumulators += row``, then store them divided."""
    addresses, weights, begin, end, shift, out, divisor = args[:7]
    lanes = min(LANES, columns)
    vectors = columns // lanes
    item_bytes = 4 if kind == FLOAT32 else 2
    vector = ir.VectorType(F32, lanes)
    before = b.block
    head, body, done = (b.append_basic_block(name) for name in ("rows", "row", "rows_done"))
    b.branch(head)

    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(begin, before)
    sums = [b.phi(vector) for _ in range(vectors)]
    for total in sums:
        total.add_incoming(ir.Constant(vector, [0.0] * lanes), before)
    b.cbranch(b.icmp_signed("<", i, end), body, done)

    b.position_at_end(body)
    entry = b.add(addresses, b.shl(i, I64(3)))
    row = b.add(b.load(b.inttoptr(entry, PTR), typ=I64), shift)
    later = b.add(b.load(b.inttoptr(b.add(entry, I64(8 * AHEAD)), PTR), typ=I64), shift)
    for line in range(0, columns * item_bytes, CACHE_LINE):
        _emit_prefetch(b, b.add(later, I64(line)))
    if weighted:
        at = b.inttoptr(b.add(weights, b.shl(i, I64(2))), PTR)
        weight = _splat(b, b.load(at, typ=F32, align=4), vector)
    for number, total in enumerate(sums):
        at = b.inttoptr(b.add(row, I64(number * lanes * item_bytes)), PTR)
        if kind == FLOAT32:
            value = b.load(at, typ=vector, align=4)
        else:
            value = b.fpext(b.load(at, typ=ir.VectorType(F16, lanes), align=2), vector)
        value = _multiply_add(b, value, weight, total, lanes) if weighted else b.fadd(total, value)
        total.add_incoming(value, body)
    i.add_incoming(b.add(i, I64(1)), body)
    b.branch(head)

    b.position_at_end(done)
    by = _splat(b, divisor, vector)
    is_mean = b.fcmp_ordered("!=", divisor, ir.Constant(F32, 1.0))
    with b.if_else(is_mean) as (divided, plain):
        for branch, finish in (
            (divided, lambda total: b.fdiv(total, by)),
            (plain, lambda total: total),
        ):
            with branch:
                for number, total in enumerate(sums):
                    at = b.inttoptr(b.add(out, I64(number * lanes * 4)), PTR)
                    b.store(finish(total), at, align=4)


def _emit_prefetch(b: Any, address: Any) -> None:
    """Emit one prefetch for reading into the second cache level."""
    kind = ir.FunctionType(ir.VoidType(), [PTR, I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [b.inttoptr(address, PTR), I32(READ), I32(LEVEL_2), I32(DATA)])


def _splat(b: Any, scalar: Any, vector: Any) -> Any:
    """Emit a vector whose lanes all hold ``scalar``."""
    empty = ir.Constant(vector, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return b.shuffle_vector(b.insert_element(empty, scalar, I32(0)), empty, lanes)


def _multiply_add(b: Any, x: Any, y: Any, z: Any, lanes: int) -> Any:
    """Emit ``x * y + z``, fused where the CPU can."""
    kind = ir.VectorType(F32, lanes)
    name = f"llvm.fmuladd.v{lanes}f32"
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(kind, [kind] * 3), name)
    return b.call(function, [x, y, z])


def _make_sum_bag(name: str, kind: int, weighted: int) -> Any:
    """Compile ``sum_bag`` for one row type, weighted or not, under a name of its own.

    numba names machine code after the function and a number that starts anew in each process:
    variants of one name, some from the disk cache and some compiled now, can be linked to each
    other's code.
    """
    item_bytes = 4 if kind == FLOAT32 else 2

    def sum_bag(addresses, weights, begin, end, out, dim, divisor):  # type: ignore[no-untyped-def]
        shift = 0
        left = dim
        if WIDEST == 256:
            while left >= 256:
                sum_columns(
                    addresses, weights, begin, end, shift, out, divisor, 256, kind, weighted
                )
                shift, out, left = shift + 256 * item_bytes, out + 1024, left - 256
            if left >= 128:
                sum_columns(
                    addresses, weights, begin, end, shift, out, divisor, 128, kind, weighted
                )
                shift, out, left = shift + 128 * item_bytes, out + 512, left - 128
        while left >= 64:
            sum_columns(addresses, weights, begin, end, shift, out, divisor, 64, kind, weighted)
            shift, out, left = shift + 64 * item_bytes, out + 256, left - 64
        if left >= 32:
            sum_columns(addresses, weights, begin, end, shift, out, divisor, 32, kind, weighted)
            shift, out, left = shift + 32 * item_bytes, out + 128, left - 32
        if left >= 16:
            sum_columns(addresses, weights, begin, end, shift, out, divisor, 16, kind, weighted)
            shift, out, left = shift + 16 * item_bytes, out + 64, left - 16
        while left >= 4:
            sum_columns(addresses, weights, begin, end, shift, out, divisor, 4, kind, weighted)
            shift, out, left = shift + 4 * item_bytes, out + 16, left - 4
        while left >= 1:
            sum_columns(addresses, weights, begin, end, shift, out, divisor, 1, kind, weighted)
            shift, out, left = shift + item_bytes, out + 4, left - 1

    sum_bag.__name__ = sum_bag.__qualname__ = name
    return jit(sum_bag)


# sum_bag(addresses, weights, begin, end, out, dim, divisor): entries begin..end-1 of the list at
# ``addresses`` (int64 row addresses, AHEAD valid ones past the end), times the float32 at
# ``weights``, added up into ``dim`` float32 at ``out``, divided by ``divisor``.
sum_bag_f32 = _make_sum_bag("sum_bag_f32", FLOAT32, 0)
sum_bag_f16 = _make_sum_bag("sum_bag_f16", FLOAT16, 0)
weighted_sum_bag_f32 = _make_sum_bag("weighted_sum_bag_f32", FLOAT32, 1)
weighted_sum_bag_f16 = _make_sum_bag("weighted_sum_bag_f16", FLOAT16, 1)
