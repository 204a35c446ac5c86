"""Bounds: what storing all sums of a group can save, from pair counts alone.

Flow: pair counts -> *bounds*, which the core of the greedy growth computes step by step: here is
their meaning, which it is held against.  Source: GRACE, ASPLOS'23 (a lower and an upper
bound of the saving by inclusion-exclusion on pair counts, interpolated).  The text gives no
formula; derived here: a bag that holds c >= 1 items of the group saves c - 1 reads. It adds
c (c - 1) / 2 >= c - 1 to the sum of the pair counts, hence the upper bound; the edges of a tree
over the group that it holds both ends of form a forest on c items, hence at most c - 1 of them,
and every spanning tree is a lower bound, the heaviest the best one (Hunter's bound).
The greedy adds the marginal forms: a new item saves one read in every bag that holds it and an
item of the group, at least its strongest edge and at most the sum of its edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import _greedy_core
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.grouping.pair_counts import PairCounts
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True)
class Bounds:
    """Row reads that a group, or one more item of it, saves at least and at most."""

    lower: int
    upper: int

    def at(self, interpolation: float) -> float:
        """Return the estimate between the bounds: 0 is ``lower``, 1 is ``upper``."""
        return float(_greedy_core.interpolate(self.lower, self.upper, interpolation))


def group_bounds(pairs: PairCounts, members: Sequence[int]) -> Bounds:
    """Return the bounds of the reads saved by storing every sum of ``members``.

    Args:
        pairs: Pair counts of the bags.
        members: Two or more different items.

    Raises:
        GraceError: fewer than two items, a repeated item, or one outside the graph.
    """
    _check_group(members, pairs.num_items)
    upper = sum(pairs.weight(a, b) for at, a in enumerate(members) for b in members[:at])
    link = {item: pairs.weight(members[0], item) for item in members[1:]}
    lower = 0
    while link:  # Prim: take the item that hangs on the tree by the heaviest edge
        nearest = max(link, key=lambda item: link[item])
        lower += link.pop(nearest)
        link = {item: max(weight, pairs.weight(nearest, item)) for item, weight in link.items()}
    return Bounds(lower, upper)


def marginal_bounds(pairs: PairCounts, members: Sequence[int], item: int) -> Bounds:
    """Return the bounds of the reads saved by adding ``item`` to ``members``.

    Raises:
        GraceError: ``members`` is empty, an item repeats, or one is outside the graph.
    """
    _check_group([*members, item], pairs.num_items)
    weights = [pairs.weight(member, item) for member in members]
    return Bounds(max(weights), sum(weights))


def exact_saving(trace: Trace, members: Sequence[int]) -> int:
    """Return the reads that storing every sum of ``members`` saves on the bags of ``trace``.

    The truth that the bounds bracket; costs a pass over the bags, so it serves as an oracle.

    Raises:
        GraceError: fewer than two items, a repeated item, or one outside the table.

    >>> exact_saving(Trace.from_bags([[0, 1, 2, 3], [0, 1], [3]]), [0, 1, 2])
    3
    """
    _check_group(members, trace.num_items)
    layers = layered_bags(trace)
    inside_N = np.zeros(trace.num_items, np.bool_)
    inside_N[np.asarray(members)] = True
    before = np.r_[0, np.cumsum(inside_N[layers.ids_L])]
    held_B = np.diff(before[layers.offsets_B1])
    return int(held_B.sum() - np.count_nonzero(held_B))


def _check_group(members: Sequence[int], num_items: int) -> None:
    """Refuse groups that own no sum."""
    if len(members) < 2 or len(set(members)) != len(members):
        raise GraceError(f"group {list(members)}: two or more different items expected")
    if not 0 <= min(members) <= max(members) < num_items:
        raise GraceError(f"group {list(members)}: items must be in 0..{num_items - 1}")
