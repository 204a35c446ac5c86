"""Cannot gain: tables for which nothing has to be fitted, because no sums can help or be chosen.

Flow: bags of one table + options -> *a sentence why not, or none* -> candidates.  Derived: rows of a
bag never fall below one.
Shapes: L ids.
"""

import math
from collections.abc import Mapping

import numpy as np

from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import BYTES_PER_EDGE, TooManyPairs
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.texts import NO_BAGS
from grace_torchrec.traces.trace import Trace

LEAST_BAGS = 10  # fewer bags leave a validation fifth of one bag


def too_long(counted: CountedTrace, memory_limit_bytes: int) -> str:
    """Say that the pairs of a single bag pass the memory limit, or return an empty text."""
    longest = int(np.diff(counted.trace.offsets_B1).max(initial=0))
    if longest * (longest - 1) * BYTES_PER_EDGE <= memory_limit_bytes:
        return ""
    try:
        counted.pairs  # noqa: B018  # the bag in question may be left out
    except TooManyPairs as error:
        return f"sums could not be chosen ({error})"
    return ""


def not_tried(skipped: Mapping[str, str]) -> str:
    """Say which methods were not tried and why, or return an empty text.

    Args:
        skipped: Method -> why it could not be fitted.

    >>> not_tried({"grace": "no room", "grace_floor": "no room"})
    'not tried: grace, grace_floor (no room)'
    """
    by_why: dict[str, list[str]] = {}
    for method, why in skipped.items():
        by_why.setdefault(why, []).append(method)
    parts = [f"{', '.join(methods)} ({why})" for why, methods in by_why.items()]
    return f"not tried: {'; '.join(parts)}" if parts else ""


def merge_bound(trace: Trace) -> float:
    """Return a bound on the cut of any sums: every bag (of equal weights) reads a row or more.

    >>> merge_bound(Trace.from_bags([[0, 1, 2, 3], []]))
    0.75
    """
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    if trace.weights_L is None:
        mergeable = np.unique(bag_L).size
    else:
        pairs = np.stack([bag_L, trace.weights_L.view(np.int32).astype(np.int64)], axis=1)
        mergeable = np.unique(pairs, axis=0).shape[0]
    return 1.0 - mergeable / trace.num_ids if trace.num_ids else 0.0


def cannot_gain(trace: Trace, options: PlanOptions) -> str:
    """Say in a sentence why no sums can help, or return an empty text."""
    filled = int(np.count_nonzero(np.diff(trace.offsets_B1)))
    if not filled:
        return f"{NO_BAGS}: what it reads is in no figure"
    if trace.num_bags < LEAST_BAGS:
        return f"{trace.num_bags} bags were recorded, {LEAST_BAGS} or more are needed to judge sums"
    if not options.methods or math.floor(options.budget * trace.num_items) < 1:
        return "the options allow no sums"
    if merge_bound(trace) > 0 and merge_bound(trace) >= options.min_gain:
        return ""
    if trace.weights_L is not None and trace.num_ids > filled:
        return "the weights inside its bags differ, and only ids of equal weight share a sum"
    return f"bags of {trace.num_ids / filled:.1f} ids cannot share a sum"
