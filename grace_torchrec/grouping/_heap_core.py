"""Numba core of a heap of pairs: the greatest key first, ties to the lower pair.

Flow: called by ``_queue_core``, which holds the candidates of merging, and by ``_subset_core``.  Ties are settled by the pair itself, so what comes out does
not depend on the order in which pairs went in.  A pair of tokens is one int64, the greater token
in the upper half.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
HALF = 32
LOWER_HALF = (1 << HALF) - 1


@jit(inline=True)
def pack(one: int, other: int) -> Any:
    """Return the pair of two tokens as one number."""
    return (np.int64(max(one, other)) << HALF) | np.int64(min(one, other))


@jit(inline=True)
def comes_first(key: float, pair: int, other_key: float, other_pair: int) -> bool:
    """Tell whether one entry leaves the heap before another."""
    return key > other_key or (key == other_key and pair < other_pair)


@jit(inline=True)
def push(keys: Floats, pairs: Int64s, size: int, key: float, pair: int) -> int:
    """Add an entry; return the new size. The arrays must have room."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not comes_first(key, pair, keys[U(parent)], pairs[U(parent)]):
            break
        keys[U(at)], pairs[U(at)] = keys[U(parent)], pairs[U(parent)]
        at = parent
    keys[U(at)], pairs[U(at)] = key, pair
    return size + 1


@jit(inline=True)
def replace_top(keys: Floats, pairs: Int64s, size: int, key: float, pair: int) -> None:
    """Put another entry in the place of the first one."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and comes_first(
            keys[U(child + 1)], pairs[U(child + 1)], keys[U(child)], pairs[U(child)]
        ):
            child += 1
        if comes_first(key, pair, keys[U(child)], pairs[U(child)]):
            break
        keys[U(at)], pairs[U(at)] = keys[U(child)], pairs[U(child)]
        at = child
    keys[U(at)], pairs[U(at)] = key, pair


@jit(inline=True)
def pop(keys: Floats, pairs: Int64s, size: int) -> int:
    """Remove the first entry; return the new size."""
    size -= 1
    replace_top(keys, pairs, size, keys[U(size)], pairs[U(size)])
    return size


@jit(inline=True)
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
