"""Numba core of the bags by token: which bags hold a token, as rising lists.

Flow: called by the merging cores.  A token is an item or what a merge made of two tokens.
Tokens of many bags have a bit for every bag as well: counting what two of them share is then a
word operation for 64 bags.
Shapes: B bags, W words of 64 bags, D tokens with bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
SKEWED = 16  # a list this many times longer is searched, not walked
DENSE = 128  # tokens in one of so many bags have bits: at most 32 bytes for each id of the bags
WORDS_A_STEP = 16  # four vectors of four words: what is left over is counted word by word
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_1, _2, _4, _6 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(6)
_56, _63 = np.uint64(56), np.uint64(63)


@jit
def words_of(num_bags: int) -> Any:
    """Return how many words a row of bits has: whole steps of the loop that counts them."""
    return (num_bags // (64 * WORDS_A_STEP) + 1) * WORDS_A_STEP


@jit(inline=True)
def count_ones(word: Any) -> Any:
    """Return how many of 64 bits are set (LLVM knows this pattern: one instruction)."""
    word = word - ((word >> _1) & _PAIRS)
    word = (word & _FOURS) + ((word >> _2) & _FOURS)
    return (((word + (word >> _4)) & _BYTES) * _SUM) >> _56


@jit(inline=True)
def set_bits(bags: Int32s, bits_W: Words) -> None:
    """Set the bit of every bag."""
    for bag in bags:
        bits_W[np.uint64(bag) >> _6] |= _1 << (np.uint64(bag) & _63)


@jit(inline=True)
def clear_bits(bags: Int32s, bits_W: Words) -> None:
    """Clear the bit of every bag."""
    for bag in bags:
        bits_W[np.uint64(bag) >> _6] &= ~(_1 << (np.uint64(bag) & _63))


@jit(inline=True)
def count_shared(bits_DW: Words, one: int, other: int) -> Any:
    """Return in how many bags two tokens with bits stand."""
    shared = np.uint64(0)
    for word in range(bits_DW.shape[1]):
        shared += count_ones(bits_DW[U(one), U(word)] & bits_DW[U(other), U(word)])
    return np.int64(shared)


@jit(inline=True)
def count_listed(lists: Int32s, start: int, end: int, bits_DW: Words, row: int) -> Any:
    """Return how many of the bags ``lists[start:end]`` have their bit in a row."""
    shared = np.uint64(0)
    for at in range(start, end):
        bag = np.uint64(lists[U(at)])
        shared += (bits_DW[U(row), bag >> _6] >> (bag & _63)) & _1
    return np.int64(shared)


@jit(inline=True)
def count_walked(lists: Int32s, one: int, one_end: int, other: int, other_end: int) -> Any:
    """Return how much two rising parts of a list share."""
    shared = 0
    while one < one_end and other < other_end:
        left, right = lists[U(one)], lists[U(other)]
        shared += left == right
        one += left <= right
        other += right <= left
    return shared


@jit(inline=True)
def intersect(short: Int32s, long: Int32s, out: Int32s) -> Any:
    """Write what two rising lists share to ``out``; return how much.

    Args:
        short: The shorter list.
        long: The longer list.
        out: At least as long as ``short`` and one entry more.
    """
    if short.size * SKEWED < long.size:
        return _intersect_skewed(short, long, out)
    found, i, j = 0, 0, 0
    while i < short.size and j < long.size:
        one, other = short[U(i)], long[U(j)]
        out[U(found)] = one
        found += one == other
        i += one <= other
        j += other <= one
    return found


@jit(inline=True)
def _intersect_skewed(short: Int32s, long: Int32s, out: Int32s) -> int:
    """Look every entry of the short list up in the long one, from the place of the last on."""
    found, low = 0, 0
    for value in short:
        step, high = 1, low
        while high < long.size and long[high] < value:
            low = high + 1
            high += step
            step *= 2
        high = min(high, long.size)
        while low < high:
            middle = (low + high) >> 1
            if long[middle] < value:
                low = middle + 1
            else:
                high = middle
        if low >= long.size:
            break
        if long[low] == value:
            out[found] = value
            found += 1
            low += 1
    return found


@jit(inline=True)
def remove(values: Int32s, gone: Int32s) -> int:
    """Remove ``gone`` from a rising list that holds all of it, in place; return what is left."""
    kept, next_gone = 0, 0
    for value in values:
        if next_gone < gone.size and gone[U(next_gone)] == value:
            next_gone += 1
        else:
            values[U(kept)] = value
            kept += 1
    return kept


@jit
def unite(one: Int32s, other: Int32s, out: Int32s) -> int:
    """Write the union of two rising lists to ``out``; return its length."""
    i, j, size = 0, 0, 0
    while i < one.size and j < other.size:
        left, right = one[U(i)], other[U(j)]
        out[U(size)] = min(left, right)
        size += 1
        i += left <= right
        j += right <= left
    while i < one.size:
        out[U(size)] = one[U(i)]
        size += 1
        i += 1
    while j < other.size:
        out[U(size)] = other[U(j)]
        size += 1
        j += 1
    return size


@jit
def expand(
    indptr_N1: Int64s, items_S: Int64s, left_R: Int64s, right_R: Int64s, max_size: int
) -> tuple[Int64s, Int64s]:
    """Return the items of every merge as CSR, rising in each set.

    Args:
        indptr_N1: CSR of the items that the first tokens stand for.
        items_S: Those items.
        left_R: One token of each merge; merge ``r`` made the token ``N + r``.
        right_R: The other token.
        max_size: Most items of a set.
    """
    num_first, num_sets = indptr_N1.size - 1, left_R.size
    indptr, items = np.zeros(num_sets + 1, np.int64), np.empty(num_sets * max_size, np.int64)
    for at in range(num_sets):
        end = indptr[at]
        for token in (left_R[at], right_R[at]):
            if token < num_first:
                part = items_S[indptr_N1[token] : indptr_N1[token + 1]]
            else:
                part = items[indptr[token - num_first] : indptr[token - num_first + 1]]
            items[end : end + part.size] = part
            end += part.size
        items[indptr[at] : end] = np.sort(items[indptr[at] : end])
        indptr[at + 1] = end
    return indptr, items[: indptr[num_sets]]
