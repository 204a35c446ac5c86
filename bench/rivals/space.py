"""SPACE: the sums of all pairs of the most popular items (Kal et al., ISCA'21).

Written anew from the description in GRACE, ASPLOS'23: popular single rows and every pair drawn
from a small popular subset. Its decoder here is the best there is, a maximum matching inside
each bag, so that the rival is not weaker than it must be.
Shapes: N items, B bags, L ids, Q copies of popular items.
"""

import math

import numpy as np
import numpy.typing as npt

from bench.rivals.fae import hot_items
from bench.stored import Stored
from grace_torchrec.errors import NotSupported
from grace_torchrec.sums.rewrite import RewrittenBags
from grace_torchrec.traces.trace import Trace

Ints = npt.NDArray[np.int64]


def popular_items(budget: int) -> int:
    """Return the most items whose pairs fit in ``budget`` sums.

    >>> popular_items(9), popular_items(10), popular_items(0)
    (4, 5, 1)
    """
    return (1 + math.isqrt(1 + 8 * budget)) // 2


def fit(train: Trace, budget: int) -> Stored:
    """Store the sums of all pairs of the most popular items of ``train``.

    The pair of popularity ranks r < q is stored row ``q * (q - 1) / 2 + r``.

    Args:
        train: Train bags.
        budget: Most sums.
    """
    popular = hot_items(train, popular_items(budget))
    rank_N = np.full(train.num_items, -1, np.int32)
    rank_N[popular] = np.arange(popular.size)
    high, low = np.tril_indices(popular.size, -1)  # rows in order: (1,0), (2,0), (2,1), ...
    items = np.stack([popular[high], popular[low]], axis=1).ravel()
    return Stored(
        np.arange(0, items.size + 1, 2, dtype=np.int64),
        items.astype(np.int64),
        int(rank_N.nbytes),
        lambda trace: _rewrite(trace, rank_N),
    )


def _rewrite(trace: Trace, rank_N: npt.NDArray[np.int32]) -> RewrittenBags:
    """Match as many popular copies of each bag as possible with copies of other items.

    Copies stand item by item, the most repeated item first. With c copies, m of one item at
    most, copy t is matched with copy ``t + shift``, ``shift = max(ceil(c / 2), m)``: an item has
    no more than ``shift`` copies, so the two differ, and c - shift pairs are the most there are.
    """
    if trace.weights_L is not None:
        raise NotSupported("space: weighted bags are not supported; use a trace without weights")
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    rank_L = rank_N[trace.ids_L].astype(np.int64)
    plain = rank_L < 0
    bag_Q, rank_Q = bag_L[~plain], rank_L[~plain]
    _, inverse, repeats = np.unique(
        bag_Q * (rank_N.size + 1) + rank_Q, return_inverse=True, return_counts=True
    )
    copies_Q = repeats[inverse]
    order = np.lexsort((rank_Q, -copies_Q, bag_Q))
    bag_Q, rank_Q, copies_Q = bag_Q[order], rank_Q[order], copies_Q[order]
    count_B = np.bincount(bag_Q, minlength=trace.num_bags)
    start_B = np.cumsum(count_B) - count_B
    most_B = np.zeros(trace.num_bags, np.int64)
    most_B[count_B > 0] = copies_Q[start_B[count_B > 0]]
    shift_B = np.maximum((count_B + 1) // 2, most_B)
    place_Q = np.arange(bag_Q.size) - start_B[bag_Q]
    paired = place_Q < (count_B - shift_B)[bag_Q]
    alone = ~paired & (place_Q < shift_B[bag_Q])
    one = rank_Q[paired]
    other = rank_Q[np.flatnonzero(paired) + shift_B[bag_Q[paired]]]
    high, low = np.maximum(one, other), np.minimum(one, other)
    item_of_rank = np.flatnonzero(rank_N >= 0)[np.argsort(rank_N[rank_N >= 0])]
    rows = [
        trace.ids_L[plain].astype(np.int64),
        item_of_rank[rank_Q[alone]],
        rank_N.size + high * (high - 1) // 2 + low,
    ]
    return _bags(trace.num_bags, [bag_L[plain], bag_Q[alone], bag_Q[paired]], rows)


def _bags(num_bags: int, bag_parts: list[Ints], row_parts: list[Ints]) -> RewrittenBags:
    """Sort rows that know their bag into CSR form."""
    bags, rows = np.concatenate(bag_parts), np.concatenate(row_parts)
    lengths = np.bincount(bags, minlength=num_bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return RewrittenBags(offsets, rows[np.argsort(bags, kind="stable")])
