"""Choosing: every method is fitted on a part of the train bags, the rest of them decides.

Flow: (fit, validation, train) -> candidates -> *Choice* of a method, or of no sums -> refit.
Derived, as the paper has one method.  A gain under one point of rows is no gain: it would not
pay for the rows, and bags without structure show gains of that size.  Candidates are fitted once
for the largest budget where smaller ones are a prefix of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from grace_torchrec.grouping import grace_floor, paper_greedy, set_merge, set_refine
from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

Allow = Literal["in_line", "ahead"]
LEAST_GAIN = 0.01  # of the rows that the validation bags read
SET_RULES = (set_merge.Rule(), set_merge.Rule(popularity=1.0))
FILLED_SHARES = (0.8, 0.6)
NONE = "none"


@dataclass(frozen=True, eq=False)
class Choice:
    """What is stored for one budget, and why.

    Attributes:
        sums: Fitted on all train bags.
        method: ``none``, ``grace``, ``grace_floor``, ``subsets`` or ``set_merge``.
        parameter: The parameter that was chosen with it, or an empty string.
        cuts: Candidate (method and parameter) -> cut on the validation bags.
    """

    sums: StoredSums
    method: str
    parameter: str
    cuts: dict[str, float]

    @property
    def picked(self) -> str:
        """Method and parameter in one string."""
        return _name(self.method, self.parameter)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with a parameter.

    Attributes:
        method: Name of the method.
        parameter: Its parameter as text.
        build: (counted trace, budget) -> sums.
    """

    method: str
    parameter: str
    build: Callable[[CountedTrace, int], StoredSums]


@dataclass(frozen=True, eq=False)
class Picked:
    """The best candidate, and the cuts of all on the validation bags."""

    best: Candidate
    cuts: dict[str, float]


def fit_auto(
    fit_part: Trace,
    validation: Trace,
    train: Trace,
    budget: int,
    allow: Allow = "in_line",
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
) -> Choice:
    """Choose among all methods and no sums for one budget, then fit on all train bags.

    Args:
        fit_part: Train bags without the validation bags.
        validation: Bags that decide.
        train: All train bags, for the refit of what was chosen.
        budget: Most sums to store.
        allow: ``in_line``: only codes that rewrite while serving; ``ahead``: sets too.
        memory_limit_bytes: Most memory that the counts of all pairs may take; where they would
            take more, the methods that need them are no candidates.

    Raises:
        GraceError: the budget is below 0.
    """
    chosen = fit_auto_budgets(fit_part, validation, train, [budget], allow, memory_limit_bytes)
    return chosen[budget]


def fit_auto_budgets(
    fit_part: Trace,
    validation: Trace,
    train: Trace,
    budgets: Sequence[int],
    allow: Allow = "in_line",
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
) -> dict[int, Choice]:
    """Choose for several budgets; pairs are counted and sets are merged once for all of them.

    Args:
        fit_part: See :func:`fit_auto`, as the next two.
        validation: Bags that decide.
        train: All train bags.
        budgets: Most sums to store, one or more.
        allow: See :func:`fit_auto`, as the next.
        memory_limit_bytes: Most memory that the counts of all pairs may take.

    Raises:
        GraceError: a budget is below 0.
    """
    for budget in budgets:
        check_budget(budget)
    counted = CountedTrace(fit_part, max(budgets), fit_part.num_bags, memory_limit_bytes)
    counted.prepare(SET_RULES if allow == "ahead" else ())
    picks = {budget: pick(counted, validation, budget, allow) for budget in budgets}
    del counted  # the counts of all train bags take its place
    whole = CountedTrace(train, max(budgets), fit_part.num_bags, memory_limit_bytes)
    return {budget: _built(picked, whole, budget) for budget, picked in picks.items()}


def choose(fit_part: Trace, validation: Trace, budget: int, allow: Allow = "in_line") -> Picked:
    """Do the first half of :func:`fit_auto`: fit every candidate and judge it.

    Raises:
        GraceError: the budget is below 0.
    """
    check_budget(budget)
    counted = CountedTrace(fit_part, budget, fit_part.num_bags)
    counted.prepare(SET_RULES if allow == "ahead" else ())
    return pick(counted, validation, budget, allow)


def refit(picked: Picked, fit_part: Trace, train: Trace, budget: int) -> Choice:
    """Do the second half of :func:`fit_auto`: fit what was picked on all train bags."""
    return _built(picked, CountedTrace(train, budget, fit_part.num_bags), budget)


def _built(picked: Picked, whole: CountedTrace, budget: int) -> Choice:
    """Build what was picked on all train bags."""
    best = picked.best
    return Choice(best.build(whole, budget), best.method, best.parameter, picked.cuts)


def pick(counted: CountedTrace, validation: Trace, budget: int, allow: Allow) -> Picked:
    """Return the best candidate on ``validation``.

    Ties go to the candidate that comes first: no sums, then the simpler code.
    """
    none = Candidate(NONE, "", lambda whole, _: StoredSums.none(whole.trace.num_items))
    best, best_cut = none, LEAST_GAIN
    cuts = {NONE: 0.0}

    def judge(candidate: Candidate) -> float:
        """Return the cut of a candidate, keep it if it is the best so far."""
        nonlocal best, best_cut
        cut = count_reads(validation, candidate.build(counted, budget)).cut
        cuts[_name(candidate.method, candidate.parameter)] = cut
        if cut > best_cut or (best is none and cut >= LEAST_GAIN):
            best, best_cut = candidate, cut
        return cut

    if counted.has_pairs():
        for limit in paper_greedy.SIZE_LIMITS:
            judge(Candidate("grace", f"size_limit={limit}", partial(_grace, limit)))
        grace_floor.floor_cuts(
            lambda floor: judge(
                Candidate("grace_floor", f"floor={floor:g}", partial(_grace_floor, floor))
            )
        )
    judge(Candidate("subsets", "", lambda whole, rows: whole.subsets.first(rows)))
    if allow == "ahead":
        _judge_sets(judge)
    return Picked(best, cuts)


def _judge_sets(judge: Callable[[Candidate], float]) -> None:
    """Judge merged sets: every rule, then what can be made of the better one."""
    plain = {}
    for rule in SET_RULES:
        name = f"popularity={rule.popularity:g}"
        plain[rule] = judge(Candidate("set_merge", name, partial(_sets, rule)))
    rule = max(plain, key=lambda one: plain[one])
    name = f"popularity={rule.popularity:g}"
    judge(Candidate("set_merge", f"{name} refined", partial(_refined_sets, rule)))
    judge(Candidate("set_merge", f"{name} from=subsets refined", partial(_refined_subsets, rule)))
    for share in FILLED_SHARES:
        judge(
            Candidate(
                "set_merge",
                f"{name} share={share:g} filled=subsets",
                partial(_filled_sets, rule, share),
            )
        )


def _grace(size_limit: int, counted: CountedTrace, budget: int) -> StoredSums:
    """Build the paper's clusters."""
    rule = paper_greedy.GrowthRule(size_limit=size_limit)
    return paper_greedy.grow_clusters(counted.pairs, budget, rule)


def _grace_floor(floor: float, counted: CountedTrace, budget: int) -> StoredSums:
    """Build clusters of one price, scaled to the bags."""
    return grace_floor.grow_to_floor(counted.pairs, budget, floor * counted.floor_scale)


def _sets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Build merged sets."""
    return counted.sets(rule).first(budget)


def _refined_sets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Refine merged sets."""
    return set_refine.refine(counted.bags, _sets(rule, counted, budget), budget, rule)


def _refined_subsets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Refine the subsets of clusters as if they were merged sets."""
    return set_refine.refine(counted.bags, counted.subsets.first(budget), budget, rule)


def _filled_sets(
    rule: set_merge.Rule, share: float, counted: CountedTrace, budget: int
) -> StoredSums:
    """Store merged sets in a share of the budget, subsets of clusters in the rest."""
    first = _sets(rule, counted, int(share * budget))
    rest = counted.subsets.first(budget)
    return set_refine.mix(first, rest, budget, counted.trace.counts())


def _name(method: str, parameter: str) -> str:
    """Return method and parameter as one text."""
    return f"{method} {parameter}".rstrip()
