"""Numba core of rewriting with a subset code: masks are collected, then split by the table.

Flow: cpu_codes.py calls :func:`rewrite_all`.  Meaning: reference_subsets.py, equal row by row.
The layers of a bag are found through a small hash table that is cleared for every bag; a layer
keeps the position of each of its items, so an item that no subset takes is read by itself.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels.reference import DROP, MAX_LAYERS, PADDING, RAISE

_MULTIPLIER = np.int64(-7046029254386353131)  # 2**64 / golden ratio, odd
_1, _2, _4, _6 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(6)
_56, _63 = np.uint64(56), np.uint64(63)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
LOW_SLOT = np.array([(m & -m).bit_length() - 1 for m in range(256)], np.int64)
U = np.uintp


@jit
def stored_row(entry: int, stored: Any, ranks: Any) -> Any:
    """Return the row of a stored entry: how many stored entries stand before it."""
    word = stored[U(entry >> 6)] & ((_1 << (np.uint64(entry) & _63)) - _1)
    word = word - ((word >> _1) & _PAIRS)  # how many bits are set, as LLVM knows it
    word = (word & _FOURS) + ((word >> _2) & _FOURS)
    return np.int64(ranks[U(entry >> 6)]) + np.int64(
        (((word + (word >> _4)) & _BYTES) * _SUM) >> _56
    )


@jit
def rewrite_all(ids: Any, offsets: Any, weight_bits: Any, item_code: Any, next_part: Any,
                stored: Any, ranks: Any, policy: int, rows: Any, origin: Any) -> Any:  # fmt: skip
    """Rewrite every bag into ``rows``.

    Args:
        ids: Raw ids.
        offsets: int64 ``[B + 1]``.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        item_code: ``start * 8 + slot``, -1 for items in no cluster.
        next_part: uint8 table of all masks.
        stored: uint64 words, a bit for each entry of the table.
        ranks: int32, stored entries before each word.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        rows: int64, as many as ids; receives rows.
        origin: int64, receives the position each row came from.

    Returns:
        (ends ``[B + 1]``, ids asked for, -1 or the position of a bad id).
    """
    ends = np.zeros(offsets.size, np.int64)
    longest = np.int64(1)
    for bag in range(offsets.size - 1):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    slots = np.int64(64)
    while slots < 2 * longest:
        slots <<= 1
    table = np.zeros(slots, np.int64)
    layers = np.empty((3, longest), np.int64)  # start, weight bits, mask (0: a copy of its own)
    members = np.empty((longest, 8), np.int64)
    asked, out = np.int64(0), np.int64(0)
    for bag in range(offsets.size - 1):
        before = out
        out, num_layers, joined, bad = _collect(
            ids, offsets[bag], offsets[bag + 1], weight_bits, item_code, policy, table, layers,
            members, rows, origin, out,
        )  # fmt: skip
        if bad >= 0:
            return ends, asked, bad
        asked += out - before + joined
        out = _split(
            ids, num_layers, layers, members, next_part, stored, ranks, item_code.size, rows,
            origin, out,
        )  # fmt: skip
        ends[bag + 1] = out
    return ends, asked, np.int64(-1)


@jit
def _collect(ids: Any, begin: int, end: int, weight_bits: Any, item_code: Any, policy: int,
             table: Any, layers: Any, members: Any, rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Write the ids in no cluster to ``rows``, collect the others in layers.

    Returns:
        (new ``out``, number of layers, ids that joined them, -1 or the position of a bad id).
    """
    last_slot = np.int64(63)
    while last_slot + 1 < 2 * (end - begin):
        last_slot = 2 * last_slot + 1
    table[: last_slot + 1] = 0
    num_layers, joined = np.int64(0), np.int64(0)
    for position in range(begin, end):
        item, code = np.int64(ids[U(position)]), np.int64(-1)
        if item < 0 or item >= item_code.size:
            if item == PADDING or policy == DROP:
                continue
            if policy == RAISE:
                return out, num_layers, joined, np.int64(position)
            item = np.int64(0)  # row 0 is read, but nobody asked for item 0: it joins no sum
        else:
            code = np.int64(item_code[U(item)])
        if code < 0:
            rows[U(out)], origin[U(out)] = item, position
            out += 1
            continue
        joined += 1
        pattern = np.int64(weight_bits[U(position)]) if weight_bits.size > 0 else np.int64(0)
        layer = _find_layer(code, pattern, table, last_slot, layers, num_layers)
        slot = code & 7
        if layer == num_layers:
            layers[0, U(layer)], layers[1, U(layer)], layers[2, U(layer)] = code >> 3, pattern, 0
            num_layers += 1
        elif layer < 0:  # past the last layer: a row of its own, in its place
            layer, slot = num_layers, np.int64(-1)
            layers[0, U(layer)], layers[2, U(layer)] = -1, 0
            members[U(layer), 0] = position
            num_layers += 1
        if slot >= 0:
            layers[2, U(layer)] |= np.int64(1) << slot
            members[U(layer), U(slot)] = position
    return out, num_layers, joined, np.int64(-1)


@jit
def _find_layer(code: int, pattern: int, table: Any, last_slot: int, layers: Any,
                num_layers: int) -> Any:  # fmt: skip
    """Return the first layer that lacks the item; ``num_layers`` for a new one, -1 past the last."""
    start, bit = code >> 3, np.int64(1) << (code & 7)
    slot = (((start ^ (pattern << 24)) * _MULTIPLIER) >> 29) & last_slot
    full = 0
    while True:
        known = table[U(slot)] - 1
        if known < 0:
            table[U(slot)] = num_layers + 1
            return num_layers
        if layers[0, U(known)] == start and layers[1, U(known)] == pattern:
            if layers[2, U(known)] & bit == 0:
                return known
            full += 1
            if full == MAX_LAYERS:
                return np.int64(-1)
        slot = (slot + 1) & last_slot


@jit
def _split(ids: Any, num_layers: int, layers: Any, members: Any, next_part: Any, stored: Any,
           ranks: Any, num_items: int, rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Write the rows of every layer; return the new end."""
    for layer in range(num_layers):
        start, mask = layers[0, U(layer)], layers[2, U(layer)]
        if start < 0:
            position = members[U(layer), 0]
            rows[U(out)], origin[U(out)] = np.int64(ids[U(position)]), position
            out += 1
            continue
        while mask != 0:
            part = np.int64(next_part[U(start + mask)])
            position = members[U(layer), U(LOW_SLOT[U(part)])]
            if part & (part - 1) == 0:
                rows[U(out)] = np.int64(ids[U(position)])
            else:
                rows[U(out)] = num_items + stored_row(start + part, stored, ranks)
            origin[U(out)] = position
            out += 1
            mask ^= part
    return out
