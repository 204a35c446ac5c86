"""Numba core of rewriting, first pass: ids that share no cluster leave, the others get their codes.

Flow: _rewrite.py calls split_chunk for a few bags; what it sets aside goes to _merge.py.
Meaning: reference.py (``rewrite_clusters_reference``, ``apply_bad_id_policy_reference``).

What is written for a row is its place, as _places.py has it.

How it is fast: nothing branches on what an id is. With AVX-512 eight ids go at once: their words
of packed_codes.py are gathered, then the codes of the clustered ones, and the two kinds are
packed to the front of a vector each (``vector.compress``) and stored whole; only the end of a
list moves by as many as are of its kind. An id outside the table sends its group of eight to
the loop that goes id by id and knows the policies. Without AVX-512, and for weighted bags, hot
rows and wide codes, every id takes that loop: it writes to both lists and moves one end. Between groups rows of the previous chunk are
prefetched (_prefetch.py), so that memory works while this computes. Bags come by the chunk,
because a call for each of them costs as much as splitting it.
Indices are cast to ``uintp``: numba then leaves out the wrap-around of negative indices.
One file, though a long one: the loop, and the vector code that it calls (``_emit_*``), say nothing
without each other, for they share the form of the lists and of the queue.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from grace_kernels._jit import jit
from grace_kernels._llvm import (
    I1,
    I8,
    I64,
    PTR,
    llvm_function,
    load_i32,
    load_i64,
    splat,
    target_has,
)
from grace_kernels._places import U, plain_place
from grace_kernels._prefetch import (
    END,
    LIST_AT,
    NEXT,
    PACE,
    ROW_BYTES,
    prefetch_row,
    prefetch_rows,
)
from grace_kernels.packed_codes import ITEMS_A_WORD, WORD_SHIFT, rank_in_word
from grace_kernels.reference import DROP, PADDING, RAISE, ZERO_ROW

GROUP = 8  # ids at once
HAS_AVX512 = target_has("avx512f")
MOST_ROWS = np.int64(1 << 32)  # row numbers below this are multiplied by one cheap instruction


@jit
def make_split(num_ids: Any, num_bags: Any) -> Any:
    """Return room for the split of a chunk of up to ``num_ids`` ids in ``num_bags`` bags.

    Returns:
        alone int64 ``[2, .]`` (place, position), alone_ends int64, multi int64 ``[3, .]`` (place,
        code, position), multi_ends int64: what is alone or clustered in bag ``k`` lies between
        ``ends[k]`` and ``ends[k + 1]``. Positions are kept for weighted bags only.
    """
    return (
        np.empty((2, num_ids + GROUP), np.int64),
        np.zeros(num_bags + 1, np.int64),
        np.empty((3, num_ids + GROUP), np.int64),
        np.zeros(num_bags + 1, np.int64),
    )


@jit
def split_chunk(ids: Any, offsets: Any, first: int, last: int, table: Any, policy: int,
                weighted: Any, split: Any, queue: Any) -> Any:  # fmt: skip
    """Split bags ``first .. last - 1``.

    Args:
        ids: Raw ids; -1 is padding, others outside the table follow ``policy``.
        offsets: int64, bag ``b`` is ``ids[offsets[b]:offsets[b + 1]]``.
        first: First bag.
        last: One past the last bag.
        table: Where rows and codes lie.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        weighted: Whether positions are kept.
        split: Of ``make_split``, receives the result.
        queue: Rows to prefetch meanwhile.

    Returns:
        -1 or the position of a bad id.
    """
    in_groups = HAS_AVX512 and not weighted
    in_groups &= table[5] < MOST_ROWS and table[8] == 4 and table[9] == 0
    bag, position = np.int64(first), offsets[first]
    alone, clustered = np.int64(0), np.int64(0)
    while bag < last:
        if in_groups:
            bag, position, alone, clustered = _split_groups(
                ids, offsets, first, bag, last, position, table, split, alone, clustered, queue
            )
            if bag == last:
                break
        prefetch_rows(queue)
        stop = min(offsets[bag + 1], position + GROUP)
        alone, clustered, bad = _split_one_by_one(
            ids, position, stop, table, policy, weighted, split, alone, clustered
        )
        if bad >= 0:
            return bad
        position = stop
        if position == offsets[bag + 1]:
            bag += 1
            split[1][bag - first], split[3][bag - first] = alone, clustered
    return np.int64(-1)


@jit
def _split_groups(ids, offsets, first, bag, last, position, table, split, alone, clustered, queue):
    """Do what ``split_chunk`` does in groups, until the end or a group with an id outside the table.

    No other function is called from these loops: a call would push their constants, eight
    vectors, out of the registers, and reading them back in every round doubles the time.

    Returns:
        (bag and position of the group that was not done, ids alone, ids clustered).
    """
    plain_at, row_bytes, num_rows, words_at, codes_at = (
        table[0],
        table[4],
        table[5],
        table[6],
        table[7],
    )
    alone_at, alone_ends, places_at, multi_ends = (
        split[0].ctypes.data,
        split[1],
        split[2].ctypes.data,
        split[3],
    )
    found_at = places_at + 8 * split[2].shape[1]
    entry, queue_end, pace, list_at = queue[NEXT], queue[END], queue[PACE], queue[LIST_AT]
    queued_bytes = queue[ROW_BYTES]
    while bag < last:
        end = offsets[bag + 1]
        while position < end:
            upto = min(queue_end, entry + pace)
            while entry < upto:
                prefetch_row(load_i64(list_at + 8 * entry), queued_bytes)
                entry += 1
            if words_at != 0:
                counts = split_group(
                    ids, position, end, num_rows, plain_at, row_bytes, alone_at + 8 * alone,
                    words_at, codes_at, places_at + 8 * clustered, found_at + 8 * clustered,
                )  # fmt: skip
            else:
                counts = place_group(
                    ids, position, end, num_rows, plain_at, row_bytes, alone_at + 8 * alone
                )
            if counts < 0:
                queue[NEXT] = entry
                return bag, position, alone, clustered
            alone += counts & 255
            clustered += counts >> 8
            position += GROUP
        position = end
        bag += 1
        alone_ends[bag - first], multi_ends[bag - first] = alone, clustered
    queue[NEXT] = entry
    return bag, position, alone, clustered


@jit
def _split_one_by_one(ids, begin, end, table, policy, weighted, split, alone, clustered):
    """Do what ``split_chunk`` does for positions ``begin .. end - 1``, id by id."""
    num_rows, words_at, codes_at, code_bytes = table[5:9]
    singles, _, multi, _ = split
    for position in range(begin, end):
        item = np.int64(ids[U(position)])
        code = np.int64(-1)
        if item < 0 or item >= num_rows:
            if item == PADDING or policy == DROP or (policy == ZERO_ROW and num_rows == 0):
                continue
            if policy == RAISE:
                return alone, clustered, np.int64(position)
            item = np.int64(0)  # row 0 is read, but nobody asked for item 0: it joins no sum
        elif words_at != 0:
            word = load_i64(words_at + 8 * (item >> WORD_SHIFT))
            is_clustered = (word >> (item & (ITEMS_A_WORD - 1))) & 1
            at = codes_at + code_bytes * (rank_in_word(word, item) & -is_clustered)
            code = load_i64(at) if code_bytes == 8 else load_i32(at)
            code |= is_clustered - 1
        place = plain_place(item, table)
        singles[0, U(alone)] = place
        multi[0, U(clustered)] = place
        multi[1, U(clustered)] = code
        if weighted:
            singles[1, U(alone)] = position
            multi[2, U(clustered)] = position
        single = (code >> 63) & 1
        alone += single
        clustered += 1 - single
    return alone, clustered, np.int64(-1)


@intrinsic
def split_group(typing_context: Any, ids: Any, position: Any, end: Any, num_rows: Any,
                plain_at: Any, row_bytes: Any, rows_at: Any, words_at: Any, codes_at: Any,
                places_at: Any, found_at: Any) -> Any:  # fmt: skip
    """Split the ids at ``position .. min(position + 8, end) - 1`` of an array at once.

    Args:
        typing_context: numba's.
        ids: int32 or int64 array.
        position: First position.
        end: One past the last position of the bag.
        num_rows: Rows of the table, below 2**32.
        plain_at: Place of row 0.
        row_bytes: Bytes of a row, below 2**32.
        rows_at: Address that receives the places of unclustered ids: room for 8 int64.
        words_at: Address of the packed words.
        codes_at: Address of int32 codes.
        places_at: Address that receives the places of clustered ids: room for 8 int64.
        found_at: Address that receives their codes: room for 8 int64.

    Returns:
        ``clustered << 8 | unclustered``, or -1 if an id is outside the table (then what was
        written does not count).
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, b, args[0])
        return _emit_split(b, args[1:], array.data, sig.args[0].dtype.bitwidth)

    return types.int64(ids, *[types.int64] * 10), codegen


@intrinsic
def place_group(typing_context: Any, ids: Any, position: Any, end: Any, num_rows: Any,
                plain_at: Any, row_bytes: Any, rows_at: Any) -> Any:  # fmt: skip
    """Do what ``split_group`` does for a table without codes."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, b, args[0])
        return _emit_split(b, args[1:], array.data, sig.args[0].dtype.bitwidth)

    return types.int64(ids, *[types.int64] * 6), codegen


VECTOR = ir.VectorType(I64, GROUP)
MASK = ir.VectorType(I1, GROUP)
POINTERS = ir.VectorType(PTR, GROUP)


def _emit_split(b: Any, args: Any, ids: Any, id_bits: int) -> Any:
    """Emit the instructions of ``split_group``, or of ``place_group`` without the last arguments."""
    position, end, num_rows, plain_at, row_bytes, rows_at, *of_codes = args
    lanes = ir.Constant(VECTOR, list(range(GROUP)))
    valid = b.icmp_signed("<", lanes, splat(b, b.sub(end, position), VECTOR))
    item = _emit_masked_load(b, ids, id_bits, position, valid)
    outside = b.and_(b.icmp_unsigned(">=", item, splat(b, num_rows, VECTOR)), valid)
    all_inside = b.icmp_unsigned("==", b.bitcast(outside, I8), I8(0))

    result = cgutils.alloca_once_value(b, I64(-1))
    with b.if_then(all_inside, likely=True):
        low = _same((1 << 32) - 1)  # tells LLVM that multiplying the low halves is enough
        offset = b.mul(b.and_(item, low), b.and_(splat(b, row_bytes, VECTOR), low))
        place = b.add(offset, splat(b, plain_at, VECTOR))
        if of_codes:
            words_at, codes_at, places_at, found_at = of_codes
            code, is_clustered = _emit_find_codes(b, item, valid, words_at, codes_at)
            alone = b.and_(valid, b.not_(is_clustered))
            _emit_packed_store(b, place, alone, rows_at)
            _emit_packed_store(b, place, is_clustered, places_at)
            _emit_packed_store(b, code, is_clustered, found_at)
            counts = b.shl(_emit_count(b, is_clustered), I64(8))
            b.store(b.or_(_emit_count(b, alone), counts), result)
        else:  # valid lanes come first
            b.store(place, b.inttoptr(rows_at, PTR), align=8)
            b.store(_emit_count(b, valid), result)
    return b.load(result)


def _emit_find_codes(b: Any, item: Any, valid: Any, words_at: Any, codes_at: Any) -> Any:
    """Emit ``rank_in_word`` and what surrounds it; return codes, and which items have one."""
    word = _emit_gather(b, words_at, 8, b.lshr(item, _same(WORD_SHIFT)), valid)  # 0 if not valid
    own = b.and_(item, _same(ITEMS_A_WORD - 1))
    bit = b.and_(b.lshr(word, own), _same(1))
    is_clustered = b.icmp_unsigned("!=", bit, _same(0))
    below = b.and_(word, b.sub(b.shl(_same(1), own), _same(1)))
    count = llvm_function(b, f"llvm.ctpop.v{GROUP}i64", VECTOR, [VECTOR])
    rank = b.add(b.lshr(word, _same(ITEMS_A_WORD)), b.call(count, [below]))
    return _emit_gather(b, codes_at, 4, rank, is_clustered), is_clustered


def _same(value: int) -> Any:
    """Return a constant vector of one value."""
    return ir.Constant(VECTOR, [value] * GROUP)


def _emit_masked_load(b: Any, data: Any, bits: int, position: Any, valid: Any) -> Any:
    """Emit a load of up to eight ids, 0 where not ``valid``, as int64."""
    kind = ir.VectorType(ir.IntType(bits), GROUP)
    at = b.gep(b.bitcast(data, PTR), [position], source_etype=ir.IntType(bits))
    load = llvm_function(b, f"llvm.masked.load.v{GROUP}i{bits}.p0", kind, [PTR, MASK, kind])
    loaded = b.call(load, [at, valid, ir.Constant(kind, [0] * GROUP)])
    return loaded if bits == 64 else b.sext(loaded, VECTOR)


def _emit_gather(b: Any, base: Any, item_bytes: int, index: Any, wanted: Any) -> Any:
    """Emit a gather of eight integers, 0 where not ``wanted``, as int64."""
    bits = 8 * item_bytes
    kind = ir.VectorType(ir.IntType(bits), GROUP)
    shift = _same(item_bytes.bit_length() - 1)
    at = b.inttoptr(b.add(splat(b, base, VECTOR), b.shl(index, shift)), POINTERS)
    name = f"llvm.masked.gather.v{GROUP}i{bits}.v{GROUP}p0"
    gather = llvm_function(b, name, kind, [POINTERS, MASK, kind])
    found = b.call(gather, [at, wanted, ir.Constant(kind, [0] * GROUP)])
    return found if bits == 64 else b.sext(found, VECTOR)


def _emit_packed_store(b: Any, value: Any, kept: Any, at: Any) -> None:
    """Emit a store of the lanes of ``value`` that are ``kept``, in order, and anything after them."""
    name = f"llvm.experimental.vector.compress.v{GROUP}i64"
    pack = llvm_function(b, name, VECTOR, [VECTOR, MASK, VECTOR])
    packed = b.call(pack, [value, kept, ir.Constant(VECTOR, ir.Undefined)])
    b.store(packed, b.inttoptr(at, PTR), align=8)


def _emit_count(b: Any, mask: Any) -> Any:
    """Emit the number of lanes set."""
    count = llvm_function(b, "llvm.ctpop.i8", I8, [I8])
    return b.zext(b.call(count, [b.bitcast(mask, I8)]), I64)
