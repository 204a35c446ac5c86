"""Candidates: every method with every parameter that choosing tries, fitted and judged.

Flow: (counted fit bags, validation bags) -> *Verdicts* -> choosing.  Derived, as the paper has one
method.  Candidates share what they start from (``CountedTrace``).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from grace_torchrec.grouping import grace_floor, paper_greedy, set_merge, set_refine
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.pair_counts import TooManyPairs
from grace_torchrec.sums.count_reads import RowReads, count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

IN_LINE_METHODS = ("grace", "grace_floor", "subsets")
METHODS = (*IN_LINE_METHODS, "set_merge")
SET_RULES = (set_merge.Rule(), set_merge.Rule(popularity=1.0))
FILLED_SHARES = (0.8, 0.6)


class Ranked(Protocol):
    """Sums in order of value: StoredSums, or subsets before their code is made."""

    def first(self, budget: int) -> StoredSums:
        """Return the best sums, at most ``budget``."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with a parameter.

    Attributes:
        method: Name of the method.
        parameter: Its parameter as text.
        rank: (counted trace, budget) -> sums in order of value.
    """

    method: str
    parameter: str
    rank: Callable[[CountedTrace, int], Ranked]

    @property
    def name(self) -> str:
        """Method and parameter in one string."""
        return name_of(self.method, self.parameter)

    def build(self, counted: CountedTrace, budget: int) -> StoredSums:
        """Return at most ``budget`` sums."""
        return self.rank(counted, budget).first(budget)


@dataclass(frozen=True, eq=False)
class Judged:
    """A candidate that was fitted and judged.

    Attributes:
        candidate: What was fitted.
        ranked: Its sums.
        reads: What the validation bags read with the first of them that the budget allows.
    """

    candidate: Candidate
    ranked: Ranked
    reads: RowReads


@dataclass(frozen=True, eq=False)
class Verdicts:
    """All candidates after they were judged.

    Attributes:
        best: Method -> its best candidate, in the order in which methods are tried.
        cuts: Candidate (method and parameter) -> cut on the validation bags.
        skipped: Method -> why no candidate of it could be fitted.
    """

    best: dict[str, Judged]
    cuts: dict[str, float]
    skipped: dict[str, str]


def judge(
    counted: CountedTrace,
    validation: Trace,
    budget: int,
    methods: Collection[str] = METHODS,
    size_limits: Sequence[int] = paper_greedy.SIZE_LIMITS,
) -> Verdicts:
    """Fit every candidate of some methods and judge it; those that memory has no room for are skipped.

    Args:
        counted: Bags that candidates are fitted on.
        validation: Bags that judge them.
        budget: Most sums to store.
        methods: What is tried.
        size_limits: Of the clusters of ``grace``.
    """
    best: dict[str, Judged] = {}
    cuts: dict[str, float] = {}

    def try_one(candidate: Candidate) -> float:
        """Return the cut of a candidate, keep it if it is the best of its method so far."""
        ranked = candidate.rank(counted, budget)
        reads = count_reads(validation, ranked.first(budget))
        cuts[candidate.name] = reads.cut
        if candidate.method not in best or reads.cut > best[candidate.method].reads.cut:
            best[candidate.method] = Judged(candidate, ranked, reads)
        return reads.cut

    tried: dict[str, Callable[[], object]] = {
        "grace": lambda: _judge_limits(try_one, size_limits),
        "grace_floor": lambda: grace_floor.floor_cuts(
            lambda floor: try_one(
                Candidate("grace_floor", f"floor={floor:g}", partial(_grace_floor, floor))
            )
        ),
        "subsets": lambda: try_one(Candidate("subsets", "", lambda whole, _: whole.subsets)),
        "set_merge": lambda: _judge_sets(try_one),
    }
    skipped: dict[str, str] = {}
    for method, try_all in tried.items():
        if method in methods:
            try:
                try_all()
            except TooManyPairs as error:
                skipped[method] = str(error)
    skipped = {method: why for method, why in skipped.items() if method not in best}
    return Verdicts(best, cuts, skipped)


def _judge_limits(try_one: Callable[[Candidate], float], size_limits: Sequence[int]) -> None:
    """Judge the paper's clusters of several sizes."""
    for limit in size_limits:
        try_one(Candidate("grace", f"size_limit={limit}", partial(_grace, limit)))


def _judge_sets(try_one: Callable[[Candidate], float]) -> None:
    """Judge merged sets: every rule, then what can be made of the better one."""
    plain = {}
    for rule in SET_RULES:
        name = f"popularity={rule.popularity:g}"
        plain[rule] = try_one(Candidate("set_merge", name, partial(_sets, rule)))
    rule = max(plain, key=lambda one: plain[one])
    name = f"popularity={rule.popularity:g}"
    try_one(Candidate("set_merge", f"{name} refined", partial(_refined_sets, rule)))
    try_one(Candidate("set_merge", f"{name} from=subsets refined", partial(_refined_subsets, rule)))
    for share in FILLED_SHARES:
        try_one(
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
    """Build clusters of one price, scaled to the bags whose pairs are counted."""
    scaled = floor * counted.floor_scale * counted.pairs_share
    return grace_floor.grow_to_floor(counted.pairs, budget, scaled)


def _sets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Build merged sets."""
    return counted.sets(rule).first(budget)


def _refined_sets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Refine merged sets."""
    sums = _sets(rule, counted, budget)
    return set_refine.refine(counted.bags, sums, budget, rule, counted.set_partners)


def _refined_subsets(rule: set_merge.Rule, counted: CountedTrace, budget: int) -> StoredSums:
    """Refine the subsets of clusters as if they were merged sets."""
    sums = counted.subsets.first(budget)
    return set_refine.refine(counted.bags, sums, budget, rule, counted.set_partners)


def _filled_sets(
    rule: set_merge.Rule, share: float, counted: CountedTrace, budget: int
) -> StoredSums:
    """Store merged sets in a share of the budget, subsets of clusters in the rest."""
    first = _sets(rule, counted, int(share * budget))
    rest = counted.subsets.first(budget)
    return set_refine.mix(first, rest, budget, counted.trace.counts())


def name_of(method: str, parameter: str) -> str:
    """Return method and parameter as one text."""
    return f"{method} {parameter}".rstrip()
