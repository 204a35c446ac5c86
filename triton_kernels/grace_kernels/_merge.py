"""Numba core of rewriting, second pass: the items of one bag that share a cluster become one row.

Flow: _split_ids.py sets the clustered ids of a chunk aside; merge_chunk, or merge_weighted_chunk,
merges them, bag by bag, and writes the rows of all ids.
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
from grace_kernels._prefetch import END, LIST_AT, NEXT, ROW_BYTES, prefetch_row
from grace_kernels._split_ids import U
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
def stored_place(row: Any, table: Any) -> Any:
    """Return where stored row ``row`` lies, without a branch on its tier."""
    _, hbm_at, host_at, num_hbm_sums, row_bytes = table[:5]
    in_hbm = (row - num_hbm_sums) >> 63  # -1 or 0
    base = (hbm_at & in_hbm) | ((host_at - num_hbm_sums * row_bytes) & ~in_hbm)
    return base + row * row_bytes


@jit
def merge_chunk(split: Any, num_bags: int, table: Any, entries: Any, slots: Any, epoch: int,
                rows: Any, out: int, ends: Any, queue: Any) -> Any:  # fmt: skip
    """Write the rows of unweighted bags to ``rows[out:]``: ids alone, then one row per cluster.

    Args:
        split: Of ``split_chunk``, blocks below 2**28.
        num_bags: Bags of the chunk.
        table: Where rows lie.
        entries: int64 hash table, ``num_slots(longest bag) + 1`` or more entries of earlier
            epochs; the last one is 0.
        slots: int64, longer than the longest bag.
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
    while bag < num_bags:
        if epoch >= MAX_EPOCH - num_bags:
            entries[:] = 0
            epoch = 0
        bag = _merge_runs(split, bag, num_bags, table, rows, ends, queue)
        if bag < num_bags:
            bag, epoch = _merge_hashed(
                split, bag, num_bags, table, entries, slots, epoch, rows, ends, queue
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
def _merge_hashed(split, bag, num_bags, table, entries, slots, epoch, rows, ends, queue):
    """Merge bags in any order of ids, until one whose codes rise; return first bag left and epoch.

    A repeated id is in its cluster's mask already: it goes on to the next layer, a slot of the
    same cluster further on, or past MAX_LAYERS reads its own row.
    """
    singles, alone_ends, multi, multi_ends = split
    queued, queue_end, list_at, row_bytes = (
        queue[NEXT],
        queue[END],
        queue[LIST_AT],
        queue[ROW_BYTES],
    )
    nowhere = entries.size - 1  # its entry is 0: no cluster, the row stays what it is
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
            code = multi[1, U(j)]
            bit = np.int64(1) << (code & 7)
            key = stamp | ((code >> 3) << BLOCK_SHIFT)
            slot = (((code >> 3) * HASH) >> 40) & last_slot
            slot, entry = _slot_of_cluster(entries, slot, last_slot, key)
            layers = 0
            while entry & bit != 0:
                layers += 1
                slot, entry = _slot_of_cluster(entries, (slot + 1) & last_slot, last_slot, key)
                if layers == MAX_LAYERS:
                    slot = nowhere
                    break
            rows[U(out + count)] = multi[
                0, U(j)
            ]  # the next new row overwrites it, unless it is new
            slots[U(count)] = slot
            if slot != nowhere:
                count += (entries[U(slot)] - stamp >> 63) & 1
                entries[U(slot)] = entry | bit
            else:
                count += 1
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


@jit
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


@jit
def merge_weighted_chunk(split: Any, num_bags: int, table: Any, weight_bits: Any, scratch: Any,
                         rows: Any, origin: Any, out: int, ends: Any) -> Any:  # fmt: skip
    """Write the rows of bags that are weighted, or whose codes are wide, to ``rows[out:]``.

    Args:
        split: Of ``split_chunk``.
        num_bags: Bags of the chunk.
        table: Where rows lie.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        scratch: int64 ``[4, num_slots(longest bag)]``.
        rows: int64, receives places.
        origin: int64, receives the position each row came from, or empty.
        out: Where to write first.
        ends: int64 ``[num_bags + 1]``, ``ends[k + 1]`` receives the end of bag ``k``.
    """
    singles, alone_ends, multi, multi_ends = split
    ends[0] = out
    for bag in range(num_bags):
        out = ends[bag]
        for i in range(alone_ends[bag], alone_ends[bag + 1]):
            rows[U(out)] = singles[0, U(i)]
            if origin.size > 0:
                origin[U(out)] = singles[1, U(i)]
            out += 1
        ends[bag + 1] = _merge_weighted_bag(
            multi,
            multi_ends[bag],
            multi_ends[bag + 1],
            table,
            weight_bits,
            scratch,
            rows,
            origin,
            out,
        )


@jit
def _merge_weighted_bag(multi: Any, begin: int, end: int, table: Any, weight_bits: Any,
                        scratch: Any, rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Merge the clustered ids of one bag, equal weights only; return the new end.

    Args:
        multi: Places, codes and positions of the clustered ids.
        begin: First of the bag.
        end: One past the last of the bag.
        table: Where rows lie.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        scratch: int64 ``[4, num_slots(end - begin)]``: places (cleared here), masks, blocks, bits.
        rows: int64, receives places.
        origin: int64, receives the position each row came from, or empty.
        out: Where to write first.
    """
    places, masks, blocks, bits = scratch[0], scratch[1], scratch[2], scratch[3]
    last_slot = num_slots(end - begin) - 1
    places[: last_slot + 1] = 0
    weighted = weight_bits.size > 0
    traced = origin.size > 0
    first = out
    for j in range(begin, end):
        own, code, position = multi[0, U(j)], multi[1, U(j)], multi[2, U(j)]
        block = code >> 3
        bit = np.int64(1) << (code & 7)
        pattern = np.int64(weight_bits[U(position)]) if weighted else np.int64(0)
        slot = (((block ^ (pattern << 24)) * HASH) >> 29) & last_slot
        layers = 0
        place = out - first  # a new row, unless a layer of this cluster still lacks the item
        while True:
            entry = places[U(slot)]
            if entry == 0:
                places[U(slot)] = place + 1
                break
            known = entry - 1
            if blocks[U(known)] == block and bits[U(known)] == pattern:
                if masks[U(known)] & bit == 0:
                    place = known
                    break
                layers += 1
                if layers == MAX_LAYERS:
                    break
            slot = (slot + 1) & last_slot
        if place < out - first:
            masks[U(place)] |= bit
            stored = block + PLACE_OF_MASK[U(masks[U(place)])]
            rows[U(first + place)] = stored_place(stored, table)
            continue
        masks[U(place)] = bit
        blocks[U(place)] = block
        bits[U(place)] = pattern
        rows[U(out)] = own
        if traced:
            origin[U(out)] = position
        out += 1
    return out
