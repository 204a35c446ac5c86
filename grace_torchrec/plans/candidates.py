"""Candidates: which sums a table could store, judged by the rows that held-out bags read.

Flow: bags of one table -> fit / validation -> *Shortlist* (the best candidate of each method) ->
one is picked, by cut or by time -> *Choice*, refitted on all bags -> settling of memories.
"No sums" is always a candidate.  Derived: the least cut.
Shapes: N items, R sums, L ids.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from grace_torchrec.grouping.candidates import (
    IN_LINE_METHODS,
    SET_RULES,
    Judged,
    Ranked,
    judge,
    name_of,
)
from grace_torchrec.grouping.choose import best_of
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT
from grace_torchrec.plans.cannot_gain import cannot_gain, too_long
from grace_torchrec.plans.curve import BUDGET_SHARES, CurvePoint
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.sums.count_reads import RowReads, count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

PAIR_METHODS = ("grace", "grace_floor")  # they count all pairs


@dataclass(frozen=True, eq=False)
class Bags:
    """The bags of one table: a candidate is fitted on ``fit`` and judged on ``validation``."""

    all: Trace
    fit: Trace
    validation: Trace


@dataclass(frozen=True, eq=False)
class Choice:
    """What a table could store, with both fits of it.

    Attributes:
        bags: What it was chosen on.
        method: Grouping method, ``none`` where nothing is stored.
        parameter: Its parameter as text, empty without one.
        reason: Why nothing is stored; empty where something is.
        cuts: Candidate (method and parameter) -> cut on the validation bags, of all that were tried.
        curve: Cuts of the best methods by budget.
        held_sums: Sums fitted on the fit bags: held-out figures come from them.
        sums: Sums refitted on all bags: these are shipped.
        reads: What the validation bags read with ``held_sums``.
        counted_share: Share of the bags whose pairs were counted, less than 1 where memory was short.
        held_ranked: ``held_sums`` in order of value.
        ranked: ``sums`` in order of value.
    """

    bags: Bags
    method: str
    parameter: str
    reason: str
    cuts: dict[str, float]
    curve: tuple[CurvePoint, ...]
    held_sums: StoredSums
    sums: StoredSums
    reads: RowReads
    counted_share: float = 1.0
    held_ranked: Ranked | None = field(default=None, repr=False)
    ranked: Ranked | None = field(default=None, repr=False)

    @property
    def picked(self) -> str:
        """Method and parameter in one text, as in ``cuts``."""
        return name_of(self.method, self.parameter)


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The best candidate of each method that bags can use as they arrive and that gains enough.

    Attributes:
        bags: What they were fitted and judged on.
        finalists: In the order in which methods are tried; empty where nothing is worth storing.
        reason: Why there are none.
        cuts: Of all candidates that were tried, those that bags cannot use included.
        curve: Cuts of the best methods by budget.
        budget: Most sums.
        memory_limit_bytes: Most memory that the counts of all pairs may take.
    """

    bags: Bags
    finalists: tuple[Judged, ...]
    reason: str
    cuts: dict[str, float]
    curve: tuple[CurvePoint, ...]
    budget: int
    memory_limit_bytes: int


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


def find_sums(
    trace: Trace,
    options: PlanOptions,
    seed: int = 0,
    in_order: bool = False,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
) -> Choice:
    """Try every candidate on the fit bags, take the greatest cut on validation, refit on all.

    Args:
        trace: Bags of one table; ``num_items`` is the number of its rows.
        options: Budget, methods, size limits and the least cut.
        seed: See :func:`split_validation`.
        in_order: See :func:`split_validation`.
        memory_limit_bytes: Most memory that the counts of all pairs may take.
    """
    shortlist = judge_all(split_validation(trace, seed, in_order), options, memory_limit_bytes)
    return refitted(shortlist, best_of(shortlist.finalists, options.min_gain))


def judge_all(
    bags: Bags, options: PlanOptions, memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT
) -> Shortlist:
    """Fit every candidate and judge it.

    Args:
        bags: Bags of one table.
        options: Budget, methods, size limits and the least cut.
        memory_limit_bytes: Most memory that the counts of all pairs may take; where they would take
            more, those of fewer bags are counted.
    """
    budget = math.floor(options.budget * bags.all.num_items)
    empty = Shortlist(bags, (), cannot_gain(bags.all, options), {}, (), budget, memory_limit_bytes)
    if empty.reason:
        return empty
    counted = CountedTrace(bags.fit, budget, bags.fit.num_bags, memory_limit_bytes, thin=True)
    refusal = too_long(counted, memory_limit_bytes)
    if refusal:
        return replace(empty, reason=refusal)
    if len(options.methods) > 1:
        counted.prepare(SET_RULES if "set_merge" in options.methods else ())
    verdicts = judge(counted, bags.validation, budget, options.methods, options.size_limits)
    usable = [one for m, one in verdicts.best.items() if m in options.usable_methods]
    finalists = tuple(one for one in usable if 0 < one.reads.cut >= options.min_gain)
    cut = max((one.reads.cut for one in usable), default=0.0)
    least = f"the least gain is {options.min_gain:.1%}"
    return replace(
        empty,
        finalists=finalists,
        reason="" if finalists else f"sums cut {cut:.1%} of row reads on held-out bags, {least}",
        cuts=verdicts.cuts,
        curve=_curve(verdicts.best, bags.validation, budget),
    )


def refitted(shortlist: Shortlist, picked: Judged | None) -> Choice:
    """Fit what was picked on all bags.

    Args:
        shortlist: Where it was picked from.
        picked: A finalist, None for no sums.
    """
    if picked is None:
        return no_sums(shortlist.bags, shortlist.reason, shortlist.cuts, shortlist.curve)
    bags = shortlist.bags
    whole = CountedTrace(
        bags.all, shortlist.budget, bags.fit.num_bags, shortlist.memory_limit_bytes, thin=True
    )
    ranked = picked.candidate.rank(whole, shortlist.budget)
    share = whole.pairs_share if picked.candidate.method in PAIR_METHODS else 1.0
    return replace(
        held(shortlist, picked),
        sums=ranked.first(shortlist.budget),
        ranked=ranked,
        counted_share=share,
    )


def held(shortlist: Shortlist, picked: Judged) -> Choice:
    """A finalist as it was judged: the sums of the fit bags stand in for those of all bags."""
    sums = picked.ranked.first(shortlist.budget)
    return Choice(
        bags=shortlist.bags,
        method=picked.candidate.method,
        parameter=picked.candidate.parameter,
        reason="",
        cuts=shortlist.cuts,
        curve=shortlist.curve,
        held_sums=sums,
        sums=sums,
        reads=picked.reads,
        held_ranked=picked.ranked,
        ranked=picked.ranked,
    )


def no_sums(
    bags: Bags,
    reason: str,
    cuts: dict[str, float] | None = None,
    curve: tuple[CurvePoint, ...] = (),
) -> Choice:
    """The candidate that stores nothing, and why it was taken."""
    none = StoredSums.none(bags.all.num_items)
    reads = count_reads(bags.validation, none)
    return Choice(bags, "none", "", reason, cuts or {}, curve, none, none, reads)


def trimmed(choice: Choice, share: float) -> Choice:
    """Keep the first sums of a choice, at most ``share`` of them: the most valuable ones.

    Memory decides how many sums pay; a sum in host memory may cost more than its items in HBM.
    """
    if share >= 1 or choice.held_ranked is None or choice.ranked is None:
        return choice
    held, sums = (
        ranked.first(int(round(share * whole.num_sums, 6)))
        for ranked, whole in (
            (choice.held_ranked, choice.held_sums),
            (choice.ranked, choice.sums),
        )
    )
    return replace(
        choice, held_sums=held, sums=sums, reads=count_reads(choice.bags.validation, held)
    )


def _curve(best: dict[str, Judged], validation: Trace, budget: int) -> tuple[CurvePoint, ...]:
    """Judge the first sums of the best candidate of each method: smaller budgets are prefixes."""
    if not best:
        return ()
    points = []
    for share in BUDGET_SHARES:
        rows = int(share * budget)
        cuts = {
            method: one.reads.cut
            if rows == budget
            else count_reads(validation, one.ranked.first(rows)).cut
            for method, one in best.items()
        }
        in_line = max((cut for m, cut in cuts.items() if m in IN_LINE_METHODS), default=0.0)
        points.append(CurvePoint(rows, in_line, max(cuts.values())))
    return tuple(points)
