"""Layers: a trace as bags without repeats, the form in which pairs are counted.

Flow: traces -> *layered bags* -> pair counts, bounds.  A stored sum serves each copy of an id
once, so a bag with repeats is worth as much as its layers: layer ``l`` of a bag holds the items
with ``l`` or more copies, up to the MAX_LAYERS that rewriting serves. Copies only merge when
their weights are equal, so every weight of a weighted bag has layers of its own. Derived: the
paper's text knows no repeats and no weights.
Shapes: B bags, B1 = B + 1, L ids, N items.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels.reference import MAX_LAYERS
from grace_torchrec.grouping import _layer_core
from grace_torchrec.grouping._pair_core import bags_of_items
from grace_torchrec.traces.trace import Trace

Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def layered_bags(trace: Trace) -> Trace:
    """Return the layers of all bags as one trace: sorted ids, no repeats, no weights.

    The order of the ids inside a bag of ``trace`` does not matter.

    >>> layers = layered_bags(Trace.from_bags([[2, 1, 2, 0]]))
    >>> layers.offsets_B1.tolist(), layers.ids_L.tolist()
    ([0, 3, 4], [0, 1, 2, 2])
    """
    offsets_B1, ids_L = sorted_bags(*_merging_bags(trace), trace.num_items)
    copies_B = _layer_core.most_copies(offsets_B1, ids_L)
    deepest = min(int(copies_B.max(initial=1)), MAX_LAYERS)
    if deepest > 1:
        offsets_B1, ids_L = _layer_core.split_layers(offsets_B1, ids_L, copies_B, deepest)
    return Trace(offsets_B1, ids_L, trace.num_items)


def sorted_bags(
    offsets_B1: Int64s, ids_L: Ids, num_items: int
) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """Sort the ids of every bag: the bags that hold each item, inverted again, hold rising items."""
    offsets, ids = bags_of_items(*bags_of_items(offsets_B1, ids_L, num_items), offsets_B1.size - 1)
    return offsets, ids


def _merging_bags(trace: Trace) -> tuple[Int64s, Ids]:
    """Return the bags in which copies can merge: one for each bag, or bag and weight."""
    if trace.weights_L is None:
        return trace.offsets_B1, trace.ids_L
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    bits_L = trace.weights_L.view(np.int32)  # equal means equal bit by bit, as in rewriting
    order = np.lexsort((bits_L, bag_L))
    bags, bits = bag_L[order], bits_L[order]
    first = np.ones(bags.size, np.bool_)
    first[1:] = (bags[1:] != bags[:-1]) | (bits[1:] != bits[:-1])
    return np.append(np.flatnonzero(first), bags.size), trace.ids_L[order]
