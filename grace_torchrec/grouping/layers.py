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
import scipy.sparse as sp

from grace_kernels.reference import MAX_LAYERS
from grace_torchrec.traces.trace import Trace


def layered_bags(trace: Trace) -> Trace:
    """Return the layers of all bags as one trace: sorted ids, no repeats, no weights.

    The order of the ids inside a bag of ``trace`` does not matter.

    >>> layers = layered_bags(Trace.from_bags([[2, 1, 2, 0]]))
    >>> layers.offsets_B1.tolist(), layers.ids_L.tolist()
    ([0, 3, 4], [0, 1, 2, 2])
    """
    bag_L, num_bags = _merging_bags(trace)
    shape = (num_bags, trace.num_items)
    copies = sp.csr_matrix((np.ones(trace.num_ids, np.int32), (bag_L, trace.ids_L)), shape=shape)
    layers = [copies]  # tocsr summed the copies of an id and sorted the ids of every bag
    for layer in range(2, min(int(copies.data.max(initial=1)), MAX_LAYERS) + 1):
        enough = sp.csr_matrix(
            ((copies.data >= layer).astype(np.int32), copies.indices, copies.indptr), shape=shape
        )
        enough = enough[np.diff(np.r_[0, np.cumsum(enough.data)][enough.indptr]) > 0]
        enough.eliminate_zeros()
        layers.append(enough)
    stacked = sp.vstack(layers, format="csr") if len(layers) > 1 else copies
    return Trace(stacked.indptr.astype(np.int64), stacked.indices, trace.num_items)


def _merging_bags(trace: Trace) -> tuple[npt.NDArray[np.int64], int]:
    """Return for each id the number of the (bag, weight) it can merge in, and how many exist."""
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    if trace.weights_L is None:
        return bag_L, trace.num_bags
    bits_L = trace.weights_L.view(np.int32)  # equal means equal bit by bit, as in rewriting
    _, weight_L = np.unique(bits_L, return_inverse=True)
    pairs, merging_L = np.unique(bag_L * (trace.num_ids + 1) + weight_L, return_inverse=True)
    return merging_L.astype(np.int64), int(pairs.size)
