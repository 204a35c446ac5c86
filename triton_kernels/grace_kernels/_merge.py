"""Numba core of rewriting, second pass: the items of one bag that share a cluster become one row.

Flow: _split_ids.py sets the clustered ids of a chunk aside; merge_chunk merges them, bag by bag,
and writes the rows of all ids.  _merge_subsets.py does so for clusters that store only some subsets,
_merge_weighted.py for weights and wide codes.
Meaning: reference.py (``rewrite_clusters_reference``), equal row by row.

How it is fast. Bags whose codes rise strictly are merged run by run. The others meet in a small
hash table whose entry is one integer, ``epoch | block | mask``: the table is never cleared
between bags, an id costs one load and one store, and "new row or known row" is a maximum and
an addition instead of a branch that would be mispredicted for every second id. Which stored
row a cluster reads is worked out once, after its last item.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._llvm import load_i64
from grace_kernels._places import U, stored_place
from grace_kernels._prefetch import END, LIST_AT, NEXT, ROW_BYTES, prefetch_row
from grace_kernels.reference import MAX_LAYERS

# mask -> place of the subset in its cluster's block; a mask of one bit owns no stored row
PLACE_OF_MASK = np.array([m - 1 - m.bit_length() for m in range(256)], np.int64)
HASH = np.int64(-7046029254386353131)  # 2**64 / golden ratio, odd
# Entry: 27 bits epoch, 28 bits block, 8 bits mask. Entries of earlier bags are below every entry
# of this one and count as free.
EPOCH_SHIFT, BLOCK_SHIFT = 36, 8
BLOCK_MASK = (1 << (EPOCH_SHIFT - BLOCK_SHIFT)) - 1
MASK_BITS = 255
MAX_EPOCH = (1 << 27) - 1
# entry ^ key is below 2**8 for the same cluster and 2**36 or more for an entry of an earlier
# bag. One unsigned comparison finds what lies between: another cluster of this bag.
SAME_CLUSTER = 1 << BLOCK_SHIFT
OTHER_CLUSTER = np.uint64((1 << EPOCH_SHIFT) - SAME_CLUSTER)
SLOTS_PER_ID = 4


@jit
def num_slots(num_ids: int) -> Any:
    """Return the slots of the hash table for ``num_ids`` clustered ids: a power of two."""
    slots = 64
    while slots < SLOTS_PER_ID * num_ids:
        slots <<= 1
    return slots


@jit
def fresh_epoch(entries: Any, epoch: Any, num_bags: Any) -> Any:
    """Return the epoch before that of the next bag; where they would run out, begin anew."""
    if epoch < MAX_EPOCH - num_bags:
        return epoch
    entries[:] = 0
    return np.int64(0)


@jit
def merge_chunk(split: Any, num_bags: int, table: Any, hashed: Any, epoch: int, rows: Any,
                out: int, ends: Any, queue: Any) -> Any:  # fmt: skip
    """Write the rows of unweighted bags to ``rows[out:]``: ids alone, then one row per cluster.

    Args:
        split: Of ``split_chunk``, blocks below 2**28.
        num_bags: Bags of the chunk.
        table: Where rows lie.
        hashed: int64 arrays: hash table, ``num_slots(longest bag) + 1`` or more entries of
            earlier epochs, the last one 0; slots, longer than the longest bag.
        epoch: Of the last bag merged with this hash table.
        rows: int64, receives places; GROUP entries longer than the bags need.
        out: Where to write first.
        ends: int64 ``[num_bags + 1]``, ``ends[k + 1]`` receives the end of bag ``k``.
        queue: Rows to prefetch meanwhile.

    Returns:
        The last epoch.
    """
    ends[0] = out
    bag = np.int64(0)
    epoch = fresh_epoch(hashed[0], epoch, num_bags)
    while bag < num_bags:
        bag = _merge_runs(split, bag, num_bags, table, rows, ends, queue)
        if bag < num_bags:
            bag, epoch = _merge_hashed(
                split, bag, num_bags, table, hashed, epoch, rows, ends, queue
            )
    return epoch


@jit
def _is_rising(codes, begin, end):
    """Tell whether codes rise strictly: no code comes twice, and clusters come in one piece."""
    rising = 0  # a sum instead of a branch, and so eight comparisons at once
    for j in range(begin + 1, end):
        rising += codes[U(j)] > codes[U(j - 1)]
    return rising >= end - begin - 1


@jit
def _merge_runs(split, bag, num_bags, table, rows, ends, queue):
    """Merge bags as long as their codes rise strictly; return the first bag left."""
    singles, alone_ends, multi, multi_ends = split
    queued, queue_end, list_at, row_bytes = (
        queue[NEXT],
        queue[END],
        queue[LIST_AT],
        queue[ROW_BYTES],
    )
    while bag < num_bags and _is_rising(multi[1], multi_ends[bag], multi_ends[bag + 1]):
        last = ends[bag] - 1
        for i in range(alone_ends[bag], alone_ends[bag + 1]):
            last += 1
            rows[U(last)] = singles[0, U(i)]
        last_block, mask = np.int64(-1), np.int64(0)
        for j in range(multi_ends[bag], multi_ends[bag + 1]):
            if queued < queue_end:
                prefetch_row(load_i64(list_at + 8 * queued), row_bytes)
                queued += 1
            code = multi[1, U(j)]
            block, bit = code >> 3, np.int64(1) << (code & 7)
            fresh = np.int64(block != last_block)
            last_block = block
            known = fresh - 1  # 0 or -1
            mask = (mask & known) | bit
            stored = stored_place(block + PLACE_OF_MASK[U(mask)], table)
            last += fresh
            rows[U(last)] = (multi[0, U(j)] & ~known) | (stored & known)
        bag += 1
        ends[bag] = last + 1
    queue[NEXT] = queued
    return bag


@jit
def _merge_hashed(split, bag, num_bags, table, hashed, epoch, rows, ends, queue):
    """Merge bags in any order of ids, until one whose codes rise; return first bag left and epoch."""
    singles, alone_ends, multi, multi_ends = split
    entries, slots = hashed[0], hashed[1]
    queued, queue_end, list_at, row_bytes = (
        queue[NEXT],
        queue[END],
        queue[LIST_AT],
        queue[ROW_BYTES],
    )
    while bag < num_bags:
        begin, end = multi_ends[bag], multi_ends[bag + 1]
        if _is_rising(multi[1], begin, end):
            break
        out = ends[bag]
        for i in range(alone_ends[bag], alone_ends[bag + 1]):
            rows[U(out)] = singles[0, U(i)]
            out += 1
        epoch += 1
        stamp = np.int64(epoch) << EPOCH_SHIFT
        last_slot = num_slots(end - begin) - 1
        count = np.int64(0)
        for j in range(begin, end):
            if queued < queue_end:
                prefetch_row(load_i64(list_at + 8 * queued), row_bytes)
                queued += 1
            slot, is_new = join_layer(entries, multi[1, U(j)], stamp, last_slot)
            rows[U(out + count)] = multi[0, U(j)]  # the next new row overwrites it, unless new
            slots[U(count)] = slot
            count += is_new
        for i in range(count):
            entry = entries[U(slots[U(i)])]
            mask = entry & MASK_BITS
            row = ((entry >> BLOCK_SHIFT) & BLOCK_MASK) + PLACE_OF_MASK[U(mask)]
            alone = ((mask & (mask - 1)) - 1) >> 63  # -1 for one item: it keeps its own row
            rows[U(out + i)] = (rows[U(out + i)] & alone) | (stored_place(row, table) & ~alone)
        bag += 1
        ends[bag] = out + count
    queue[NEXT] = queued
    return bag, epoch


@jit(inline=True)
def join_layer(entries: Any, code: Any, stamp: Any, last_slot: Any) -> Any:
    """Let an item join the first layer of its cluster that lacks it.

    A repeated id is in its cluster's mask already: it goes on to the next layer, a slot of the
    same cluster further on, or past MAX_LAYERS reads its own row.

    Args:
        entries: Hash table; its last entry is 0: no cluster, the row stays what it is.
        code: ``block * 8 + slot in the cluster``.
        stamp: The epoch of the bag, in its place.
        last_slot: Slots of the hash table that the bag uses, less one.

    Returns:
        (slot of the layer, or the last entry; 1 if it is new).
    """
    bit = np.int64(1) << (code & 7)
    key = stamp | ((code >> 3) << BLOCK_SHIFT)
    slot = (((code >> 3) * HASH) >> 40) & last_slot
    slot, entry = _slot_of_cluster(entries, slot, last_slot, key)
    layers = 0
    while entry & bit != 0:
        layers += 1
        slot, entry = _slot_of_cluster(entries, (slot + 1) & last_slot, last_slot, key)
        if layers == MAX_LAYERS:
            return entries.size - 1, np.int64(1)
    is_new = (entries[U(slot)] - stamp >> 63) & 1
    entries[U(slot)] = entry | bit
    return slot, is_new


@jit(inline=True)
def _slot_of_cluster(entries, slot, last_slot, key):
    """Return the first slot from ``slot`` on that is free or the cluster's, and its entry.

    A free slot has the entry ``key``: the cluster with no item yet. The maximum finds it without
    a branch, because entries of earlier bags are below ``key`` and the cluster's own are not.
    """
    entry = entries[U(slot)]
    while np.uint64((entry ^ key) - SAME_CLUSTER) < OTHER_CLUSTER:
        slot = (slot + 1) & last_slot
        entry = entries[U(slot)]
    return slot, max(entry, key)
