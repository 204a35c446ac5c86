# mypy: ignore-errors
"""Hot loops of the row cache: give every asked row a slot, then read the slots.

Flow: ids -> *populate* (hits are renewed, misses take the least recently used slot) -> slots ->
*read*.  Shapes: L ids, N rows, C slots, D dimension.
"""

import numba


def _populate(ids_L, rows_ND, cached_CD, slot_of_N, row_of_C, used_C, clock, slots_L):
    """Give each id a slot that holds its row; slots asked for in this call are kept.

    Returns the clock after the call, or -1 where the ids need more slots than there are.
    """
    begin = clock
    for place in range(ids_L.size):
        row = ids_L[place]
        slot = slot_of_N[row]
        clock += 1
        if slot < 0:
            slot = 0
            for other in range(1, row_of_C.size):
                if used_C[other] < used_C[slot]:
                    slot = other
            if used_C[slot] > begin:
                return -1
            old = row_of_C[slot]
            if old >= 0:
                slot_of_N[old] = -1
            for column in range(rows_ND.shape[1]):
                cached_CD[slot, column] = rows_ND[row, column]
            row_of_C[slot] = row
            slot_of_N[row] = slot
        used_C[slot] = clock
        slots_L[place] = slot
    return clock


def _read(slots_L, cached_CD, out_LD):
    """Copy the slots' rows."""
    for place in range(slots_L.size):
        for column in range(cached_CD.shape[1]):
            out_LD[place, column] = cached_CD[slots_L[place], column]


_compiled = numba.njit(cache=True, nogil=True)
populate, read = _compiled(_populate), _compiled(_read)
