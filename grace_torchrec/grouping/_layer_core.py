"""Numba core of the layers: what the copies of an item leave of a bag.

Flow: called by ``layers`` on sorted bags, where the copies of an item stand side by side.
Shapes: B bags, B1 = B + 1, L ids, M ids of all layers.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@jit
def most_copies(offsets_B1: Int64s, ids_L: Int32s) -> Int32s:
    """Return how many copies the most repeated item of each bag has, int32 ``[B]``."""
    most = np.zeros(offsets_B1.size - 1, np.int32)
    for bag in range(most.size):
        copies = 0
        for at in range(offsets_B1[bag], offsets_B1[bag + 1]):
            repeated = at > offsets_B1[bag] and ids_L[at] == ids_L[at - 1]
            copies = copies + 1 if repeated else 1
            most[bag] = max(most[bag], copies)
    return most


@jit
def split_layers(
    offsets_B1: Int64s, ids_L: Int32s, copies_B: Int32s, num_layers: int
) -> tuple[Int64s, Int32s]:
    """Split sorted bags into layers: the first one of every bag, then the second ones, and so on.

    Args:
        offsets_B1: Start of each bag.
        ids_L: Ids, rising in each bag.
        copies_B: Result of :func:`most_copies`.
        num_layers: Most layers of a bag.

    Returns:
        (offsets of the layers, their ids ``[M]``), rising and without repeats in each layer.
    """
    room = np.int64(copies_B.size + 1)
    for most in copies_B:
        room += max(min(most, num_layers) - 1, 0)
    offsets, ids = np.zeros(room, np.int64), np.empty(ids_L.size + 1, np.int32)
    layer_end, used = 0, 0
    for layer in range(1, num_layers + 1):
        for bag in range(copies_B.size):
            if layer > 1 and copies_B[bag] < layer:
                continue
            copies = 0
            for at in range(offsets_B1[bag], offsets_B1[bag + 1]):
                repeated = at > offsets_B1[bag] and ids_L[at] == ids_L[at - 1]
                copies = copies + 1 if repeated else 1
                ids[used] = ids_L[at]
                used += copies == layer
            layer_end += 1
            offsets[layer_end] = used
    return offsets, ids[:used]
