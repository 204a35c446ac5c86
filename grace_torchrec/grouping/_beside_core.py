"""Numba core of a new token: it takes its place in the bags, and what stands beside it is counted.

Flow: called by the merging cores.  Three ways of counting give the same counts: a counter and a
list entry for each id of the bags (short bags), a counter for each id and one look at all of them
(long bags), bits of the bags alone (few bags and items, long bags).
Shapes: B bags, B1 = B + 1, L ids, T tokens, W words of 64 bags, D tokens with bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U
from grace_torchrec.grouping._pair_core import BAGS_AHEAD, prefetch_bag
from grace_torchrec.grouping._token_core import count_shared

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@jit(inline=True)
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
    walked, num_touched = 0, 0
    for bag in bags:
        walked += fill_B[bag] - offsets_B1[bag]
    for place in range(bags.size):
        prefetch_bag(offsets_B1, tokens_L, bags, place + BAGS_AHEAD)
        bag = bags[place]
        if walked > token:
            for at in range(offsets_B1[bag], fill_B[bag]):
                counts_T[U(tokens_L[U(at)])] += 1
        else:
            for at in range(offsets_B1[bag], fill_B[bag]):
                beside = U(tokens_L[U(at)])
                touched_T[U(num_touched)] = beside
                num_touched += counts_T[beside] == 0
                counts_T[beside] += 1
        fill_B[bag] -= _put(tokens_L, offsets_B1[bag], fill_B[bag], one, other, token)
    if walked > token:  # then looking at every counter once is less than at every step
        for known in range(token):
            touched_T[U(num_touched)] = known
            num_touched += counts_T[U(known)] > 0
    counts_T[one], counts_T[other] = 0, 0
    return num_touched


@jit(inline=True)
def _put(tokens_L: Int32s, start: int, end: int, one: int, other: int, token: int) -> Any:
    """Put a token for one or both of two tokens of a bag; return how much shorter the bag is."""
    one_32, other_32 = np.int32(one), np.int32(other)
    last_one = last_other = np.int32(-1)
    for at in range(end - start):  # no early end, and 32 bits: 16 tokens at a step
        found, place = tokens_L[U(start + at)], np.int32(at)
        last_one = max(last_one, place if found == one_32 else np.int32(-1))
        last_other = max(last_other, place if found == other_32 else np.int32(-1))
    first, second = start + np.int64(last_one), start + np.int64(last_other)
    if last_one < 0 or last_other < 0:
        tokens_L[max(first, second)] = token
        return 0
    tokens_L[min(first, second)] = token
    tokens_L[max(first, second)] = tokens_L[end - 1]
    return 1


@jit
def bits_are_few(num_bags: int, num_tokens: int, num_ids: int) -> Any:
    """Tell whether a bit for every bag and token takes less room than the ids of the bags.

    Then tokens are counted by their bits alone; bags are long, and walking them takes longer.
    """
    return num_tokens * (num_bags // 64 + 1) <= num_ids


@jit
def count_beside(
    token: int,
    bits_DW: Words,
    starts_T: Int64s,
    ends_T: Int64s,
    sizes_T: Int32s,
    room: int,
    least: int,
    counts_T: Int32s,
    touched_T: Int32s,
) -> int:
    """Count what stands in the bags of a token by bits; :func:`replace` does so by walking them.

    Args:
        token: The token.
        bits_DW: Bits of all tokens: row ``t`` has those of token ``t``.
        starts_T: Start of each token's list of bags.
        ends_T: Its end.
        sizes_T: Items of each token; 0 where it lives no more.
        room: Tokens of more items are left out.
        least: Tokens in fewer bags are left out, and those that share fewer.
        counts_T: See :func:`replace`, as the next.
        touched_T: See :func:`replace`.

    Returns:
        How many tokens were touched.
    """
    num_touched = 0
    for other in range(token):
        if ends_T[other] - starts_T[other] < least or sizes_T[other] == 0 or sizes_T[other] > room:
            continue
        count = count_shared(bits_DW, token, other)
        if count >= least:
            counts_T[other] = count
            touched_T[num_touched] = other
            num_touched += 1
    return num_touched
