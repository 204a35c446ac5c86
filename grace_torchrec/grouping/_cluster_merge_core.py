"""Numba core of cluster merging: the two clusters that save most for their size become one.

Flow: called by ``subset_clusters``.  Clusters are disjoint, so what two of them share does not
change while both live: a candidate is exact from its birth until one of the two is merged.
Shapes: B bags, N items, T = 2 N tokens (items, then clusters in order of birth), L ids.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U
from grace_torchrec.grouping._beside_core import bits_are_few, count_beside, replace
from grace_torchrec.grouping._heap_core import HALF, LOWER_HALF, pack
from grace_torchrec.grouping._queue_core import (
    HEAP,
    OPENED,
    add,
    drop_first,
    first_queue,
    has_room,
    open_next,
    take_opened,
    with_room,
)
from grace_torchrec.grouping._token_core import set_bits, unite, words_of

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
TOKEN, FREE = 0, 1  # places in ``state_2``: the next token, the end of the lists


@jit
def merge(
    offsets_B1: Int64s,
    ranks_L: Int32s,
    indptr_N1: Int64s,
    bags_L: Int32s,
    partners_NK: Int32s,
    counts_NK: Int32s,
    max_size: int,
    least: int,
    num_kept: int,
) -> Int32s:
    """Merge clusters of at most ``max_size`` items until no two have support.

    The value of a merge is the number of bags that hold items of both, divided by the product
    of the sizes: about what it saves for each new subset that matters.

    Args:
        offsets_B1: Start of each bag.
        ranks_L: Ranks of the bags; not changed.
        indptr_N1: Start of each item in ``bags_L``.
        bags_L: The bags that hold each item, rising; not changed.
        partners_NK: First candidates, -1 past the last of an item.
        counts_NK: Their counts.
        max_size: Most items of a cluster.
        least: Least bags that two clusters must share.
        num_kept: Most candidates that a new cluster enters.

    Returns:
        int32 ``[N]``: a number for each item, equal within a cluster.
    """
    num_items = indptr_N1.size - 1
    num_tokens = 2 * num_items
    tokens_L, fill_B = ranks_L.copy(), offsets_B1[1:].copy()
    lists = np.empty(2 * bags_L.size + 1, np.int32)
    lists[: bags_L.size] = bags_L
    starts_T, ends_T = np.zeros(num_tokens, np.int64), np.zeros(num_tokens, np.int64)
    starts_T[:num_items], ends_T[:num_items] = indptr_N1[:-1], indptr_N1[1:]
    sizes_T = np.zeros(num_tokens, np.int32)  # 0: not born, or merged into another
    sizes_T[:num_items] = 1
    parent_T = np.arange(num_tokens).astype(np.int32)
    born_T = np.zeros(num_items, np.float64)  # the value of two items is their count
    queue = first_queue(partners_NK, counts_NK, sizes_T, born_T, max_size, 0.0, 0.0, 0.0)
    counts_T, touched_T = np.zeros(num_tokens, np.int32), np.empty(num_tokens + 1, np.int32)
    values_T = np.empty(num_tokens, np.float64)
    num_bags = offsets_B1.size - 1
    by_bits = bits_are_few(num_bags, num_items, ranks_L.size)
    bits_TW = np.zeros((num_tokens if by_bits else 0, words_of(num_bags)), np.uint64)
    if by_bits:
        for item in range(num_items):
            set_bits(bags_L[indptr_N1[item] : indptr_N1[item + 1]], bits_TW[item])
    state_2 = np.array([num_items, bags_L.size])
    while True:
        if queue.state_5[HEAP] == 0:
            opened = open_next(queue)
            if opened == 0:
                break
            queue = with_room(queue, 0, opened)
            _let_in(queue, sizes_T, max_size)
            continue
        queue = with_room(queue, num_tokens, 0)
        if state_2[FREE] + 2 * num_bags > lists.size:
            lists = _longer(lists, state_2[FREE], 2 * num_bags)
        _merge_while_room(
            queue, offsets_B1, tokens_L, fill_B, lists, starts_T, ends_T, sizes_T, parent_T,
            bits_TW, counts_T, touched_T, values_T, state_2, by_bits, max_size, least, num_kept,
        )  # fmt: skip
    cluster_N = np.empty(num_items, np.int32)
    for item in range(num_items):
        root = item
        while parent_T[root] != root:
            root = parent_T[root]
        cluster_N[item] = root
    return cluster_N


@jit
def _longer(lists: Int32s, used: int, more: int) -> Int32s:
    """Return the lists with room for ``more`` entries, and as much again as there was."""
    longer = np.empty(2 * lists.size + more, np.int32)
    longer[:used] = lists[:used]
    return longer


@jit
def _let_in(queue: Any, sizes_T: Int32s, max_size: int) -> None:
    """Add those candidates of an opened bucket whose clusters live and fit together."""
    while queue.state_5[OPENED] > 0:
        value, pair = take_opened(queue)
        if _is_alive(pair, sizes_T, max_size):
            add(queue, value, pair)


@jit(inline=True)
def _is_alive(pair: int, sizes_T: Int32s, max_size: int) -> Any:
    """Tell whether two clusters can still be merged."""
    one, other = sizes_T[U(pair >> HALF)], sizes_T[U(pair & LOWER_HALF)]
    return one > 0 and other > 0 and one + other <= max_size


@jit
def _merge_while_room(
    queue: Any,
    offsets_B1: Int64s,
    tokens_L: Int32s,
    fill_B: Int64s,
    lists: Int32s,
    starts_T: Int64s,
    ends_T: Int64s,
    sizes_T: Int32s,
    parent_T: Int32s,
    bits_TW: Words,
    counts_T: Int32s,
    touched_T: Int32s,
    values_T: Floats,
    state_2: Int64s,
    by_bits: bool,
    max_size: int,
    least: int,
    num_kept: int,
) -> None:
    """Merge until an array is full or the heap is empty; see ``_set_merge_core``."""
    num_bags = offsets_B1.size - 1
    while (
        queue.state_5[HEAP] > 0
        and has_room(queue, sizes_T.size)
        and state_2[FREE] + 2 * num_bags <= lists.size
    ):
        pair = queue.pairs_H[0]
        drop_first(queue)
        if not _is_alive(pair, sizes_T, max_size):
            continue
        one, other = pair >> HALF, pair & LOWER_HALF
        size = sizes_T[one] + sizes_T[other]
        token, free = state_2[TOKEN], state_2[FREE]
        length = unite(
            lists[starts_T[one] : ends_T[one]], lists[starts_T[other] : ends_T[other]],
            lists[free:],
        )  # fmt: skip
        starts_T[token], ends_T[token] = free, free + length
        state_2[TOKEN], state_2[FREE] = token + 1, free + length
        sizes_T[one], sizes_T[other], sizes_T[token] = 0, 0, size
        parent_T[one], parent_T[other] = token, token
        if by_bits:
            for word in range(bits_TW.shape[1]):
                bits_TW[token, word] = bits_TW[one, word] | bits_TW[other, word]
            num_touched = count_beside(
                token, bits_TW, starts_T, ends_T, sizes_T, max_size - size, least, counts_T,
                touched_T,
            )  # fmt: skip
        else:
            num_touched = replace(
                offsets_B1, tokens_L, fill_B, lists[free : free + length], one, other, token,
                counts_T, touched_T,
            )  # fmt: skip
        _add_best(
            queue, token, touched_T, num_touched, counts_T, sizes_T, max_size, least, num_kept,
            values_T,
        )  # fmt: skip


@jit
def _add_best(
    queue: Any,
    token: int,
    touched_T: Int32s,
    num_touched: int,
    counts_T: Int32s,
    sizes_T: Int32s,
    max_size: int,
    least: int,
    num_kept: int,
    values_T: Floats,
) -> None:
    """Add the candidates of a new cluster of greatest value, clear the counters.

    Candidates that tie with the last one kept are kept too: no order of bags decides.
    """
    size, enough = sizes_T[token], 0
    for at in range(num_touched):
        partner = touched_T[U(at)]
        count = counts_T[U(partner)]
        counts_T[U(partner)] = 0
        others = sizes_T[U(partner)]
        if count >= least and others + size <= max_size:
            touched_T[U(enough)] = partner
            values_T[U(enough)] = count / (size * others)
            enough += 1
    threshold = 0.0
    if enough > num_kept:
        threshold = np.partition(values_T[:enough], enough - num_kept)[enough - num_kept]
    for at in range(enough):
        value = values_T[U(at)]
        if value >= threshold:
            add(queue, value, pack(token, touched_T[U(at)]))
