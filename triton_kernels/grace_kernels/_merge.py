"""Numba core of rewriting: the items of one bag that share a cluster become one row.

Flow: _lookup.py calls split_bag, then merge_bag (or merge_weighted_bag), bag by bag.
Meaning: reference.py (``rewrite_clusters_reference``), equal row by row.

What is written for a row is its place in ``Layout``: an absolute address for the lookup, the
row id itself for rewriting alone (one byte a row, plain rows at 0, stored rows at N).

How it is fast: unclustered ids leave in a first pass that never branches on data (it writes to
both lists and moves one of the two ends). The rest meet in a small hash table whose entry is
one integer, ``epoch | block | mask | place``: the table is never cleared between bags, an id
costs one load and two stores, and the choice "new row or known row" is arithmetic on a 0 / -1
mask, because that branch would be mispredicted for every second id. Indices are cast to
``uintp``: numba then leaves out the wrap-around of negative indices.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._sum_rows import prefetch
from grace_kernels.reference import DROP, MAX_LAYERS, PADDING, RAISE

# mask -> place of the subset in its cluster's block; a mask of one bit owns no stored row
PLACE_OF_MASK = np.array([m - 1 - m.bit_length() for m in range(256)], np.int64)
HASH = np.int64(-7046029254386353131)  # 2**64 / golden ratio, odd
# Entry: 11 bits epoch, 28 bits block, 8 bits mask, 16 bits place of the row in the bag.
EPOCH_SHIFT, BLOCK_SHIFT, MASK_SHIFT = 52, 24, 16
PLACE_MASK = (1 << MASK_SHIFT) - 1
MAX_EPOCH = (1 << 11) - 1
MAX_FAST_IDS = 1 << MASK_SHIFT  # longer bags, and int64 codes, take the weighted path
# entry ^ key is below 2**24 for the same cluster and 2**52 or more for an entry of an earlier
# bag, which counts as free. One unsigned comparison finds what lies between, so that "known or
# new" is never a branch.
SAME_CLUSTER = 1 << BLOCK_SHIFT
OTHER_CLUSTER = np.uint64((1 << EPOCH_SHIFT) - SAME_CLUSTER)
SLOTS_PER_ID = 2
CODES_IN_CACHE = 1 << 17  # larger code tables are prefetched CODE_AHEAD ids ahead
CODE_AHEAD = 32
U = np.uintp


@jit
def num_slots(num_ids: int) -> Any:
    """Return the slots of the hash table for ``num_ids`` clustered ids: a power of two."""
    slots = 64
    while slots < SLOTS_PER_ID * num_ids:
        slots <<= 1
    return slots


# (plain_at, hbm_at, host_at, num_hbm_sums, row_bytes): where rows lie; hot rows in hbm_at too
Layout = tuple[int, int, int, int, int]


@jit
def plain_place(item: Any, layout: Any, hot_row: Any) -> Any:
    """Return where the row of an item lies: a hot row, or its original."""
    plain_at, hbm_at, _, _, row_bytes = layout
    if hot_row.size > 0 and hot_row[U(item)] >= 0:
        return hbm_at + np.int64(hot_row[U(item)]) * row_bytes
    return plain_at + item * row_bytes


@jit
def stored_place(row: Any, layout: Any) -> Any:
    """Return where stored row ``row`` lies, without a branch on its tier."""
    _, hbm_at, host_at, num_hbm_sums, row_bytes = layout
    in_hbm = (row - num_hbm_sums) >> 63  # -1 or 0
    base = (hbm_at & in_hbm) | ((host_at - num_hbm_sums * row_bytes) & ~in_hbm)
    return base + row * row_bytes


@jit
def split_bag(ids: Any, begin: int, end: int, item_code: Any, hot_row: Any, num_rows: int,
              policy: int, layout: Any, rows: Any, origin: Any, out: int, multi: Any) -> Any:  # fmt: skip
    """Write the places of unclustered ids to ``rows[out:]``, clustered ids to ``multi``.

    Args:
        ids: Raw ids; -1 is padding, others outside ``0 .. num_rows - 1`` follow ``policy``.
        begin: First position of the bag.
        end: One past its last position.
        item_code: Packed codes, or an empty array where the table has no sums.
        hot_row: Row of the fast tier that copies the item, -1 if none; or empty.
        num_rows: Rows of the table.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        layout: Where rows lie.
        rows: int64, receives places.
        origin: int64, receives the position each row came from (weights follow it), or empty.
        out: Where to write first.
        multi: int64 ``[3, longest bag + 1]``, receives place, code and position.

    Returns:
        (new ``out``, number of clustered ids, -1 or the position of a bad id).
    """
    coded = item_code.size > 0
    traced = origin.size > 0
    far = item_code.size > CODES_IN_CACHE
    last_id = ids.size - 1
    clustered = np.int64(0)
    for position in range(begin, end):
        item = np.int64(ids[U(position)])
        if far:  # any address may be prefetched, so an id that is not checked yet may be used
            later = np.int64(ids[U(min(position + CODE_AHEAD, last_id))])
            prefetch(item_code.ctypes.data + later * item_code.itemsize)
        code = np.int64(-1)
        if item < 0 or item >= num_rows:
            if item == PADDING or policy == DROP:
                continue
            if policy == RAISE:
                return out, clustered, np.int64(position)
            item = np.int64(0)  # row 0 is read, but nobody asked for item 0: it joins no sum
        elif coded:
            code = np.int64(item_code[U(item)])
        place = plain_place(item, layout, hot_row)
        rows[U(out)] = place
        if traced:
            origin[U(out)] = position
            multi[2, U(clustered)] = position
        if coded:
            multi[0, U(clustered)] = place
            multi[1, U(clustered)] = code
            single = (code >> 63) & 1
            out += single
            clustered += 1 - single
        else:
            out += 1
    return out, clustered, np.int64(-1)


@jit
def merge_bag(multi: Any, clustered: int, layout: Any, table: Any, epoch: int, rows: Any,
              out: int) -> Any:  # fmt: skip
    """Merge the clustered ids of one unweighted bag into ``rows[out:]``; return the new end.

    Args:
        multi: Places and codes of :func:`split_bag`, fewer than ``MAX_FAST_IDS``.
        clustered: How many.
        layout: Where rows lie.
        table: int64, at least ``num_slots(clustered)`` entries of earlier epochs.
        epoch: 1 .. MAX_EPOCH, larger than that of every earlier bag since ``table`` was zeroed.
        rows: int64, receives places.
        out: Where to write first.
    """
    stamp = np.int64(epoch) << EPOCH_SHIFT
    last_slot = num_slots(clustered) - 1
    first = out
    for j in range(clustered):
        own, code = multi[0, U(j)], multi[1, U(j)]
        block = code >> 3
        bit = np.int64(1) << (code & 7)
        key = stamp | (block << BLOCK_SHIFT)
        slot = ((block * HASH) >> 40) & last_slot
        layers = 0
        while True:
            entry = table[U(slot)]
            while np.uint64((entry ^ key) - SAME_CLUSTER) < OTHER_CLUSTER:
                slot = (slot + 1) & last_slot
                entry = table[U(slot)]
            fresh = (entry - stamp) >> 63  # -1 where the slot is free, else 0
            place = ((out - first) & fresh) | (entry & PLACE_MASK & ~fresh)
            mask = (entry >> MASK_SHIFT) & 255 & ~fresh
            if mask & bit == 0:
                mask |= bit
                table[U(slot)] = key | (mask << MASK_SHIFT) | place
                stored = stored_place(block + PLACE_OF_MASK[U(mask)], layout)
                rows[U(first + place)] = (own & fresh) | (stored & ~fresh)
                out -= fresh
                break
            layers += 1  # this layer has the item already: a repeated id
            if layers == MAX_LAYERS:
                rows[U(out)] = own
                out += 1
                break
            slot = (slot + 1) & last_slot
    return out


@jit
def merge_weighted_bag(multi: Any, clustered: int, layout: Any, weight_bits: Any, scratch: Any,
                       rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Merge the clustered ids of one bag, equal weights only; return the new end.

    Args:
        multi: Places, codes and positions of :func:`split_bag`.
        clustered: How many.
        layout: Where rows lie.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        scratch: int64 ``[4, num_slots(clustered)]``: table (cleared here), masks, blocks, bits.
        rows: int64, receives places.
        origin: int64, receives the position each row came from, or empty.
        out: Where to write first.
    """
    table, masks, blocks, bits = scratch[0], scratch[1], scratch[2], scratch[3]
    last_slot = num_slots(clustered) - 1
    table[: last_slot + 1] = 0
    weighted = weight_bits.size > 0
    traced = origin.size > 0
    first = out
    for j in range(clustered):
        own, code, position = multi[0, U(j)], multi[1, U(j)], multi[2, U(j)]
        block = code >> 3
        bit = np.int64(1) << (code & 7)
        pattern = np.int64(weight_bits[U(position)]) if weighted else np.int64(0)
        slot = (((block ^ (pattern << 24)) * HASH) >> 29) & last_slot
        layers = 0
        place = out - first  # a new row, unless a layer of this cluster still lacks the item
        while True:
            entry = table[U(slot)]
            if entry == 0:
                table[U(slot)] = place + 1
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
            rows[U(first + place)] = stored_place(stored, layout)
            continue
        masks[U(place)] = bit
        blocks[U(place)] = block
        bits[U(place)] = pattern
        rows[U(out)] = own
        if traced:
            origin[U(out)] = position
        out += 1
    return out
