"""Entrants of the placement case: each rival in several sizes, by row or in whole clusters.

Flow: a split -> *Entrants* of a method -> ``two_memories`` picks one by time.  A rival that was
fitted once is offered in smaller sizes by its best clusters, those of most reads a row.
Shapes: N items, R sums.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from bench.rivals import community, merci, space
from bench.stored import Stored
from bench.two_memories import Entrant, Held, Ints
from grace_kernels.reference import SLOT_BITS
from grace_torchrec.grouping import paper_greedy
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.plans.ordering import groups_of, in_order_of
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.split import Split
from grace_torchrec.traces.trace import Trace

SIZES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)  # of the capacity
Refit = Callable[[], StoredSums]


@cache
def nothing(split: Split) -> list[Entrant]:
    """Rows only."""
    held = Held(Stored.nothing())
    return [Entrant("none", held, lambda: held)]


def of_space(split: Split, budget: int, seed: int) -> list[Entrant]:
    """All pairs of the most popular items, placed by row: a pair is no cluster."""
    entrants = []
    for rows in _sizes(budget):
        held = Held(space.fit(split.fit, rows))
        refit = cache(partial(_space, split.train, rows))
        entrants.append(Entrant(f"sums={rows}", held, refit))
    return entrants


def of_clusters(fitted: Sequence[tuple[str, StoredSums, Refit]], whole: bool) -> list[Entrant]:
    """Turn cluster sums into entrants.

    Args:
        fitted: Label, sums of the fit bags, and the refit on train bags.
        whole: A cluster with its plain rows is one unit; else every row is.
    """
    return [
        Entrant(label, _held(sums, whole), cache(partial(_held_of, refit, whole)))
        for label, sums, refit in fitted
        if sums.num_sums
    ]


def grace_sums(split: Split, budget: int, seed: int) -> list[tuple[str, StoredSums, Refit]]:
    """The paper's clusters, every size limit and size."""
    pairs = count_pairs(split.fit)
    whole = cache(lambda: count_pairs(split.train))
    return [
        (
            f"k={limit} sums={rows}",
            paper_greedy.grow_clusters(pairs, rows, paper_greedy.GrowthRule(limit)),
            partial(_grown, whole, rows, limit),
        )
        for limit in (2, *paper_greedy.SIZE_LIMITS)
        for rows in _sizes(budget)
    ]


def merci_sums(split: Split, budget: int, seed: int) -> list[tuple[str, StoredSums, Refit]]:
    """MERCI at the full budget and its best clusters for smaller ones."""
    return _first_of(split, budget, lambda trace: merci.fit(trace, budget, seed))


def community_sums(split: Split, budget: int, seed: int) -> list[tuple[str, StoredSums, Refit]]:
    """Chunks of communities, of the size that validation bags like best."""
    cuts = community.choice_cuts(split.fit, split.validation, budget, seed)
    best = community.best_choice(cuts)
    return _first_of(split, budget, lambda trace: community.fit(trace, budget, seed, choice=best))


def units_of(sums: StoredSums) -> Ints:
    """Return the unit of every plain and stored row: the rows of a cluster are one unit."""
    code_N = sums.code.item_code_N
    starts_C = np.unique(code_N[code_N >= 0] >> SLOT_BITS)
    plain_N = starts_C.size + np.arange(sums.num_items)
    clustered = code_N >= 0
    plain_N[clustered] = np.searchsorted(starts_C, code_N[clustered] >> SLOT_BITS)
    return np.concatenate([plain_N, groups_of(sums)])


def _first_of(
    split: Split, budget: int, fit: Callable[[Trace], StoredSums]
) -> list[tuple[str, StoredSums, Refit]]:
    """One fit, and its best clusters for every smaller size."""
    held = _by_use(split.fit, fit)
    whole = cache(partial(_by_use, split.train, fit))
    return [
        (f"sums={rows}", held.first(rows), partial(_cut, whole, rows)) for rows in _sizes(budget)
    ]


def _by_use(trace: Trace, fit: Callable[[Trace], StoredSums]) -> StoredSums:
    """Fit, and put the clusters that are read most a row first."""
    sums = fit(trace)
    return in_order_of(sums, count_reads(trace, sums).stored_reads_R.astype(np.float64))


def _cut(whole: Callable[[], StoredSums], rows: int) -> StoredSums:
    """The best clusters of a fit."""
    return whole().first(rows)


def _grown(whole: Callable[[], paper_greedy.PairCounts], rows: int, limit: int) -> StoredSums:
    """Grow clusters on the pairs of all train bags."""
    return paper_greedy.grow_clusters(whole(), rows, paper_greedy.GrowthRule(limit))


def _space(train: Trace, rows: int) -> Held:
    """Fit SPACE on all train bags."""
    return Held(space.fit(train, rows))


def _held(sums: StoredSums, whole: bool) -> Held:
    """Sums with their units."""
    return Held(Stored.of(sums), units_of(sums) if whole else None)


def _held_of(refit: Refit, whole: bool) -> Held:
    """Refit, with units."""
    return _held(refit(), whole)


def _sizes(budget: int) -> list[int]:
    """Budgets to try, largest first."""
    return list(dict.fromkeys(math.floor(size * budget) for size in SIZES))
