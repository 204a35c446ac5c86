"""Numba core of rewriting, second pass for bags that are weighted or whose codes are wide.

Flow: _split_ids.py sets the clustered ids of a chunk aside; merge_weighted_chunk merges them, equal
weights only, and writes the rows of all ids.  Meaning: as that of _merge.py, equal row by row.
Layers are found through a small hash table of places that is cleared for every bag.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._merge import HASH, PLACE_OF_MASK, num_slots
from grace_kernels._merge_subsets import CLUSTER_SHIFT, prefetch_tables, write_parts
from grace_kernels._places import PARTS_AT, U, stored_place
from grace_kernels.reference import MAX_LAYERS


@jit
def merge_weighted_chunk(split: Any, num_bags: int, table: Any, weight_bits: Any, scratch: Any,
                         rows: Any, origin: Any, out: int, ends: Any) -> Any:  # fmt: skip
    """Write the rows of bags that are weighted, or whose codes are wide, to ``rows[out:]``.

    Args:
        split: Of ``split_chunk``.
        num_bags: Bags of the chunk.
        table: Where rows lie.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        scratch: int64 ``[4, num_slots(longest bag)]``, and the places of the items of each layer:
            eight times as long as the longest bag where the table has a subset code.
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
        scratch: int64 ``[4, num_slots(end - begin)]``: places (cleared here), masks, blocks, bits;
            and the places of items as above.
        rows: int64, receives places.
        origin: int64, receives the position each row came from, or empty.
        out: Where to write first.
    """
    wide, members = scratch
    places, masks, blocks, bits = wide[0], wide[1], wide[2], wide[3]
    last_slot = num_slots(end - begin) - 1
    places[: last_slot + 1] = 0
    weighted = weight_bits.size > 0
    traced = origin.size > 0
    splits = table[PARTS_AT] != 0
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
        if splits:
            members[U((place << CLUSTER_SHIFT) + (code & 7))] = own
        if place < out - first:
            masks[U(place)] |= bit
            if splits:
                continue
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
    if splits:
        return _split_layers(wide, members, table, rows, origin, first, out)
    return out


@jit
def _split_layers(wide: Any, members: Any, table: Any, rows: Any, origin: Any, first: int,
                  end: int) -> Any:  # fmt: skip
    """Replace the own rows at ``rows[first:end]``, one for each layer, by those of its parts.

    Layers of one item come first, then the others; all items of a layer have one weight, so any
    of their positions is the origin of its rows. Returns the new end.
    """
    layers, masks, starts, origins = wide[0], wide[1], wide[2], wide[3]  # two are used again
    several, out = np.int64(0), first
    for layer in range(end - first):
        mask = masks[U(layer)]
        if mask & (mask - 1) != 0:
            layers[U(several)] = layer
            if origin.size > 0:
                origins[U(several)] = origin[U(first + layer)]
            several += 1
            prefetch_tables(starts[U(layer)], mask, table)
            continue
        rows[U(out)] = rows[U(first + layer)]
        if origin.size > 0:
            origin[U(out)] = origin[U(first + layer)]
        out += 1
    for i in range(several):
        layer, before = layers[U(i)], out
        out = write_parts(starts[U(layer)], masks[U(layer)], members, layer, table, rows, out)
        for row in range(before, out if origin.size > 0 else before):
            origin[U(row)] = origins[U(i)]
    return out
