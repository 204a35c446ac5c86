"""Numba core of set merging: the best pair of tokens of all bags becomes one token, again and again.

Flow: called by ``set_merge``.  Byte-pair encoding, on sets instead of sequences: a token is an
item or a stored set, a bag is a set of tokens.  A merge takes both tokens out of the bags that
hold them and puts the new one in. Counts of candidates only fall (but for the new token's), so
candidates are counted again when their bucket is opened, and once more when they are the first.
Shapes: B bags, N items, R merges, T = N + R tokens, K partners, L ids.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U
from grace_torchrec.grouping._beside_core import replace
from grace_torchrec.grouping._heap_core import HALF, LOWER_HALF, pack, worth
from grace_torchrec.grouping._partner_core import keep_best
from grace_torchrec.grouping._queue_core import (
    CURRENT,
    HEAP,
    OPENED,
    add,
    bucket_of,
    drop_first,
    first_queue,
    lower_first,
    open_next,
    stays_first,
    take_opened,
    with_room,
)
from grace_torchrec.grouping._token_core import (
    DENSE,
    clear_bits,
    count_listed,
    count_shared,
    count_walked,
    intersect,
    remove,
    set_bits,
    words_of,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
NONE = -1
MADE, FREE, ROWS = 0, 1, 2  # places in ``state_3``: sets made, end of the lists, tokens with bits


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
    queue = first_queue(
        partners_NK, counts_NK, sizes_N, born_T, max_size, scale, popularity, size_price
    )
    made, supports = np.empty(budget, np.int64), np.empty(budget, np.int32)
    counts_T, touched_T = np.zeros(num_tokens, np.int32), np.empty(num_tokens + 1, np.int32)
    best_K, best_counts_K = np.empty(num_kept, np.int32), np.empty(num_kept, np.int32)
    shared_B = np.empty(num_bags + 1, np.int32)
    dense = num_bags // DENSE + 1
    row_T = np.full(num_tokens, -1, np.int32)
    num_dense = 0
    while num_dense < num_items and ends_T[num_dense] - starts_T[num_dense] >= dense:
        num_dense += 1  # the first items have the most bags
    bits_DW = np.zeros((num_dense + num_dense // 2 + 1, words_of(num_bags)), np.uint64)
    for item in range(num_dense):
        row_T[item] = item
        set_bits(lists[starts_T[item] : ends_T[item]], bits_DW[item])
    state_3 = np.array([0, bags_L.size, num_dense])
    opened = 0
    while state_3[MADE] < budget:
        queue = with_room(queue, queue.state_5[HEAP] + num_kept, opened)
        pair = _next_pair(
            queue, lists, starts_T, ends_T, born_T, sizes_T, bits_DW, row_T, least, scale,
            popularity, size_price,
        )  # fmt: skip
        opened = 0
        if pair == NONE:
            opened = open_next(queue)
            if opened == 0:
                break
            continue
        if state_3[ROWS] == bits_DW.shape[0]:
            bits_DW = _with_rows(bits_DW)
        _make(
            pair, queue, offsets_B1, tokens_L, fill_B, lists, starts_T, ends_T, born_T, sizes_T,
            bits_DW, row_T, made, supports, counts_T, touched_T, best_K, best_counts_K, shared_B,
            state_3, num_items, max_size, least, dense, scale, popularity, size_price,
        )  # fmt: skip
    return made[: state_3[MADE]], supports[: state_3[MADE]]


@jit
def _next_pair(
    queue: Any,
    lists: Int32s,
    starts_T: Int64s,
    ends_T: Int64s,
    born_T: Floats,
    sizes_T: Int32s,
    bits_DW: Words,
    row_T: Int32s,
    least: int,
    scale: float,
    popularity: float,
    size_price: float,
) -> Any:
    """Put the candidates of an opened bucket where they belong by now, then find the best of the heap.

    One loop for both, and all counting in it: nearly all candidates go back, and inlined functions
    that take arrays through branches would count their references every time.

    Returns:
        The pair, which is taken out of the queue; ``NONE`` where no candidate of the heap is left.
    """
    while queue.state_5[OPENED] > 0 or queue.state_5[HEAP] > 0:
        is_opened = queue.state_5[OPENED] > 0
        pair = take_opened(queue)[1] if is_opened else queue.pairs_H[0]
        one, other = pair >> HALF, pair & LOWER_HALF
        expected = scale * born_T[U(one)] * born_T[U(other)]  # in this order wherever it is formed
        if ends_T[U(one)] - starts_T[U(one)] > ends_T[U(other)] - starts_T[U(other)]:
            one, other = other, one
        start, end, row = starts_T[U(one)], ends_T[U(one)], row_T[U(other)]
        size = sizes_T[U(one)] + sizes_T[U(other)]
        most = end - start
        key = worth(most, expected, size, popularity, size_price)
        if most >= least and bucket_of(key) >= queue.state_5[CURRENT]:  # else too few bags are left
            if row < 0:
                most = count_walked(lists, start, end, starts_T[U(other)], ends_T[U(other)])
            elif row_T[U(one)] >= 0 and most > bits_DW.shape[1]:
                most = count_shared(bits_DW, row_T[U(one)], row)
            else:
                most = count_listed(lists, start, end, bits_DW, row)
            key = worth(most, expected, size, popularity, size_price)
        if is_opened:
            if most >= least:
                add(queue, key, pair)
        elif most < least:
            drop_first(queue)
        elif stays_first(queue, key, pair):
            drop_first(queue)
            return pair
        else:
            lower_first(queue, key, pair)
    return NONE


@jit
def _make(
    pair: int,
    queue: Any,
    offsets_B1: Int64s,
    tokens_L: Int32s,
    fill_B: Int64s,
    lists: Int32s,
    starts_T: Int64s,
    ends_T: Int64s,
    born_T: Floats,
    sizes_T: Int32s,
    bits_DW: Words,
    row_T: Int32s,
    made: Int64s,
    supports: Int32s,
    counts_T: Int32s,
    touched_T: Int32s,
    best_K: Int32s,
    best_counts_K: Int32s,
    shared_B: Int32s,
    state_3: Int64s,
    num_items: int,
    max_size: int,
    least: int,
    dense: int,
    scale: float,
    popularity: float,
    size_price: float,
) -> None:
    """Make one token of two in all bags that hold both, and queue what stands beside it."""
    one, other = pair >> HALF, pair & LOWER_HALF
    if ends_T[one] - starts_T[one] > ends_T[other] - starts_T[other]:
        one, other = other, one
    most = intersect(
        lists[starts_T[one] : ends_T[one]], lists[starts_T[other] : ends_T[other]], shared_B
    )
    shared = shared_B[:most]
    size = sizes_T[one] + sizes_T[other]
    token = num_items + state_3[MADE]
    made[state_3[MADE]], supports[state_3[MADE]] = pair, most
    state_3[MADE] += 1
    sizes_T[token], born_T[token] = size, most
    free = state_3[FREE]
    lists[free : free + most] = shared
    starts_T[token], ends_T[token] = free, free + most
    state_3[FREE] = free + most
    if row_T[one] >= 0:
        clear_bits(shared, bits_DW[row_T[one]])
    if row_T[other] >= 0:
        clear_bits(shared, bits_DW[row_T[other]])
    if most >= dense:
        row_T[token] = state_3[ROWS]
        set_bits(shared, bits_DW[state_3[ROWS]])
        state_3[ROWS] += 1
    ends_T[one] = starts_T[one] + remove(lists[starts_T[one] : ends_T[one]], shared)
    ends_T[other] = starts_T[other] + remove(lists[starts_T[other] : ends_T[other]], shared)
    num_touched = replace(
        offsets_B1, tokens_L, fill_B, shared, one, other, token, counts_T, touched_T
    )  # fmt: skip
    num_touched = _drop_large(touched_T, num_touched, sizes_T, counts_T, max_size - size)
    kept = keep_best(touched_T[:num_touched], counts_T, least, best_K, best_counts_K)
    for at in range(kept):
        partner = best_K[at]
        expected = scale * born_T[token] * born_T[partner]
        key = worth(best_counts_K[at], expected, size + sizes_T[partner], popularity, size_price)
        add(queue, key, pack(token, partner))


@jit
def _with_rows(bits_DW: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the bits with room for half as many tokens more."""
    rows = bits_DW.shape[0]
    more = np.zeros((rows + rows // 2 + 1, bits_DW.shape[1]), np.uint64)
    more[:rows] = bits_DW
    return more


@jit(inline=True)
def _drop_large(
    touched_T: Int32s, num_touched: int, sizes_T: Int32s, counts_T: Int32s, room: int
) -> int:
    """Leave out partners of more than ``room`` items; return how many are left."""
    kept = 0
    for at in range(num_touched):
        token = touched_T[U(at)]
        if sizes_T[U(token)] > room:
            counts_T[U(token)] = 0
        else:
            touched_T[U(kept)] = token
            kept += 1
    return kept
