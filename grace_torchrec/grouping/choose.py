"""Choosing: every method is fitted on a part of the train bags, the rest of them decides.

Flow: (fit, validation, train) -> candidates -> *Choice* of a method, or of no sums -> refit.
Derived, as the paper has one method.  A gain under one point of rows is no gain: it would not
pay for the rows, and bags without structure show gains of that size.  Candidates are fitted once
for the largest budget where smaller ones are a prefix of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.candidates import (
    IN_LINE_METHODS,
    METHODS,
    SET_RULES,
    Candidate,
    Judged,
    judge,
    name_of,
)
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import DEFAULT_MEMORY_LIMIT
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

__all__ = [
    "LEAST_GAIN", "METHODS", "NONE", "SET_RULES", "Allow", "Candidate", "Choice", "Judged", "Picked",
    "best_of", "choose", "fit_auto", "fit_auto_budgets", "judge", "pick", "refit",
]  # fmt: skip

Allow = Literal["in_line", "ahead"]
LEAST_GAIN = 0.01  # of the rows that the validation bags read
NONE = "none"
_NO_SUMS = Candidate(NONE, "", lambda whole, _: StoredSums.none(whole.trace.num_items))


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
        return name_of(self.method, self.parameter)


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
    verdicts = judge(counted, validation, budget, METHODS if allow == "ahead" else IN_LINE_METHODS)
    best = best_of(verdicts.best.values())
    return Picked(_NO_SUMS if best is None else best.candidate, {NONE: 0.0} | verdicts.cuts)


def best_of(judged: Iterable[Judged], least_gain: float = LEAST_GAIN) -> Judged | None:
    """Return the candidate of the greatest cut, the first of equals; None where none gains enough."""
    enough = [one for one in judged if one.reads.cut >= least_gain]
    return max(enough, key=lambda one: one.reads.cut, default=None)
