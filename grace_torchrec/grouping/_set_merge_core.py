"""Numba core of set merging: the best pair of tokens of all bags becomes one token, again and again.

Flow: called by ``set_merge``.  Byte-pair encoding, on sets instead of sequences: a token is an
item or a stored set, a bag is a set of tokens.  A merge takes both tokens out of the bags that
hold them and puts the new one in.  Counts of candidates only fall (but for the new token's), so
a candidate that leaves the heap is recounted and goes back unless it is still the first.
Shapes: B bags, N items, R merges, T = N + R tokens, K partners, L ids.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_torchrec.grouping._beside_core import replace
from grace_torchrec.grouping._heap_core import (
    HALF,
    LOWER_HALF,
    comes_first,
    first_candidates,
    pack,
    pop,
    push,
    replace_top,
    with_room,
    worth,
)
from grace_torchrec.grouping._partner_core import keep_best
from grace_torchrec.grouping._token_core import (
    DENSE,
    clear_bits,
    count_listed,
    count_shared,
    intersect,
    remove,
    set_bits,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@jit
def merge(
    offsets_B1: Int64s,
    ranks_L: Int32s,
    indptr_N1: Int64s,
    bags_L: Int32s,
    partners_NK: Int32s,
    counts_NK: Int32s,
    sizes_N: Int32s,
    budget: int,
    max_size: int,
    least: int,
    scale: float,
    popularity: float,
    size_price: float,
    num_kept: int,
) -> tuple[Int64s, Int32s]:
    """Merge until ``budget`` tokens are made or no candidate has support.

    Args:
        offsets_B1: Start of each bag.
        ranks_L: Ranks of the bags; not changed.
        indptr_N1: Start of each item in ``bags_L``.
        bags_L: The bags that hold each item, rising; not changed.
        partners_NK: First candidates, -1 past the last of an item.
        counts_NK: Their counts.
        sizes_N: How many items each of the first tokens stands for.
        budget: Most merges R.
        max_size: Most items of a set.
        least: Least count of a merge.
        scale: ``RankedBags.pair_scale``.
        popularity: See ``_heap_core.worth``, as the next.
        size_price: See ``_heap_core.worth``.
        num_kept: Most candidates that a new token enters.

    Returns:
        (pair of tokens of each merge as ``pack`` packs them, its count).
    """
    num_items, num_bags = indptr_N1.size - 1, offsets_B1.size - 1
    num_tokens = num_items + budget
    tokens_L, fill_B = ranks_L.copy(), offsets_B1[1:].copy()
    lists = np.empty(2 * bags_L.size + 1, np.int32)  # every merge removes what it appends
    lists[: bags_L.size] = bags_L
    starts_T, ends_T = np.zeros(num_tokens, np.int64), np.zeros(num_tokens, np.int64)
    starts_T[:num_items], ends_T[:num_items] = indptr_N1[:-1], indptr_N1[1:]
    born_T = np.zeros(num_tokens, np.float64)  # bags that held a token when it was made
    born_T[:num_items] = np.diff(indptr_N1)
    sizes_T = np.ones(num_tokens, np.int32)
    sizes_T[:num_items] = sizes_N
    keys, pairs, heap = first_candidates(
        partners_NK, counts_NK, sizes_N, born_T, max_size, scale, popularity, size_price
    )
    made, supports = np.empty(budget, np.int64), np.empty(budget, np.int32)
    counts_T, touched_T = np.zeros(num_tokens, np.int32), np.empty(num_tokens + 1, np.int32)
    best_K, best_counts_K = np.empty(num_kept, np.int32), np.empty(num_kept, np.int32)
    shared_B = np.empty(num_bags + 1, np.int32)
    num_made, free = 0, bags_L.size
    dense = num_bags // DENSE + 1
    row_T = np.full(num_tokens, -1, np.int32)
    num_dense = 0
    while num_dense < num_items and ends_T[num_dense] - starts_T[num_dense] >= dense:
        num_dense += 1  # the first items have the most bags
    bits_DW = np.zeros((num_dense + num_dense // 2 + 1, num_bags // 64 + 1), np.uint64)
    for item in range(num_dense):
        row_T[item] = item
        set_bits(lists[starts_T[item] : ends_T[item]], bits_DW[item])
    while heap > 0 and num_made < budget:
        pair = pairs[0]
        one, other = pair >> HALF, pair & LOWER_HALF
        if ends_T[one] - starts_T[one] > ends_T[other] - starts_T[other]:
            one, other = other, one
        size = sizes_T[one] + sizes_T[other]
        expected = scale * born_T[one] * born_T[other]
        most = ends_T[one] - starts_T[one]
        second = 1
        if heap > 2 and comes_first(keys[2], pairs[2], keys[1], pairs[1]):
            second = 2
        if most >= least:
            bound = worth(most, expected, size, popularity, size_price)
            if heap > 1 and comes_first(keys[second], pairs[second], bound, pair):
                replace_top(keys, pairs, heap, bound, pair)  # too few bags are left for the top
                continue
            most = _count_both(lists, starts_T, ends_T, bits_DW, row_T, one, other, shared_B)
        if most < least:
            heap = pop(keys, pairs, heap)
            continue
        key = worth(most, expected, size, popularity, size_price)
        if heap > 1 and comes_first(keys[second], pairs[second], key, pair):
            replace_top(keys, pairs, heap, key, pair)
            continue
        heap = pop(keys, pairs, heap)
        token = num_items + num_made
        made[num_made], supports[num_made] = pair, most
        num_made += 1
        sizes_T[token], born_T[token] = size, most
        intersect(
            lists[starts_T[one] : ends_T[one]], lists[starts_T[other] : ends_T[other]], shared_B
        )
        shared = shared_B[:most]
        if row_T[one] >= 0:
            clear_bits(shared, bits_DW[row_T[one]])
        if row_T[other] >= 0:
            clear_bits(shared, bits_DW[row_T[other]])
        if most >= dense:
            if num_dense == bits_DW.shape[0]:
                bits_DW = _with_rows(bits_DW)
            row_T[token] = num_dense
            set_bits(shared, bits_DW[num_dense])
            num_dense += 1
        starts_T[token], ends_T[token] = free, free + most
        lists[free : free + most] = shared
        free += most
        ends_T[one] = starts_T[one] + remove(lists[starts_T[one] : ends_T[one]], shared)
        ends_T[other] = starts_T[other] + remove(lists[starts_T[other] : ends_T[other]], shared)
        num_touched = replace(
            offsets_B1, tokens_L, fill_B, shared, one, other, token, counts_T, touched_T
        )
        num_touched = _drop_large(touched_T, num_touched, sizes_T, counts_T, max_size - size)
        kept = keep_best(touched_T[:num_touched], counts_T, least, best_K, best_counts_K)
        keys, pairs = with_room(keys, pairs, heap, kept)
        for at in range(kept):
            partner = best_K[at]
            expected = scale * born_T[partner] * born_T[token]
            key = worth(
                best_counts_K[at], expected, size + sizes_T[partner], popularity, size_price
            )
            heap = push(keys, pairs, heap, key, pack(token, partner))
    return made[:num_made], supports[:num_made]


@jit
def _with_rows(bits_DW: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the bits with room for half as many tokens more."""
    rows = bits_DW.shape[0]
    more = np.zeros((rows + rows // 2 + 1, bits_DW.shape[1]), np.uint64)
    more[:rows] = bits_DW
    return more


@jit
def _count_both(
    lists: Int32s,
    starts_T: Int64s,
    ends_T: Int64s,
    bits_DW: npt.NDArray[np.uint64],
    row_T: Int32s,
    short: int,
    long: int,
    shared_B: Int32s,
) -> Any:
    """Return in how many bags two tokens stand."""
    if row_T[long] < 0:
        return intersect(
            lists[starts_T[short] : ends_T[short]], lists[starts_T[long] : ends_T[long]], shared_B
        )
    if row_T[short] >= 0 and ends_T[short] - starts_T[short] > bits_DW.shape[1]:
        return count_shared(bits_DW[row_T[short]], bits_DW[row_T[long]])
    return count_listed(lists[starts_T[short] : ends_T[short]], bits_DW[row_T[long]])


@jit
def _drop_large(
    touched_T: Int32s, num_touched: int, sizes_T: Int32s, counts_T: Int32s, room: int
) -> int:
    """Leave out partners of more than ``room`` items; return how many are left."""
    kept = 0
    for at in range(num_touched):
        token = touched_T[at]
        if sizes_T[token] > room:
            counts_T[token] = 0
        else:
            touched_T[kept] = token
            kept += 1
    return kept
