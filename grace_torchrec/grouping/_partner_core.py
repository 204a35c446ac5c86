"""Numba core of the best partners: the counts of one item at a time, the best K kept.

Flow: called by ``partners``.  Items are numbered by falling frequency (their *rank*) and the
ranks of a bag rise, so the more frequent partners of an item are what stands before it in its
bags: every pair is counted once, at its rarer item, and a row of counters is all the memory.
Shapes: B bags, B1 = B + 1, W words of 64 bags, N items, N1 = N + 1, L ids, K partners kept.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U
from grace_torchrec.grouping._pair_core import BAGS_AHEAD, prefetch_bag
from grace_torchrec.grouping._token_core import count_shared, set_bits, words_of

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@jit
def count_partners(
    offsets_B1: Int64s,
    ranks_L: Int32s,
    indptr_N1: Int64s,
    bags_L: Int32s,
    least: int,
    first: int,
    step: int,
    partners_NK: Int32s,
    counts_NK: Int32s,
) -> None:
    """Write the best partners of the items ``first, first + step, ...``; -1 where there are fewer.

    Kept are the K highest counts; of equal counts the lower rank, so that the order of the bags
    has no influence. Their order in the row is no promise.

    Args:
        offsets_B1: Start of each bag in ``ranks_L``.
        ranks_L: Ranks, rising in each bag without repeats.
        indptr_N1: Start of each item in ``bags_L``.
        bags_L: The bags that hold each item.
        least: Least count of a partner worth keeping, 1 or more.
        first: First item.
        step: Distance of the items, so that threads share frequent and rare ones alike.
        partners_NK: Receives partners, all of lower rank than their item.
        counts_NK: Receives in how many bags both stand.
    """
    num_items = indptr_N1.size - 1
    counts = np.zeros(num_items, np.int32)
    touched = np.empty(num_items + 1, np.int32)
    for item in range(first, num_items, step):
        bags = bags_L[indptr_N1[item] : indptr_N1[item + 1]]
        num_touched = _count_before(offsets_B1, ranks_L, bags, item, least, counts, touched)
        keep_best(touched[:num_touched], counts, least, partners_NK[item], counts_NK[item])
        _clear_before(offsets_B1, ranks_L, bags, item, counts)


@jit
def _count_before(
    offsets_B1: Int64s, ranks_L: Int32s, bags: Int32s, item: int, least: int,
    counts_N: Int32s, enough: Int32s,
) -> int:  # fmt: skip
    """Count the lower ranks in ``bags``; write those that reach ``least``; return how many do."""
    num = 0
    for place in range(bags.size):
        prefetch_bag(offsets_B1, ranks_L, bags, place + BAGS_AHEAD)
        at = offsets_B1[bags[place]]
        while ranks_L[U(at)] < item:
            partner = U(ranks_L[U(at)])
            count = counts_N[partner] + 1
            counts_N[partner] = count
            enough[U(num)] = partner
            num += count == least
            at += 1
    return num


@jit
def _clear_before(
    offsets_B1: Int64s, ranks_L: Int32s, bags: Int32s, item: int, counts_N: Int32s
) -> None:
    """Clear the counters of the lower ranks in ``bags``."""
    for place in range(bags.size):
        prefetch_bag(offsets_B1, ranks_L, bags, place + BAGS_AHEAD)
        at = offsets_B1[bags[place]]
        while ranks_L[U(at)] < item:
            counts_N[U(ranks_L[U(at)])] = 0
            at += 1


@jit
def count_partners_by_bits(
    bits_NW: Words,
    lengths_N: Int64s,
    least: int,
    first: int,
    step: int,
    partners_NK: Int32s,
    counts_NK: Int32s,
) -> None:
    """Do what :func:`count_partners` does, 64 bags at a step.

    Args:
        bits_NW: A bit for every bag that holds an item.
        lengths_N: Bags that hold each item.
        least: See :func:`count_partners`, as the next.
        first: See :func:`count_partners`.
        step: See :func:`count_partners`.
        partners_NK: See :func:`count_partners`.
        counts_NK: See :func:`count_partners`.
    """
    num_items = bits_NW.shape[0]
    counts = np.zeros(num_items, np.int32)
    touched = np.empty(num_items + 1, np.int32)
    for item in range(first, num_items, step):
        num_touched = 0
        if lengths_N[item] >= least:
            for partner in range(item):
                count = count_shared(bits_NW, partner, item)
                counts[partner] = count
                touched[num_touched] = partner
                num_touched += count >= least
        keep_best(touched[:num_touched], counts, least, partners_NK[item], counts_NK[item])


@jit
def bags_as_bits(indptr_N1: Int64s, bags_L: Int32s, num_bags: int) -> Words:
    """Return a bit for every bag that holds an item, ``[N, W]``."""
    num_items = indptr_N1.size - 1
    bits_NW = np.zeros((num_items, words_of(num_bags)), np.uint64)
    for item in range(num_items):
        set_bits(bags_L[indptr_N1[item] : indptr_N1[item + 1]], bits_NW[item])
    return bits_NW


@jit
def keep_best(
    touched: Int32s, counts_N: Int32s, least: int, partners_K: Int32s, counts_K: Int32s
) -> int:
    """Move the K highest counts to a row and clear all counters; return how many there are.

    Args:
        touched: Items whose counter is not 0.
        counts_N: Counters, cleared on return.
        least: Least count to keep.
        partners_K: Receives the kept items, then -1.
        counts_K: Receives their counts.
    """
    room = partners_K.size
    enough = 0
    highest = np.int64(0)
    for at in range(touched.size):
        count = counts_N[U(touched[U(at)])]
        enough += count >= least
        highest = max(highest, np.int64(count))
    threshold, ties = np.int64(least), np.int64(room)
    if enough > room:  # the K-th highest count, and how many of that count fit
        histogram = np.zeros(highest + 1, np.int32)
        for at in range(touched.size):
            histogram[U(counts_N[U(touched[U(at)])])] += 1
        threshold = highest
        while histogram[threshold] < ties:
            ties -= histogram[threshold]
            threshold -= 1
    kept, num_equal = 0, 0
    for at in range(touched.size):
        item = touched[U(at)]
        count = counts_N[U(item)]
        counts_N[U(item)] = 0
        if count > threshold or (enough <= room and count == threshold):
            partners_K[U(kept)] = item
            counts_K[U(kept)] = count
            kept += 1
        elif count == threshold:
            touched[U(num_equal)] = item  # read already: what is written lies behind
            num_equal += 1
    if enough > room:
        for item in np.sort(touched[:num_equal])[:ties]:
            partners_K[U(kept)] = item
            counts_K[kept] = threshold
            kept += 1
    partners_K[kept:] = -1
    return kept
