"""Bare loops: the least that memory lets a hot path do, and single steps of the product.

Flow: the rows, codes and pairs that a hot path reads -> *loops* that only read or increment them ->
the ``limits`` case, which times them in turn with the product.  A loop gives no useful result; it
returns a number so that no compiler drops its reads.
Shapes: R rows read, L ids, I items, G cache lines of counters, E edges, N counters.
"""

import functools
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from grace_kernels._jit import jit
from grace_kernels._llvm import CACHE_LINE, I64, PTR, call_sum, emit_prefetch
from grace_kernels._places import U
from grace_kernels._prefetch import QUEUE_SIZE
from grace_kernels._rewrite import CHUNK_IDS, end_of_chunk, longest_bag
from grace_kernels._split_ids import make_split, split_chunk
from grace_kernels.packed_codes import WORD_SHIFT, rank_in_word
from grace_kernels.reference import RAISE

BAGS_A_STEP, COUNTERS_A_LINE = 8, 16
DISTANCES = (8, 16, 32, 64)  # rows that are asked for ahead; the fastest is the limit


@functools.cache
def touch_function(row_bytes: int) -> Any:
    """Return ``touch(addresses_R, ahead)``: it reads one word of every cache line of rows.

    It asks for the rows ``ahead`` places further on. The lines of a row are written out, as the
    product's sums are: as inner loops they took up to twice as long, and were no limit.

    Args:
        row_bytes: Bytes of a row; rows begin at a cache line.
    """
    lines = -(-row_bytes // CACHE_LINE)

    @njit(nogil=True)
    def touch(addresses_R, ahead):  # type: ignore[no-untyped-def]
        total = 0
        last = addresses_R.size - 1
        for place in range(addresses_R.size):
            total ^= _touch_row(addresses_R[place], addresses_R[min(place + ahead, last)], lines)
        return total

    return touch


@intrinsic(prefer_literal=True)
def _touch_row(typing_context: Any, here: Any, coming: Any, lines: Any) -> Any:
    """Ask for the lines of the row at ``coming``, read those of the row at ``here``; ``lines`` is a literal."""
    if not isinstance(lines, types.IntegerLiteral):
        return None

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        total = I64(0)
        for line in range(0, lines.literal_value * CACHE_LINE, CACHE_LINE):
            emit_prefetch(b, b.add(args[1], I64(line)))
        for line in range(0, lines.literal_value * CACHE_LINE, CACHE_LINE):
            word = b.load(b.inttoptr(b.add(args[0], I64(line)), PTR), typ=I64, align=8)
            total = b.xor(total, word)
        return total

    return types.int64(types.int64, types.int64, lines), codegen


@jit
def sum_known(sum_at: int, addresses_R: Any, ends_B1: Any, out_at: int, out_bytes: int) -> Any:
    """Add up the rows of every bag, whose addresses are known: the product's inner loop alone.

    Args:
        sum_at: Address of a function of ``_sum_rows``, which prefetches.
        addresses_R: int64 address of each row, and ``AHEAD`` more of any row.
        ends_B1: Where bags end in ``addresses_R``.
        out_at: Address of the output.
        out_bytes: Bytes of an output row.
    """
    at = addresses_R.ctypes.data
    for bag in range(ends_B1.size - 1):
        out = out_at + bag * out_bytes
        call_sum(sum_at, at, 0, ends_B1[bag], ends_B1[bag + 1], out, np.float32(1.0))
    return ends_B1.size


@jit
def touch_codes(ids_L: Any, words_W: Any, codes_C: Any) -> Any:
    """Read the word of every id and the code of those that have one.

    Args:
        ids_L: Raw ids.
        words_W: Of PackedCodes.
        codes_C: Of PackedCodes, and one more: ids without a code read a code and drop it.
    """
    total = 0
    for place in range(ids_L.size):
        item = ids_L[U(place)]
        word = words_W[U(item >> WORD_SHIFT)]
        has_code = (word >> (item & 31)) & 1
        total += codes_C[U(rank_in_word(word, item))] & -has_code
    return total


@jit
def increment_clusters(
    ids_L: Any, offsets_B1: Any, words_W: Any, codes_C: Any, counters: Any, aside: Any
) -> Any:
    """Read the code of every id, set it aside where it has one, and increment the cluster's counter.

    In two steps for a few bags at a time: where codes are read and counters incremented in one loop,
    the processor cannot tell early enough which counters differ, and both wait (half as fast).

    Args:
        ids_L: Raw ids.
        offsets_B1: Start of each bag.
        words_W: Of PackedCodes.
        codes_C: As for :func:`touch_codes`.
        counters: int64, a power of two of them, as many as the hash table of a bag has slots.
        aside: Integers, one more than ``BAGS_A_STEP`` bags have ids.
    """
    last_slot = counters.size - 1
    for first in range(0, offsets_B1.size - 1, BAGS_A_STEP):
        end = min(first + BAGS_A_STEP, offsets_B1.size - 1)
        found = 0
        for place in range(offsets_B1[first], offsets_B1[end]):
            item = ids_L[U(place)]
            word = words_W[U(item >> WORD_SHIFT)]
            aside[U(found)] = codes_C[U(rank_in_word(word, item))]
            found += (word >> (item & 31)) & 1
        for place in range(found):
            counters[U((aside[U(place)] >> 3) & last_slot)] += 1
    return counters[0]


@jit
def split_all(ids_L: Any, offsets_B1: Any, table: Any) -> Any:
    """Do the first pass of rewriting alone: ids that share no cluster leave, the others get codes.

    Args:
        ids_L: Raw ids.
        offsets_B1: Start of each bag.
        table: Of ``table_of_row_ids``.
    """
    bags, total, first = offsets_B1.size - 1, 0, 0
    split = make_split(CHUNK_IDS + longest_bag(offsets_B1, 0, bags), CHUNK_IDS + 1)
    queue = np.zeros(QUEUE_SIZE, np.int64)
    while first < bags:
        last = end_of_chunk(offsets_B1, first, bags)
        split_chunk(ids_L, offsets_B1, first, last, table, RAISE, False, split, queue)
        total += split[3][last - first]
        first = last
    return total


@jit
def increment_partners(
    offsets_B1: Any, ids_L: Any, indptr_N1: Any, bags_L: Any, num_items: int, counters_N: Any
) -> Any:
    """Increment the counter of every id of every bag that holds an item, item by item."""
    for item in range(num_items):
        for bag in bags_L[indptr_N1[item] : indptr_N1[item + 1]]:
            for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
                counters_N[U(ids_L[U(place)])] += 1
    return counters_N[0]


@jit
def count_known(
    offsets_B1: Any, ids_L: Any, indptr_N1: Any, bags_L: Any,
    lines_G: Any, line_ends_I: Any, edge_ends_I: Any, counters_N: Any, edges_E: Any, counts_E: Any,
) -> Any:  # fmt: skip
    """Do what memory must do for pair counts, where what is to be found is known before.

    For each item: increment, clear the cache lines of counters that were touched, write the edges.

    Args:
        offsets_B1: Start of each bag.
        ids_L: Ids of the bags.
        indptr_N1: Start of each item in ``bags_L``.
        bags_L: The bags that hold each item.
        lines_G: Touched cache lines of counters, one item after the other.
        line_ends_I: Where each item ends in ``lines_G``.
        edge_ends_I: Where each item ends in the edges.
        counters_N: int32, a multiple of 16.
        edges_E: Receives what nobody reads.
        counts_E: The same.
    """
    line, edge = 0, 0
    for item in range(line_ends_I.size):
        for bag in bags_L[indptr_N1[item] : indptr_N1[item + 1]]:
            for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
                counters_N[U(ids_L[U(place)])] += 1
        total = 0
        while line < line_ends_I[item]:
            first = np.int64(lines_G[U(line)]) * COUNTERS_A_LINE
            total += counters_N[U(first)]
            for counter in range(first, first + COUNTERS_A_LINE):
                counters_N[U(counter)] = 0
            line += 1
        while edge < edge_ends_I[item]:
            edges_E[U(edge)] = total
            counts_E[U(edge)] = edge
            edge += 1
    return edge


@jit
def touched_lines(
    offsets_B1: Any, ids_L: Any, indptr_N1: Any, bags_L: Any, lines_G: Any, line_ends_I: Any
) -> Any:
    """Write the cache lines of counters that each item touches; return how many there are."""
    lines = 0
    last_item = np.full(indptr_N1.size // COUNTERS_A_LINE + 1, -1)
    for item in range(line_ends_I.size):
        for bag in bags_L[indptr_N1[item] : indptr_N1[item + 1]]:
            for place in range(offsets_B1[bag], offsets_B1[bag + 1]):
                line = ids_L[place] // COUNTERS_A_LINE
                if last_item[line] != item:
                    last_item[line] = item
                    lines_G[lines] = line
                    lines += 1
        line_ends_I[item] = lines
    return lines
