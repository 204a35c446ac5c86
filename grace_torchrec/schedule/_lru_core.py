# mypy: ignore-errors
"""Hot loops of the row cache: give every asked row a slot, then read the slots.

Flow: ids -> *populate* (hits are renewed, misses take the least recently used slot) -> slots ->
*read*; *find* gives slots only.  Slots are linked by their last use: ``link_C2`` holds the
slot used next before and next after each, entry C is the end of the list.  Arrays over slots have
C + 1 entries, so that two look-ups at once may spoil rows but never touch memory outside.
Shapes: L ids, N rows, C slots, D dimension.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit

_OLDER, _NEWER = 0, 1


def empty_slots(num_rows: int, num_slots: int) -> tuple[Any, Any, Any]:
    """Return (slot of each row, row of each slot, links) of an empty cache."""
    link_C2 = np.empty((num_slots + 1, 2), np.int64)
    link_C2[:, _OLDER] = np.arange(-1, num_slots)
    link_C2[:, _NEWER] = np.arange(1, num_slots + 2)
    link_C2[0, _OLDER], link_C2[num_slots, _NEWER] = num_slots, 0
    return np.full(num_rows, -1, np.int64), np.full(num_slots + 1, -1, np.int64), link_C2


@jit
def _take(row, slot_of_N, row_of_C, link_C2):
    """Return the slot that is ``row``'s from now on, the one used last, and whether it was a hit."""
    end = link_C2.shape[0] - 1
    slot = slot_of_N[row]
    hit = slot >= 0
    if not hit:
        slot = link_C2[end, _NEWER]
        old = row_of_C[slot]
        if old >= 0:
            slot_of_N[old] = -1
        row_of_C[slot] = row
        slot_of_N[row] = slot
    older, newer = link_C2[slot, _OLDER], link_C2[slot, _NEWER]
    link_C2[older, _NEWER] = newer
    link_C2[newer, _OLDER] = older
    latest = link_C2[end, _OLDER]
    link_C2[slot, _OLDER], link_C2[slot, _NEWER] = latest, end
    link_C2[latest, _NEWER] = slot
    link_C2[end, _OLDER] = slot
    return slot, hit


@jit
def populate(ids_L, rows_ND, cached_CD, slot_of_N, row_of_C, link_C2, call_C, call, slots_L):
    """Give each id a slot that holds its row; slots asked for in this call are kept.

    Returns False where the ids need more slots than there are.
    """
    end = link_C2.shape[0] - 1
    for place in range(ids_L.size):
        row = ids_L[place]
        if slot_of_N[row] < 0 and call_C[link_C2[end, _NEWER]] == call:
            return False
        slot, hit = _take(row, slot_of_N, row_of_C, link_C2)
        if not hit:
            for column in range(rows_ND.shape[1]):
                cached_CD[slot, column] = rows_ND[row, column]
        call_C[slot] = call
        slots_L[place] = slot
    return True


@jit
def read(slots_L, cached_CD, out_LD):
    """Copy the slots' rows."""
    for place in range(slots_L.size):
        for column in range(cached_CD.shape[1]):
            out_LD[place, column] = cached_CD[slots_L[place], column]


@jit
def find(ids_L, slot_of_N, row_of_C, link_C2, found_L):
    """Request each id in turn; tell which were there."""
    for place in range(ids_L.size):
        _, found_L[place] = _take(ids_L[place], slot_of_N, row_of_C, link_C2)
