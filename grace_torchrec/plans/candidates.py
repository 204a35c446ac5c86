"""Candidates: which sums a table could store, judged by the rows that held-out bags read.

Flow: bags of one table -> fit / validation -> *Choice* (the best candidate of each method, and of
all) -> settling of memories, where what is taken is refitted on all bags.  "No sums" is always a
candidate.  Everything is fitted and judged over the rows that bags ask for (:class:`Asked`); what is
shipped is over the whole table.  Derived: the least cut.
Shapes: N items, R sums, L ids.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT, TooManyPairs
from grace_torchrec.plans.asked import Asked
from grace_torchrec.plans.cannot_gain import cannot_gain, not_tried, too_long
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

    @cached_property
    def asked(self) -> Asked:
        """The rows that they ask for."""
        return Asked.of([self.all, self.fit, self.validation])

    @cached_property
    def few(self) -> "Bags":
        """The same bags over the rows that they ask for."""
        return Bags(*(self.asked.trace(one) for one in (self.all, self.fit, self.validation)))


@dataclass(frozen=True, eq=False)
class Refit:
    """A candidate fitted on all bags.

    Attributes:
        ranked: Its sums in order of value, over the asked rows.
        budget: Most sums.
        counted_share: Share of the bags whose pairs were counted, less than 1 where memory was short.
        asked: Rows that bags ask for.
        is_judged: These are the sums that were judged: all bags need more memory.
    """

    ranked: Ranked
    budget: int
    counted_share: float
    asked: Asked
    is_judged: bool = False

    @cached_property
    def few(self) -> StoredSums:
        """The sums that the budget allows, over the asked rows."""
        return self.ranked.first(self.budget)

    @cached_property
    def sums(self) -> StoredSums:
        """The same over the whole table: these are shipped."""
        return self.asked.whole(self.few)


@dataclass(frozen=True, eq=False)
class Finalist:
    """The best candidate of one method.

    Attributes:
        method: Grouping method.
        parameter: Its parameter as text, empty without one.
        held_ranked: Its sums fitted on the fit bags, in order of value, over the asked rows.
        held_sums: Those that the budget allows: held-out figures come from them.
        reads: What the validation bags read with ``held_sums``, over the asked rows.
        fit_again: Fits it on all bags.
    """

    method: str
    parameter: str
    held_ranked: Ranked
    held_sums: StoredSums
    reads: RowReads
    fit_again: Callable[[], Refit]

    @property
    def picked(self) -> str:
        """Method and parameter in one text, as in ``cuts``."""
        return name_of(self.method, self.parameter)

    @cached_property
    def refit(self) -> Refit:
        """It fitted on all bags, when first asked for."""
        return self.fit_again()

    def first_held(self, share: float) -> StoredSums:
        """Return the most valuable sums of the fit bags, at most a share of them."""
        return _first(self.held_ranked, self.held_sums, share)

    def first(self, share: float, most: int | None = None) -> StoredSums:
        """Return the most valuable sums of all bags, over the whole table.

        Args:
            share: Of the sums, at most.
            most: Sums at most; default: no limit.
        """
        refit = self.refit
        few = _first(refit.ranked, refit.few, share)
        if most is not None and few.num_sums > most:
            few = refit.ranked.first(most)
        return refit.sums if few is refit.few else refit.asked.whole(few)


@dataclass(frozen=True, eq=False)
class Choice:
    """What a table could store.

    Attributes:
        bags: What candidates were fitted and judged on.
        best: The finalist of the greatest cut, None where nothing is worth storing.
        finalists: One of each method whose code bags can use as they arrive and that gains enough,
            in the order in which methods are tried.
        reason: Why nothing is stored; empty where something is.
        cuts: Candidate (method and parameter) -> cut on the validation bags, of all that were tried.
        curve: Cuts of the best methods by budget.
        untried: Methods that were asked for and not tried, and why; mostly empty.
    """

    bags: Bags
    best: Finalist | None
    finalists: tuple[Finalist, ...]
    reason: str
    cuts: dict[str, float]
    curve: tuple[CurvePoint, ...]
    untried: str = ""

    @property
    def method(self) -> str:
        """Method of the best, ``none`` where nothing is stored."""
        return self.best.method if self.best else "none"

    @property
    def parameter(self) -> str:
        """Parameter of the best."""
        return self.best.parameter if self.best else ""

    @property
    def held_sums(self) -> StoredSums:
        """Sums of the best, fitted on the fit bags, over the asked rows."""
        return self.best.held_sums if self.best else StoredSums.none(self.bags.asked.item_A.size)

    @property
    def sums(self) -> StoredSums:
        """Sums of the best, fitted on all bags when first asked for."""
        return self.best.refit.sums if self.best else StoredSums.none(self.bags.all.num_items)

    @property
    def reads(self) -> RowReads:
        """What the validation bags read with ``held_sums``, over the asked rows."""
        if self.best:
            return self.best.reads
        plain = self.bags.few.validation
        return RowReads(plain.counts(), np.zeros(0, np.int64), plain.num_ids)


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


def judge_all(
    bags: Bags, options: PlanOptions, memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT
) -> Choice:
    """Fit every candidate on the fit bags and judge it on the validation bags.

    Args:
        bags: Bags of one table.
        options: Budget, methods, size limits and the least cut.
        memory_limit_bytes: Most memory that the counts of all pairs may take, and the partners of
            items; where they would take more, pairs of fewer bags are counted and fewer partners
            kept.
    """
    refusal = cannot_gain(bags.all, options)
    if refusal:
        return no_sums(bags, refusal)
    budget = math.floor(options.budget * bags.all.num_items)
    counted = _counted(bags, bags.few.fit, budget, memory_limit_bytes)
    refusal = too_long(counted, memory_limit_bytes)
    if refusal:
        return no_sums(bags, refusal)
    if len(options.methods) > 1:
        counted.prepare(SET_RULES if "set_merge" in options.methods else ())
    validation = bags.few.validation
    verdicts = judge(counted, validation, budget, options.methods, options.size_limits)
    usable = [one for m, one in verdicts.best.items() if m in options.usable_methods]
    enough = {
        one: _finalist(one, bags, counted, memory_limit_bytes)
        for one in usable
        if 0 < one.reads.cut >= options.min_gain
    }
    best = best_of(enough, options.min_gain)
    untried = not_tried(verdicts.skipped)
    cut = max((one.reads.cut for one in usable), default=0.0)
    least = f"the least gain is {options.min_gain:.1%}"
    reason = f"sums cut {cut:.1%} of row reads on held-out bags, {least}" if usable else ""
    return Choice(
        bags,
        None if best is None else enough[best],
        tuple(enough.values()),
        "" if enough else "; ".join(part for part in (reason, untried) if part),
        verdicts.cuts,
        _curve(verdicts.best, validation, budget),
        untried,
    )


def no_sums(bags: Bags, reason: str) -> Choice:
    """The candidate that stores nothing, and why it was taken without trying others."""
    return Choice(bags, None, (), reason, {}, ())


def _finalist(one: Judged, bags: Bags, counted: CountedTrace, memory_limit_bytes: int) -> Finalist:
    """Keep what a candidate fitted, and how to fit it again."""
    candidate, budget = one.candidate, counted.most

    def share_of(trace: CountedTrace) -> float:
        """Return the share of the bags whose pairs were counted for this method."""
        return trace.pairs_share if candidate.method in PAIR_METHODS else 1.0

    def fit_again() -> Refit:
        """Fit on all bags, or keep the fit that was judged where these need more memory."""
        whole = _counted(bags, bags.few.all, budget, memory_limit_bytes)
        try:
            return Refit(candidate.rank(whole, budget), budget, share_of(whole), bags.asked)
        except TooManyPairs:
            return Refit(one.ranked, budget, share_of(counted), bags.asked, is_judged=True)

    held = one.ranked.first(budget)
    method, parameter = candidate.method, candidate.parameter
    return Finalist(method, parameter, one.ranked, held, one.reads, fit_again)


def _counted(bags: Bags, trace: Trace, budget: int, memory_limit_bytes: int) -> CountedTrace:
    """Get ready to count some of the bags, over the asked rows."""
    return CountedTrace(
        trace,
        budget,
        bags.fit.num_bags,
        memory_limit_bytes,
        thin=True,
        num_rows=bags.all.num_items,
    )


def _first(ranked: Ranked, sums: StoredSums, share: float) -> StoredSums:
    """The first sums, at most ``share`` of them: the most valuable ones.

    Memory decides how many sums pay; a sum in host memory may cost more than its items in HBM.
    """
    return sums if share >= 1 else ranked.first(int(round(share * sums.num_sums, 6)))


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
