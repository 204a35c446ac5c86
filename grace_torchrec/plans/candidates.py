"""Candidates: which sums a table would store, chosen by the rows that held-out bags read.

Flow: bags of one table -> fit / validation -> *Choice* (sums, or none and why) -> settling of
memories.  "No sums" is always a candidate.  Derived: the least cut, and the bound below which
nothing is fitted: rows of a bag never fall below one.
Shapes: N items, R sums, L ids, C clusters, C1 = C + 1, M members.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grace_kernels.reference import SLOT_BITS
from grace_torchrec.grouping.pair_counts import PairCounts, TooManyPairs, count_pairs
from grace_torchrec.grouping.paper_greedy import GrowthRule, grow_clusters
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.count_reads import RowReads, count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

LEAST_BAGS = 10  # fewer bags leave a validation fifth of one bag


@dataclass(frozen=True, eq=False)
class Bags:
    """The bags of one table: a candidate is fitted on ``fit`` and judged on ``validation``."""

    all: Trace
    fit: Trace
    validation: Trace


@dataclass(frozen=True, eq=False)
class Choice:
    """The best candidate by cut, with both fits of it.

    Attributes:
        bags: What it was chosen on.
        method: Grouping method, ``none`` where nothing is stored.
        size_limit: Largest cluster, 0 without sums.
        reason: Why nothing is stored; empty where something is.
        cuts: Size limit -> cut on the validation bags, for every candidate tried.
        held_sums: Sums fitted on the fit bags: held-out figures come from them.
        sums: Sums refitted on all bags: these are shipped.
        reads: What the validation bags read with ``held_sums``.
        counted_share: Share of the bags whose pairs were counted, less than 1 where memory was short.
    """

    bags: Bags
    method: str
    size_limit: int
    reason: str
    cuts: dict[int, float]
    held_sums: StoredSums
    sums: StoredSums
    reads: RowReads
    counted_share: float = 1.0


def split_validation(trace: Trace, seed: int = 0, in_order: bool = False) -> Bags:
    """Set a fifth of the bags aside for validation.

    Args:
        trace: All bags that may be learned from.
        seed: Order of the bags; the last fifth of it is validation.
        in_order: The bags are in random order already: their last fifth is validation.
    """
    num_bags = trace.num_bags
    order = np.arange(num_bags) if in_order else np.random.default_rng(seed).permutation(num_bags)
    keep = num_bags - num_bags // 5
    return Bags(trace, trace.take(order[:keep]), trace.take(order[keep:]))


def find_sums(trace: Trace, options: PlanOptions, seed: int = 0, in_order: bool = False) -> Choice:
    """Try every candidate on the fit bags, take the greatest cut on validation, refit on all.

    Args:
        trace: Bags of one table; ``num_items`` is the number of its rows.
        options: Budget, methods, size limits and the least cut.
        seed: See :func:`split_validation`.
        in_order: See :func:`split_validation`.
    """
    bags = split_validation(trace, seed, in_order)
    refusal = _cannot_gain(trace, options)
    if refusal:
        return no_sums(bags, refusal)
    try:
        return _best(bags, options)
    except TooManyPairs as error:  # even those of one bag
        return no_sums(bags, f"sums could not be chosen ({error})")


def _count_pairs(trace: Trace, share: float = 1.0) -> tuple[PairCounts, float]:
    """Count the pairs of as many bags as memory allows; return the counts and the share of bags."""
    try:
        return count_pairs(trace), share
    except TooManyPairs:
        if trace.num_bags < 2:
            raise
        return _count_pairs(trace.take(np.arange(0, trace.num_bags, 2)), share / 2)


def _best(bags: Bags, options: PlanOptions) -> Choice:
    """Fit every size limit, judge each on the validation bags, refit the best on all bags."""
    budget = math.floor(options.budget * bags.all.num_items)
    pairs, _ = _count_pairs(bags.fit)
    cuts: dict[int, float] = {}
    best: tuple[int, StoredSums, RowReads] | None = None
    for limit in options.size_limits:
        held = grow_clusters(pairs, budget, GrowthRule(limit))
        reads = count_reads(bags.validation, held)
        cuts[limit] = reads.cut
        if held.num_sums and (best is None or reads.cut > best[2].cut):
            best = limit, held, reads
    cut = best[2].cut if best else 0.0
    if best is None or cut < options.min_gain:
        least = f"the least gain is {options.min_gain:.1%}"
        return no_sums(bags, f"sums cut {cut:.1%} of row reads on held-out bags, {least}", cuts)
    del pairs
    limit, held, reads = best
    pairs, share = _count_pairs(bags.all)
    sums = grow_clusters(pairs, budget, GrowthRule(limit))
    return Choice(bags, "grace", limit, "", cuts, held, sums, reads, share)


def no_sums(bags: Bags, reason: str, cuts: dict[int, float] | None = None) -> Choice:
    """The candidate that stores nothing, and why it was taken."""
    none = StoredSums.none(bags.all.num_items)
    return Choice(
        bags, "none", 0, reason, cuts or {}, none, none, count_reads(bags.validation, none)
    )


def trimmed(choice: Choice, share: float) -> Choice:
    """Keep the first clusters of a choice, at most ``share`` of its sums: the most valuable ones.

    Memory decides how many sums pay; a sum in host memory may cost more than its items in HBM.
    """
    if share >= 1 or choice.method == "none":
        return choice
    held, sums = _first_clusters(choice.held_sums, share), _first_clusters(choice.sums, share)
    return replace(
        choice, held_sums=held, sums=sums, reads=count_reads(choice.bags.validation, held)
    )


def clusters_of(sums: StoredSums) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read the clusters back out of the code: (offsets ``[C + 1]``, members in slot order)."""
    code_N = sums.clusters.item_code_N
    members = np.flatnonzero(code_N >= 0)
    members = members[np.argsort(code_N[members], kind="stable")]
    slots = code_N[members] & ((1 << SLOT_BITS) - 1)
    return np.append(np.flatnonzero(slots == 0), members.size), members


def _first_clusters(sums: StoredSums, share: float) -> StoredSums:
    """The longest run of first clusters that stores at most ``share`` of the sums."""
    code_N = sums.clusters.item_code_N
    blocks_C = np.unique(code_N[code_N >= 0] >> SLOT_BITS)  # first row of every cluster
    ends_C1 = np.concatenate([[0], blocks_C[1:], [sums.num_sums]])
    kept = int(ends_C1[np.searchsorted(ends_C1, share * sums.num_sums, side="right") - 1])
    code = np.where(code_N >> SLOT_BITS < kept, code_N, -1)
    narrow = kept < 2**28  # as cluster_code does
    code = code.astype(np.int32) if narrow else code.astype(np.int64)
    indptr_R1 = sums.set_indptr_R1[: kept + 1]
    items = sums.set_items_S[: indptr_R1[-1]]
    return StoredSums(sums.num_items, indptr_R1, items, ClusterCode(code))


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


def _cannot_gain(trace: Trace, options: PlanOptions) -> str:
    """Say in a sentence why no sums can help, or return an empty text."""
    filled = int(np.count_nonzero(np.diff(trace.offsets_B1)))
    if not filled:
        return "the profile holds no bags of it"
    if trace.num_bags < LEAST_BAGS:
        return f"{trace.num_bags} bags were recorded, {LEAST_BAGS} or more are needed to judge sums"
    if not options.methods or math.floor(options.budget * trace.num_items) < 1:
        return "the options allow no sums"
    if merge_bound(trace) > 0 and merge_bound(trace) >= options.min_gain:
        return ""
    if trace.weights_L is not None and trace.num_ids > filled:
        return "the weights inside its bags differ, and only ids of equal weight share a sum"
    return f"bags of {trace.num_ids / filled:.1f} ids cannot share a sum"
