"""Time options: sums of every method in several sizes, for a choice by time.

Flow: bags of one table -> *SumsOption* for each method, parameter and size -> offer -> sharing.
Derived: a method that cuts most reads with all sums is not the one that is fastest with the few
that memory has room for, so method and size are chosen together, by time, on validation bags.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from grace_torchrec.grouping import paper_greedy, set_merge, set_refine
from grace_torchrec.grouping.choose import SET_RULES
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.plans.candidates import Bags
from grace_torchrec.plans.offers import SumsOption
from grace_torchrec.sums.stored_sums import StoredSums

SIZES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)  # of the budget
FILLED = 0.8  # the share of merged sets where subsets of clusters fill the rest
Build = Callable[[CountedTrace, int], StoredSums]


@dataclass(frozen=True, eq=False)
class Method:
    """A method with its parameter, for any size.

    Attributes:
        name: Of the method.
        parameter: As text, empty without one.
        build: (counted bags, most sums) -> sums.
    """

    name: str
    parameter: str
    build: Build


def time_options(bags: Bags, budget: int, ahead: bool) -> tuple[SumsOption, ...]:
    """Fit every method in every size on the fit bags.

    Args:
        bags: Of one table.
        budget: Most sums.
        ahead: Bags arrive rewritten: merged sets are possible too.
    """
    fit = CountedTrace(bags.fit, budget, bags.fit.num_bags)
    fit.prepare(SET_RULES if ahead else ())
    whole = cache(lambda: CountedTrace(bags.all, budget, bags.fit.num_bags))
    found: dict[tuple[str, str, int], SumsOption] = {}
    for method in methods(fit, ahead):
        for size in SIZES:
            rows = math.floor(size * budget)
            held = method.build(fit, rows)
            if held.num_sums:
                parameter = f"{method.parameter} sums={rows}".strip()
                refit = partial(_refit, method.build, whole, rows)
                key = (method.name, method.parameter, held.num_sums)
                found.setdefault(key, SumsOption(method.name, parameter, held, refit))
    return tuple(found.values())


def methods(fit: CountedTrace, ahead: bool) -> Iterator[Method]:
    """Yield the methods whose sums bags can use; the simpler code first."""
    if fit.has_pairs():
        for limit in paper_greedy.SIZE_LIMITS:
            yield Method("grace", f"size_limit={limit}", partial(_clusters, limit))
    yield Method("subsets", "", lambda counted, rows: counted.subsets.first(rows))
    if ahead:
        for rule in SET_RULES:
            name = f"popularity={rule.popularity:g}"
            yield Method("set_merge", name, partial(_sets, rule))
            yield Method("set_merge", f"{name} filled=subsets", partial(_filled, rule))


def _refit(build: Build, whole: Callable[[], CountedTrace], rows: int) -> StoredSums:
    """Fit on all bags; they are counted once for all options of a table."""
    return build(whole(), rows)


def _clusters(size_limit: int, counted: CountedTrace, rows: int) -> StoredSums:
    """Build the paper's clusters."""
    return paper_greedy.grow_clusters(counted.pairs, rows, paper_greedy.GrowthRule(size_limit))


def _sets(rule: set_merge.Rule, counted: CountedTrace, rows: int) -> StoredSums:
    """Build merged sets."""
    return counted.sets(rule).first(rows)


def _filled(rule: set_merge.Rule, counted: CountedTrace, rows: int) -> StoredSums:
    """Store merged sets, and subsets of clusters in the rest."""
    first = counted.sets(rule).first(int(FILLED * rows))
    return set_refine.mix(first, counted.subsets.first(rows), rows, counted.trace.counts())
