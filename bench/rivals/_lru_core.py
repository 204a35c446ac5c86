"""Numba core of the LRU cache: a recency list in arrays, one step an id.

Flow: called by ``lru``.  The cache is int64 ``[N + 1, 2]``: the row used next before and next
after each row; entry N is the end of the list (before it the latest row, after it the oldest),
and -1 marks a row that is not held. Entry ``[N, :]`` of an empty cache points at N itself.
Shapes: N items, L ids.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int64s = npt.NDArray[np.int64]
_OLDER, _NEWER = 0, 1


def empty_cache(num_items: int) -> Int64s:
    """Return a cache that holds no row, int64 ``[N + 1, 2]``."""
    cache = np.full((num_items + 1, 2), -1, np.int64)
    cache[num_items] = num_items
    return cache


@jit
def _unlink(cache: Int64s, row: int) -> None:
    """Take a row out of the list."""
    older, newer = cache[row, _OLDER], cache[row, _NEWER]
    cache[older, _NEWER] = newer
    cache[newer, _OLDER] = older


@jit
def find(
    ids_L: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    capacity: int,
    cache: Int64s,
    found_L: npt.NDArray[np.bool_],
) -> None:
    """Request each id in turn; mark hits and move or load the row, in place.

    Args:
        ids_L: Rows in the order of their requests.
        capacity: Most rows that are held; the one unused for longest makes room.
        cache: See the module.
        found_L: Receives whether each request found its row.
    """
    end = cache.shape[0] - 1
    held = 0
    row = cache[end, _OLDER]
    while row != end:
        held += 1
        row = cache[row, _OLDER]
    if capacity <= 0:
        return
    for place in range(ids_L.size):
        row = ids_L[place]
        if cache[row, _OLDER] >= 0:
            found_L[place] = True
            _unlink(cache, row)
        elif held < capacity:
            held += 1
        else:
            oldest = cache[end, _NEWER]
            _unlink(cache, oldest)
            cache[oldest, _OLDER] = -1
        latest = cache[end, _OLDER]
        cache[row, _OLDER] = latest
        cache[row, _NEWER] = end
        cache[latest, _NEWER] = row
        cache[end, _OLDER] = row
