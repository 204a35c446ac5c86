"""Hashed: integers spread evenly over 64 bits, for draws that depend on a value alone and for hashes.

Flow: *hashed* -> sampled and cut bags, bags that repeat, sets that two plans share.
Source: the last steps of splitmix64 (Steele, Lea, Flood 2014).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_STEP = 0x9E3779B97F4A7C15


def hashed(values: npt.NDArray[np.integer[Any]], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return evenly spread 64-bit numbers, one for each value.

    Args:
        values: Integers.
        seed: 0 or more: another one, other numbers.
    """
    mixed: npt.NDArray[np.uint64] = values.astype(np.uint64) + np.uint64(_STEP * (seed + 1) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
