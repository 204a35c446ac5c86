"""Numba's way down to single instructions: loads by address, prefetch, popcount, calls by address.

Flow: every numba core of this folder uses these; _sum_rows.py and _split_ids.py add vectors.
Rows of different tables have different addresses but one type, so a kernel that serves all of
them works on addresses; who calls it keeps the arrays alive.

Reading code that emits LLVM instructions: ``b`` is the builder, a *phi* is a loop variable (one
value from before the loop, one from the last round), ``PTR`` casts an integer address.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
F32, F16 = ir.FloatType(), ir.HalfType()
PTR = ir.PointerType()
# Prefetch into the second cache level: the first has too few line buffers for rows that are far
# away, and what it prefetches it evicts again.
READ, LEVEL_2, DATA = 0, 2, 1
CACHE_LINE = 64


def target_has(feature: str) -> bool:
    """Tell whether numba compiles for CPUs with a feature: by default for this host, not always.

    >>> target_has("a-feature-of-no-cpu")
    False
    """
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in features.split(",")


def target_cpu() -> str:
    """Return LLVM's name of the CPU that numba compiles for: by default this host's."""
    _, name, _ = cpu_target.target_context.codegen().magic_tuple()
    return str(name)


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address`` (any address is allowed)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        emit_prefetch(b, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def load_i32(typing_context: Any, address: Any) -> Any:
    """Return the int32 at ``address`` as int64."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.sext(b.load(b.inttoptr(args[0], PTR), typ=I32, align=4), I64)

    return types.int64(types.int64), codegen


@intrinsic
def load_i64(typing_context: Any, address: Any) -> Any:
    """Return the int64 at ``address``."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load(b.inttoptr(args[0], PTR), typ=I64, align=8)

    return types.int64(types.int64), codegen


@intrinsic
def load_u8(typing_context: Any, address: Any) -> Any:
    """Return the byte at ``address`` as int64."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.zext(b.load(b.inttoptr(args[0], PTR), typ=I8, align=1), I64)

    return types.int64(types.int64), codegen


@intrinsic
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """Return the number of the lowest bit that is set in an int64, 64 if none is."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        count = llvm_function(b, "llvm.cttz.i64", I64, [I64, I1])
        return b.call(count, [args[0], I1(0)])

    return types.int64(types.int64), codegen


@intrinsic
def popcount(typing_context: Any, bits: Any) -> Any:
    """Return how many bits of an int64 are set."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.call(llvm_function(b, "llvm.ctpop.i64", I64, [I64]), [args[0]])

    return types.int64(types.int64), codegen


@intrinsic
def call_sum(typing_context: Any, function: Any, addresses: Any, weights: Any, begin: Any, end: Any,
             out: Any, divisor: Any) -> Any:  # fmt: skip
    """Call a summing function of _sum_rows.py by its address."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 5 + [F32])
        b.call(b.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32), codegen


def llvm_function(b: Any, name: str, returns: Any, takes: list[Any]) -> Any:
    """Declare an LLVM intrinsic in the module that ``b`` writes."""
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(returns, takes), name)


def splat(b: Any, scalar: Any, vector: Any) -> Any:
    """Emit a vector whose lanes all hold ``scalar``."""
    empty = ir.Constant(vector, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return b.shuffle_vector(b.insert_element(empty, scalar, I32(0)), empty, lanes)


def emit_prefetch(b: Any, address: Any) -> None:
    """Emit one prefetch for reading into the second cache level."""
    kinds = [PTR, I32, I32, I32]
    function = llvm_function(b, "llvm.prefetch.p0", ir.VoidType(), kinds)
    b.call(function, [b.inttoptr(address, PTR), I32(READ), I32(LEVEL_2), I32(DATA)])
