"""Methods: each is fitted on the train bags of a split and says what it stores.

Flow: cases look a method up by name in METHODS.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.rivals import community, fae, merci, space
from bench.stored import Stored
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import set_merge, subset_clusters
from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.candidates import judge
from grace_torchrec.grouping.choose import Allow, Picked, choose, refit
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.split import Split
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Fitted:
    """One method after its fit.

    Attributes:
        stored: What it stores.
        picked: What was chosen on validation bags, None where nothing is.
        select_s: Seconds of that choice.
        build_s: Seconds of the fit on all train bags, pair counting included.
    """

    stored: Stored
    picked: str | None
    select_s: float
    build_s: float


def fit_none(split: Split, budget: int, seed: int) -> Fitted:
    """No sums."""
    return Fitted(Stored.nothing(), None, 0.0, 0.0)


def fit_fae(split: Split, budget: int, seed: int) -> Fitted:
    """Hot rows: no read is saved."""
    return Fitted(fae.fit(), None, 0.0, 0.0)


def fit_space(split: Split, budget: int, seed: int) -> Fitted:
    """All pairs of the most popular items."""
    start = time.perf_counter()
    stored = space.fit(split.train, budget)
    return Fitted(stored, None, 0.0, time.perf_counter() - start)


def picked(split: Split, budget: int, method: str) -> Picked:
    """Return the best candidate of one method on the validation bags, however little it gains."""
    check_budget(budget)
    counted = CountedTrace(split.fit, budget, split.fit.num_bags)
    verdicts = judge(counted, split.validation, budget, (method,))
    if method in verdicts.skipped:
        raise GraceError(f"{method}: {verdicts.skipped[method]}")
    return Picked(verdicts.best[method].candidate, verdicts.cuts)


def fitted_twice(method: str) -> Callable[[Split, int, int], Fitted]:
    """Return a method whose parameter is chosen on validation bags; then it is fitted again."""

    def fit(split: Split, budget: int, seed: int) -> Fitted:
        """Choose on validation bags, fit on all train bags."""
        start = time.perf_counter()
        best = picked(split, budget, method)
        chosen = time.perf_counter()
        choice = refit(best, split.fit, split.train, budget)
        built = time.perf_counter()
        return Fitted(Stored.of(choice.sums), choice.parameter, chosen - start, built - chosen)

    return fit


def fit_community(split: Split, budget: int, seed: int) -> Fitted:
    """Chunks of communities; size and resolution chosen on validation bags, then refitted."""
    start = time.perf_counter()
    cuts = community.choice_cuts(split.fit, split.validation, budget, seed)
    choice = community.best_choice(cuts)
    chosen = time.perf_counter()
    sums = community.fit(split.train, budget, seed, choice=choice)
    built = time.perf_counter()
    picked = f"k={choice.chunk_size}, resolution={choice.resolution}"
    return Fitted(Stored.of(sums), picked, chosen - start, built - chosen)


def fitted_auto(allow: Allow) -> Callable[..., Fitted]:
    """Return the method that takes the best of all on validation bags, for one way of rewriting."""

    def method(split: Split, budget: int, seed: int) -> Fitted:
        """Choose on validation bags, fit on all train bags."""
        start = time.perf_counter()
        best = choose(split.fit, split.validation, budget, allow)
        chosen = time.perf_counter()
        choice = refit(best, split.fit, split.train, budget)
        built = time.perf_counter()
        return Fitted(Stored.of(choice.sums), choice.picked, chosen - start, built - chosen)

    return method


def fitted_once(fit: Callable[[Trace, int, int], StoredSums]) -> Callable[..., Fitted]:
    """Return a method that chooses nothing: one fit on all train bags."""

    def method(split: Split, budget: int, seed: int) -> Fitted:
        """Fit on all train bags."""
        start = time.perf_counter()
        sums = fit(split.train, budget, seed)
        return Fitted(Stored.of(sums), None, 0.0, time.perf_counter() - start)

    return method


METHODS: dict[str, Callable[[Split, int, int], Fitted]] = {
    "none": fit_none,
    "fae": fit_fae,
    "lru": fit_fae,  # a cache of rows saves no read either
    "space": fit_space,
    "community": fit_community,
    "merci": fitted_once(merci.fit),
    "grace": fitted_twice("grace"),
    "grace_floor": fitted_twice("grace_floor"),
    "subsets": fitted_once(subset_clusters.fit),
    "set_merge": fitted_once(set_merge.fit),
    "auto": fitted_auto("ahead"),
    "auto_in_line": fitted_auto("in_line"),
}
