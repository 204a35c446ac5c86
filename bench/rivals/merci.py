"""MERCI: sums of all subsets of item clusters, found inside small parts (Lee et al., ASPLOS'21).

Written anew from the paper's description: the hypergraph of items and bags is split into parts
of at most 128 items; inside a part, clusters merge while the reads a merge saves, counted
exactly, pay for the rows it adds; a cluster of k items stores every subset. The paper lowers a
benefit / cost ratio step by step until the memory is used up and merges what passes it; here the
best merge of all parts is taken each time, the same with steps as small as can be, which ends on
the budget and not 5..30 % beside it. Derived: clusters hold at most 8 items, as our code for
serving does (merges beyond cost 255 rows or more and are as good as never taken), and the
partitioner is our own, see ``partition``.
Shapes: N items, P parts, P1 = P + 1, T ids of pieces (a piece is a bag inside a part).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.rivals import _merci_clusters as core
from bench.rivals.partition import parts_of_items
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.sums.clusters import MAX_CLUSTER
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

PART_ITEMS = 128
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Bags cut into parts; a piece has two or more items.

    Attributes:
        item_of_slot: int64, the items of all parts, part by part.
        part_starts_P1: Part ``p`` owns the slots ``part_starts[p]:part_starts[p + 1]``.
        piece_starts_P1: Part ``p`` owns the pieces ``piece_starts[p]:piece_starts[p + 1]``.
        piece_indptr: Start of each piece in ``slots_T``.
        slots_T: int32, slots counted from the start of their part.
    """

    item_of_slot: Int64s
    part_starts_P1: Int64s
    piece_starts_P1: Int64s
    piece_indptr: Int64s
    slots_T: npt.NDArray[np.int32]


def fit(train: Trace, budget: int, seed: int = 0) -> StoredSums:
    """Cluster the items of ``train`` and store all subsets of every cluster.

    Args:
        train: Train bags.
        budget: Most sums, 0 or more.
        seed: Of the partitioner.

    Raises:
        GraceError: ``budget`` is below 0.
    """
    if budget < 0:
        raise GraceError(f"merci: budget {budget}, give the number of sums, 0 or more")
    bags = layered_bags(train)
    pieces = _pieces(bags, parts_of_items(bags, PART_ITEMS, seed))
    starts = pieces.part_starts_P1
    owner, size, _ = core.cluster(
        *(starts, pieces.piece_starts_P1, pieces.piece_indptr, pieces.slots_T),
        *(budget, MAX_CLUSTER),
    )
    owner_slot = owner + np.repeat(starts[:-1], np.diff(starts))
    slots = np.flatnonzero(size[owner_slot] > 1)
    slots = slots[np.argsort(owner_slot[slots], kind="stable")]
    sizes = size[np.unique(owner_slot[slots])]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return StoredSums.from_clusters(train.num_items, offsets, pieces.item_of_slot[slots])


def _pieces(bags: Trace, part_N: Int64s) -> _Pieces:
    """Number the items of each part and cut the bags along the parts."""
    item_of_slot = np.flatnonzero(part_N >= 0)
    item_of_slot = item_of_slot[np.argsort(part_N[item_of_slot], kind="stable")]
    num_parts = int(part_N.max(initial=-1)) + 1
    starts = _ends(np.bincount(part_N[item_of_slot], minlength=num_parts))
    slot_N = np.zeros(part_N.size, np.int64)
    slot_N[item_of_slot] = np.arange(item_of_slot.size) - starts[part_N[item_of_slot]]
    bag_L = np.repeat(np.arange(bags.num_bags), np.diff(bags.offsets_B1))
    part_L, slot_L = part_N[bags.ids_L], slot_N[bags.ids_L]
    order = np.lexsort((slot_L, bag_L, part_L))
    piece_L = (part_L * bags.num_bags + bag_L)[order]
    first = np.flatnonzero(np.diff(piece_L, prepend=-1))
    lengths = np.diff(first, append=piece_L.size)
    kept = lengths > 1
    return _Pieces(
        item_of_slot,
        starts,
        _ends(np.bincount(part_L[order][first[kept]], minlength=num_parts)),
        _ends(lengths[kept]),
        slot_L[order][np.repeat(kept, lengths)].astype(np.int32),
    )


def _ends(lengths: npt.NDArray[np.integer]) -> Int64s:
    """Return 0 and the running sum: where runs of these lengths begin and end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int64)
