"""Numba core of rewriting, second pass for a subset code: what a bag leaves of a cluster is split.

Flow: _split_ids.py sets the clustered ids of a chunk aside; merge_subset_chunk collects their masks
as _merge.py does and splits them by the tables of subset_tables.py; _merge_weighted.py uses
write_parts too.  Meaning: reference_subsets.py, equal row by row.

How it is fast. A cluster of which the bag holds one item needs no table: such clusters are set
aside by arithmetic, not by a branch. The lines of the tables that the other masks need are asked
for when a bag has been collected, and read when the bag after it has been: memory works meanwhile.
"""

# mypy: disable-error-code="call-arg, var-annotated"

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._llvm import load_i64, load_u8, lowest_bit, prefetch
from grace_kernels._merge import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    EPOCH_SHIFT,
    MASK_BITS,
    fresh_epoch,
    join_layer,
    num_slots,
)
from grace_kernels._places import MARKS_AT, PARTS_AT, U, stored_place
from grace_kernels._prefetch import END, LIST_AT, NEXT, ROW_BYTES, prefetch_row
from grace_kernels.packed_codes import WORD_SHIFT, rank_in_word

CLUSTER_SHIFT = 3  # a cluster has up to 8 items


@jit
def make_subset_scratch(longest: Any, num_entries: Any) -> Any:
    """Return the scratch of subset codes for bags of up to ``longest`` ids.

    Returns:
        members: places of the items of each layer, for two bags in turn; owns: the own place of
        each layer; masks int64 ``[2, .]``: ``start << 8 | mask`` of what waits to be split, and
        where its places are.
    """
    return (
        np.empty(num_entries << (CLUSTER_SHIFT + 1), np.int64),
        np.empty(longest + 1, np.int64),
        np.empty((2, longest + 1), np.int64),
    )


@jit
def merge_subset_chunk(split: Any, num_bags: int, table: Any, hashed: Any, subset_scratch: Any,
                       epoch: int, rows: Any, out: int, ends: Any, queue: Any) -> Any:  # fmt: skip
    """Write the rows of unweighted bags to ``rows[out:]``: ids alone, then the parts of masks.

    Args:
        split: As in ``merge_chunk`` of _merge.py, blocks are starts.
        num_bags: Bags of the chunk.
        table: Where rows and subset tables lie.
        hashed: As in ``merge_chunk``.
        subset_scratch: Of ``make_subset_scratch``.
        epoch: As in ``merge_chunk``, as all that follow.
        rows: Receives places.
        out: Where to write first.
        ends: Receives the ends of bags.
        queue: Rows to prefetch meanwhile.

    Returns:
        The last epoch.
    """
    singles, alone_ends, multi, multi_ends = split
    entries, slots = hashed[0], hashed[1]
    members, owns, masks = subset_scratch
    queued, queue_end, list_at, row_bytes = (
        queue[NEXT],
        queue[END],
        queue[LIST_AT],
        queue[ROW_BYTES],
    )
    epoch = fresh_epoch(entries, epoch, num_bags)
    waiting, half = np.int64(0), np.int64(0)
    for bag in range(num_bags):
        begin, end = multi_ends[bag], multi_ends[bag + 1]
        epoch += 1
        stamp = np.int64(epoch) << EPOCH_SHIFT
        last_slot = num_slots(end - begin) - 1
        count = np.int64(0)
        for j in range(begin, end):
            if queued < queue_end:
                prefetch_row(load_i64(list_at + 8 * queued), row_bytes)
                queued += 1
            code, own = multi[1, U(j)], multi[0, U(j)]
            slot, is_new = join_layer(entries, code, stamp, last_slot)
            members[U(((half + slot) << CLUSTER_SHIFT) + (code & 7))] = own
            owns[U(count)], slots[U(count)] = own, slot  # the next new layer overwrites it
            count += is_new
        out = _write_waiting(masks, waiting, members, table, rows, out)
        ends[bag] = out
        for i in range(alone_ends[bag], alone_ends[bag + 1]):
            rows[U(out)] = singles[0, U(i)]
            out += 1
        waiting = np.int64(0)
        for i in range(count):
            slot = slots[U(i)]
            entry = entries[U(slot)]
            mask = entry & MASK_BITS
            rows[U(out)] = owns[U(i)]
            masks[0, U(waiting)] = entry & ((BLOCK_MASK << BLOCK_SHIFT) | MASK_BITS)
            masks[1, U(waiting)] = half + slot
            alone = ((mask & (mask - 1)) - 1) >> 63  # -1 for one item
            out -= alone
            waiting += 1 + alone
        for i in range(waiting):
            prefetch_tables(masks[0, U(i)] >> BLOCK_SHIFT, masks[0, U(i)] & MASK_BITS, table)
        half = entries.size - half
    queue[NEXT] = queued
    ends[num_bags] = _write_waiting(masks, waiting, members, table, rows, out)
    return epoch


@jit
def _write_waiting(masks: Any, waiting: Any, members: Any, table: Any, rows: Any, out: Any) -> Any:
    """Write the parts of the masks that wait; return the new end."""
    for i in range(waiting):
        start, mask = masks[0, U(i)] >> BLOCK_SHIFT, masks[0, U(i)] & MASK_BITS
        out = write_parts(start, mask, members, masks[1, U(i)], table, rows, out)
    return out


@jit
def prefetch_tables(start: Any, mask: Any, table: Any) -> Any:
    """Ask for what says how ``mask`` of the cluster at ``start`` begins."""
    entry = start + mask
    prefetch(table[PARTS_AT] + entry)
    prefetch(table[MARKS_AT] + ((entry >> WORD_SHIFT) << 3))


@jit
def write_parts(start: Any, mask: Any, members: Any, line: Any, table: Any, rows: Any,
                out: Any) -> Any:  # fmt: skip
    """Write the rows of one mask to ``rows[out:]``; return the new end.

    Args:
        start: First entry of the cluster.
        mask: Its items.
        members: int64, ``members[8 * line + slot]`` is the place of the item in a slot.
        line: Which eight.
        table: Where rows and tables lie.
        rows: int64, receives places.
        out: Where to write first.
    """
    while mask != 0:
        part = load_u8(table[PARTS_AT] + start + mask)
        own = members[U((line << CLUSTER_SHIFT) + lowest_bit(part))]
        entry = start + part
        word = load_i64(table[MARKS_AT] + ((entry >> WORD_SHIFT) << 3))
        stored = stored_place(rank_in_word(word, entry), table)
        alone = ((part & (part - 1)) - 1) >> 63  # -1 for one item: it keeps its own row
        rows[U(out)] = (own & alone) | (stored & ~alone)
        out += 1
        mask ^= part
    return out
