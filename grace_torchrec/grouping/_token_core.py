"""Numba core of the bags by token: which bags hold a token, as rising lists.

Flow: called by the merging cores.  A token is an item or what a merge made of two tokens.
Tokens of many bags have a bit for every bag as well: counting what two of them share is then a
word operation for 64 bags.
Shapes: B bags, B1 = B + 1, L ids, T tokens, W words of 64 bags, D tokens with bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
SKEWED = 16  # a list this many times longer is searched, not walked
DENSE = 128  # tokens in one of so many bags have bits: at most 32 bytes for each id of the bags
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_1, _2, _4, _6 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(6)
_56, _63 = np.uint64(56), np.uint64(63)


@jit
def count_ones(word: Any) -> Any:
    """Return how many of 64 bits are set (LLVM knows this pattern: one instruction)."""
    word = word - ((word >> _1) & _PAIRS)
    word = (word & _FOURS) + ((word >> _2) & _FOURS)
    return (((word + (word >> _4)) & _BYTES) * _SUM) >> _56


@jit
def set_bits(bags: Int32s, bits_W: Words) -> None:
    """Set the bit of every bag."""
    for bag in bags:
        bits_W[np.uint64(bag) >> _6] |= _1 << (np.uint64(bag) & _63)


@jit
def clear_bits(bags: Int32s, bits_W: Words) -> None:
    """Clear the bit of every bag."""
    for bag in bags:
        bits_W[np.uint64(bag) >> _6] &= ~(_1 << (np.uint64(bag) & _63))


@jit
def count_shared(one_W: Words, other_W: Words) -> Any:
    """Return in how many bags both stand."""
    shared = np.uint64(0)
    for word in range(one_W.size):
        shared += count_ones(one_W[word] & other_W[word])
    return np.int64(shared)


@jit
def count_listed(bags: Int32s, bits_W: Words) -> Any:
    """Return how many of the listed bags have their bit set."""
    shared = np.uint64(0)
    for bag in bags:
        shared += (bits_W[np.uint64(bag) >> _6] >> (np.uint64(bag) & _63)) & _1
    return np.int64(shared)


@jit
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
        one, other = short[i], long[j]
        out[found] = one
        found += one == other
        i += one <= other
        j += other <= one
    return found


@jit
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


@jit
def remove(values: Int32s, gone: Int32s) -> int:
    """Remove ``gone`` from a rising list that holds all of it, in place; return what is left."""
    kept, next_gone = 0, 0
    for value in values:
        if next_gone < gone.size and gone[next_gone] == value:
            next_gone += 1
        else:
            values[kept] = value
            kept += 1
    return kept


@jit
def unite(one: Int32s, other: Int32s, out: Int32s) -> int:
    """Write the union of two rising lists to ``out``; return its length."""
    i, j, size = 0, 0, 0
    while i < one.size and j < other.size:
        left, right = one[i], other[j]
        out[size] = min(left, right)
        size += 1
        i += left <= right
        j += right <= left
    while i < one.size:
        out[size] = one[i]
        size += 1
        i += 1
    while j < other.size:
        out[size] = other[j]
        size += 1
        j += 1
    return size


@jit
def replace(
    offsets_B1: Int64s,
    tokens_L: Int32s,
    fill_B: Int64s,
    bags: Int32s,
    one: int,
    other: int,
    token: int,
    counts_T: Int32s,
    touched_T: Int32s,
) -> int:
    """Put ``token`` for one or both of two tokens into their bags, count what stands beside it.

    Args:
        offsets_B1: Start of each bag in ``tokens_L``.
        tokens_L: The tokens of each bag, in any order.
        fill_B: End of each bag's tokens.
        bags: Bags that hold one or both of the two.
        one: A token.
        other: Another one.
        token: The token that takes their place.
        counts_T: Counters, 0 on entry: how many of the bags hold each token beside the new one.
        touched_T: Receives the tokens whose counter is not 0.

    Returns:
        How many tokens were touched; the counters of the two are 0 though they may be listed.
    """
    walked, num_touched = np.int64(0), np.int64(0)
    for bag in bags:
        walked += fill_B[bag] - offsets_B1[bag]
    for bag in bags:
        if walked > token:
            for at in range(offsets_B1[bag], fill_B[bag]):
                counts_T[tokens_L[at]] += 1
        else:
            for at in range(offsets_B1[bag], fill_B[bag]):
                touched_T[num_touched] = tokens_L[at]
                num_touched += counts_T[tokens_L[at]] == 0
                counts_T[tokens_L[at]] += 1
        fill_B[bag] -= _put(tokens_L[offsets_B1[bag] : fill_B[bag]], one, other, token)
    if walked > token:  # then looking at every counter once is less than at every step
        for beside in range(token):
            touched_T[num_touched] = beside
            num_touched += counts_T[beside] > 0
    counts_T[one], counts_T[other] = 0, 0
    return num_touched


@jit
def _put(tokens: Int32s, one: int, other: int, token: int) -> bool:
    """Put a token for one or both of two tokens of a bag; tell whether the bag is one shorter."""
    place = np.int64(-1)
    for at in range(tokens.size):
        if tokens[at] != one and tokens[at] != other:
            continue
        if place >= 0:
            tokens[at] = tokens[tokens.size - 1]
            return True
        tokens[at] = token
        place = at
    return False


@jit
def bits_are_few(num_bags: int, num_tokens: int, num_ids: int) -> Any:
    """Tell whether a bit for every bag and token takes less room than the ids of the bags.

    Then tokens are counted by their bits alone; bags are long, and walking them takes longer.
    """
    return num_tokens * (num_bags // 64 + 1) <= num_ids


@jit
def count_beside(
    token_W: Words,
    bits_DW: Words,
    lengths_T: Int64s,
    sizes_T: Int32s,
    room: int,
    least: int,
    counts_T: Int32s,
    touched_T: Int32s,
) -> int:
    """Count what stands in the bags of a token by bits; :func:`replace` does so by walking them.

    Args:
        token_W: Bits of the token.
        bits_DW: Bits of the tokens it is counted with: row ``t`` has those of token ``t``.
        lengths_T: Bags that hold each of these tokens.
        sizes_T: Items of each token; 0 where it lives no more.
        room: Tokens of more items are left out.
        least: Tokens in fewer bags are left out, and those that share fewer.
        counts_T: See :func:`replace`, as the next.
        touched_T: See :func:`replace`.

    Returns:
        How many tokens were touched.
    """
    num_touched = 0
    for other in range(lengths_T.size):
        if lengths_T[other] < least or sizes_T[other] == 0 or sizes_T[other] > room:
            continue
        count = count_shared(token_W, bits_DW[other])
        if count >= least:
            counts_T[other] = count
            touched_T[num_touched] = other
            num_touched += 1
    return num_touched


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
