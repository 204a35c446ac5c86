"""Numba core of the candidates of a merge: a small heap of the greatest, the others wait unsorted.

Flow: called by the merging cores.  Merging takes the greatest candidate again and again, and what
it recounts falls: most candidates are never the greatest.  Those above a *floor* stand in a heap
at the front of two arrays, small enough for the cache; what falls below it waits at their back.
First candidates below the floor are not even copied: they are read from the partners when the
floor is lowered, which is when the heap is empty.  Nothing outside the heap reaches the floor, so
the first of the heap is the first of all.
Shapes: N items, T tokens, K partners.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_torchrec.grouping._heap_core import make_heap, pack, pop, push, replace_top

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STEP = 0.8  # of the floor, from the greatest key that is left


@jit
def worth(count: int, expected: float, size: int, popularity: float, size_price: float) -> Any:
    """Return the key of a candidate; see ``set_merge.Rule``.

    Args:
        count: Bags that hold both tokens.
        expected: How many would, if the two were independent.
        size: Items of the two together.
        popularity: Weight of the spread of the expected count.
        size_price: Price of every item past the second.
    """
    return count + popularity * np.sqrt(expected) - size_price * (size - 2)


@jit
def highest_key(
    partners_NK: Int32s,
    counts_NK: Int32s,
    sizes_T: Int32s,
    born_T: Floats,
    rule: tuple[int, float, float, float],
) -> float:
    """Return the greatest key of the first candidates; -inf where there are none."""
    highest = -np.inf
    for item in range(partners_NK.shape[0]):
        for at in range(partners_NK.shape[1]):
            if partners_NK[item, at] < 0:
                break
            highest = max(
                highest, _first_key(item, at, partners_NK, counts_NK, sizes_T, born_T, rule)
            )
    return highest


@jit
def lower_floor(
    keys: Floats,
    pairs: Int64s,
    waiting: int,
    floor: float,
    highest: float,
    partners_NK: Int32s,
    counts_NK: Int32s,
    sizes_T: Int32s,
    born_T: Floats,
    rule: tuple[int, float, float, float],
) -> tuple[Floats, Int64s, int, int, float, float]:
    """Lower the floor and fill the heap, which is empty.

    Args:
        keys: Heap at the front, those that wait at the back.
        pairs: Their pairs.
        waiting: How many wait.
        floor: The floor until now.
        highest: Greatest key of the first candidates below it; one that is left, or one waits.
        partners_NK: First candidates: partners, -1 past the last of an item.
        counts_NK: Their counts.
        sizes_T: Items that each token stands for; 0 where it lives no more.
        born_T: Bags that held each token when it was made.
        rule: Most items of two tokens, ``RankedBags.pair_scale``, and two arguments of
            :func:`worth`: popularity and size_price.

    Returns:
        (keys, pairs, entries of the heap, how many wait, the new floor, the new ``highest``).
    """
    first = keys.size - waiting
    most = highest
    for at in range(first, keys.size):
        most = max(most, keys[at])
    new_floor = STEP * most if most > 0 else -np.inf
    end = first  # of those that move, at the beginning of those that wait
    for at in range(first, keys.size):
        if keys[at] >= new_floor:
            keys[at], keys[end] = keys[end], keys[at]
            pairs[at], pairs[end] = pairs[end], pairs[at]
            end += 1
    heap = end - first
    for at in range(heap):
        keys[at], pairs[at] = keys[first + at], pairs[first + at]
    waiting -= heap
    left = -np.inf
    if highest > -np.inf:
        for item in range(partners_NK.shape[0]):
            keys, pairs = with_room(keys, pairs, heap, waiting, partners_NK.shape[1])
            for at in range(partners_NK.shape[1]):
                if partners_NK[item, at] < 0:
                    break
                key = _first_key(item, at, partners_NK, counts_NK, sizes_T, born_T, rule)
                if key < new_floor:
                    left = max(left, key)
                elif -np.inf < key < floor:
                    keys[heap], pairs[heap] = key, pack(item, partners_NK[item, at])
                    heap += 1
    make_heap(keys, pairs, heap)
    return keys, pairs, heap, waiting, new_floor, left


@jit
def add(
    keys: Floats, pairs: Int64s, heap: int, waiting: int, floor: float, key: float, pair: int
) -> tuple[int, int]:
    """Add a candidate; the arrays must have room. Returns entries of the heap, how many wait."""
    if key >= floor:
        heap = push(keys, pairs, heap, key, pair)
        return heap, waiting
    waiting += 1
    keys[keys.size - waiting], pairs[keys.size - waiting] = key, pair
    return heap, waiting


@jit
def put_back(
    keys: Floats, pairs: Int64s, heap: int, waiting: int, floor: float, key: float, pair: int
) -> tuple[int, int]:
    """Put the first candidate back with a lower key; see :func:`add` for the result."""
    if key >= floor:
        replace_top(keys, pairs, heap, key, pair)
        return heap, waiting
    heap = pop(keys, pairs, heap)
    heap, waiting = add(keys, pairs, heap, waiting, floor, key, pair)
    return heap, waiting


@jit
def with_room(
    keys: Floats, pairs: Int64s, heap: int, waiting: int, more: int
) -> tuple[Floats, Int64s]:
    """Return the arrays, grown where ``more`` candidates would not fit."""
    if heap + waiting + more <= keys.size:
        return keys, pairs
    room = keys.size + (keys.size >> 2) + more
    wider_keys, wider_pairs = np.empty(room, np.float64), np.empty(room, np.int64)
    wider_keys[:heap], wider_pairs[:heap] = keys[:heap], pairs[:heap]
    wider_keys[room - waiting :] = keys[keys.size - waiting :]
    wider_pairs[room - waiting :] = pairs[keys.size - waiting :]
    return wider_keys, wider_pairs


@jit
def _first_key(
    item: int,
    at: int,
    partners_NK: Int32s,
    counts_NK: Int32s,
    sizes_T: Int32s,
    born_T: Floats,
    rule: tuple[int, float, float, float],
) -> float:
    """Return the key of a first candidate, -inf where the two are dead or too large."""
    max_size, scale, popularity, size_price = rule
    partner = partners_NK[item, at]
    size = sizes_T[item] + sizes_T[partner]
    if size > max_size or sizes_T[item] == 0 or sizes_T[partner] == 0:
        return -np.inf
    expected = scale * born_T[item] * born_T[partner]
    key: float = worth(counts_NK[item, at], expected, size, popularity, size_price)
    return key
