"""Merging and thinning of traces: shards into one, long bags capped, whole bags sampled.

Flow: readers -> *concatenate*, *cap_bags*, *sample_bags* -> profile.  What is kept of a bag
depends on its ids and a seed only, and of a trace on the number of a bag in the whole, so any
cut into shards gives the same result.
Shapes: B bags, B1 = B + 1, L ids, C ids of capped bags.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.hashed import hashed
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Capped:
    """A trace whose long bags were cut, and what that dropped.

    Attributes:
        trace: The bags that are left; short ones are untouched.
        bags_capped: Bags that lost ids.
        ids_dropped: Ids that were dropped.
        pairs_dropped: Pairs of ids of one bag that are not seen together any more.
    """

    trace: Trace
    bags_capped: int
    ids_dropped: int
    pairs_dropped: int


def concatenate(traces: Iterable[Trace]) -> Trace:
    """Return all bags of all traces, in their order.

    Raises:
        GraceError: there are none, or only some have weights, times or split marks.

    >>> concatenate([Trace.from_bags([[1]]), Trace.from_bags([[2, 0], []])]).num_bags
    3
    """
    parts = list(traces)
    if len(parts) == 1:
        return parts[0]
    check_alike(parts)
    offsets = np.zeros(sum(part.num_bags for part in parts) + 1, np.int64)
    np.cumsum(np.concatenate([np.diff(part.offsets_B1) for part in parts]), out=offsets[1:])
    weights, times, splits = (
        None
        if getattr(parts[0], name) is None
        else np.concatenate([getattr(p, name) for p in parts])
        for name in ("weights_L", "time_B", "split_L")
    )
    num_items = max(part.num_items for part in parts)
    ids = np.concatenate([part.ids_L for part in parts])
    return Trace(offsets, ids, num_items, weights, times, splits, merged_note(parts))


def check_alike(parts: list[Trace]) -> None:
    """Refuse parts that cannot be one trace.

    Raises:
        GraceError: there are none, or only some have weights, times or split marks.
    """
    if not parts:
        raise GraceError("there are no traces to merge; give at least one")
    for name, what in (("weights_L", "weights"), ("time_B", "times"), ("split_L", "split marks")):
        if len({getattr(part, name) is None for part in parts}) > 1:
            raise GraceError(f"some traces have {what} and others do not; give one kind")


def merged_note(parts: list[Trace]) -> str:
    """Return the notes of all parts, each once."""
    return " | ".join(dict.fromkeys(part.note for part in parts if part.note))


def cap_bags(trace: Trace, most_ids: int, seed: int = 0) -> Capped:
    """Cut every bag that is longer than ``most_ids`` to a random sample of its ids.

    Pairs grow with the square of a bag, so a few endless bags can cost more than all others.
    Ids that are kept stay in their order; which are kept depends on the bag and ``seed`` only.

    Args:
        trace: Bags.
        most_ids: Most ids of a bag, 1 or more.
        seed: Of the sample.

    Raises:
        GraceError: ``most_ids`` is below 1.
    """
    if most_ids < 1:
        raise GraceError(f"cap: most_ids is {most_ids}; give 1 or more")
    lengths = np.diff(trace.offsets_B1)
    long = np.flatnonzero(lengths > most_ids)
    if not long.size:
        return Capped(trace, 0, 0, 0)
    drawn = trace.take(long)
    bag_C = np.repeat(np.arange(long.size), lengths[long])
    place_C = np.arange(bag_C.size) - drawn.offsets_B1[bag_C]
    key_C = hashed(hashed(place_C, seed) ^ drawn.ids_L.astype(np.uint64), seed)
    order = np.lexsort((key_C, bag_C))
    dropped = order[place_C >= most_ids]  # bags keep their places under this order
    source = np.repeat(trace.offsets_B1[:-1][long] - drawn.offsets_B1[:-1], lengths[long])
    kept_L = np.ones(trace.num_ids, np.bool_)
    kept_L[(source + np.arange(bag_C.size))[dropped]] = False
    pairs = int((lengths[long] * (lengths[long] - 1) // 2).sum())
    pairs -= long.size * (most_ids * (most_ids - 1) // 2)
    return Capped(trace.keep(kept_L), int(long.size), int(dropped.size), pairs)


def sample_bags(trace: Trace, share: float, seed: int = 0, first_bag: int = 0) -> Trace:
    """Keep each bag with probability ``share``, by its number in the whole.

    Args:
        trace: Bags, the first of which has the number ``first_bag``.
        share: Above 0, up to 1 (all bags).
        seed: Of the sample.
        first_bag: Bags that stand before this trace in the whole.

    Raises:
        GraceError: ``share`` is out of range.
    """
    if not 0 < share <= 1:
        raise GraceError(f"sample: share is {share}; give a number above 0, up to 1")
    if share == 1:
        return trace
    numbers = np.arange(first_bag, first_bag + trace.num_bags)
    drawn = (hashed(numbers, seed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return trace.take(np.flatnonzero(drawn < share))
