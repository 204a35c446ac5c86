"""Numba core that reads counters out: those that are not 0, in rising order, cleared on the way.

Flow: called by ``_pair_core`` when the row of an item is counted.  Nothing branches on a single counter:
which ones are 0 cannot be predicted, and a wrong guess costs as much as reading a whole group.
With AVX-512 a group of 16 counters, one cache line, is packed by one instruction (``vector.compress``).
Shapes: N counters, E entries of room.
"""

# mypy: disable-error-code="call-arg"

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from grace_kernels._jit import jit
from grace_kernels._llvm import I1, I32, I64, PTR, llvm_function, lowest_bit, splat, target_has

Int32s = npt.NDArray[np.int32]
GROUP, GROUP_SHIFT = 16, 4  # counters of a cache line
HAS_AVX512 = target_has("avx512f")
# A row is read by a scan over all counters where they are at most so many for each id counted: with
# AVX-512 a group took 2 ns, and an id 3 ns where its group is marked and found again (16 are even).
COUNTERS_AN_ID = 8 if HAS_AVX512 else 1
_GROUP = np.intp(GROUP)
_VECTOR, _MASK, _BITS = ir.VectorType(I32, GROUP), ir.VectorType(I1, GROUP), ir.IntType(GROUP)


@jit
def read_all(counters_N: Int32s, items_E: Int32s, counts_E: Int32s, used: int) -> int:
    """Append the counters that are not 0, and clear them; return the new end.

    Args:
        counters_N: Counters, 0 or more.
        items_E: Receives what was counted, rising from ``used`` on.  What lies behind may change.
        counts_E: Receives their counts.
        used: Entries that hold something.
    """
    for first in range(0, counters_N.size, GROUP):
        used = read_group(counters_N, first, items_E, counts_E, used)
    return used


@jit
def read_marked(
    counters_N: Int32s, marks: Any, items_E: Int32s, counts_E: Int32s, used: int
) -> int:
    """Do what :func:`read_all` does for groups that have a mark; clear the marks too.

    Args:
        counters_N: See :func:`read_all`.
        marks: int64, a bit for every group.
        items_E: See :func:`read_all`.
        counts_E: See :func:`read_all`.
        used: See :func:`read_all`.
    """
    for word in range(marks.size):
        bits = marks[word]
        marks[word] = 0
        while bits != 0:
            first = ((word << 6) + lowest_bit(bits)) << GROUP_SHIFT
            bits &= bits - 1
            used = read_group(counters_N, first, items_E, counts_E, used)
    return used


@jit(inline=True)
def read_group(counters_N: Int32s, first: Any, items_E: Int32s, counts_E: Int32s, used: Any) -> Any:
    """Do what :func:`read_all` does for the counters from ``first`` on, a group of them at most."""
    last = min(first + _GROUP, counters_N.size)
    if HAS_AVX512 and last - first == GROUP and used + GROUP <= items_E.size:
        return used + _pack_group(
            counters_N.ctypes.data + 4 * first, first,
            items_E.ctypes.data + 4 * used, counts_E.ctypes.data + 4 * used,
        )  # fmt: skip
    for item in range(first, last):
        if used < items_E.size:  # no room is left where no counter is
            count = counters_N[item]
            items_E[used], counts_E[used] = item, count
            used += count > 0
            counters_N[item] = 0
    return used


@intrinsic
def _pack_group(
    typing_context: Any, counters_at: Any, first: Any, items_at: Any, counts_at: Any
) -> Any:
    """Move the counters at an address that are not 0, and their numbers; return how many there are.

    Args:
        typing_context: numba's.
        counters_at: Address of 16 int32, cleared.
        first: Number of the first.
        items_at: Address with room for 16 int32, written whole.
        counts_at: The same, for the counts.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at, number, items, counts = args
        group = b.load(b.inttoptr(at, PTR), typ=_VECTOR, align=4)
        counted = b.icmp_unsigned("!=", group, ir.Constant(_VECTOR, [0] * GROUP))
        lanes = ir.Constant(_VECTOR, list(range(GROUP)))
        numbers = b.add(splat(b, b.trunc(number, I32), _VECTOR), lanes)
        pack = llvm_function(
            b, f"llvm.experimental.vector.compress.v{GROUP}i32", _VECTOR, [_VECTOR, _MASK, _VECTOR]
        )  # fmt: skip
        rest = ir.Constant(_VECTOR, ir.Undefined)
        b.store(b.call(pack, [numbers, counted, rest]), b.inttoptr(items, PTR), align=4)
        b.store(b.call(pack, [group, counted, rest]), b.inttoptr(counts, PTR), align=4)
        b.store(ir.Constant(_VECTOR, [0] * GROUP), b.inttoptr(at, PTR), align=4)
        count = llvm_function(b, f"llvm.ctpop.i{GROUP}", _BITS, [_BITS])
        return b.zext(b.call(count, [b.bitcast(counted, _BITS)]), I64)

    return types.int64(*[types.int64] * 4), codegen
