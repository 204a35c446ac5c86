"""CountedTrace: what grouping methods count on a trace, each when it is first asked for.

Flow: trace -> *CountedTrace* -> candidates of ``choose``, which share what they start from.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np

from grace_torchrec.grouping import set_merge, subset_clusters
from grace_torchrec.grouping.pair_counts import (
    DEFAULT_MEMORY_LIMIT,
    PairCounts,
    TooManyPairs,
    count_pairs,
)
from grace_torchrec.grouping.partners import (
    Partners,
    RankedBags,
    best_partners,
    partners_within,
    ranked_bags,
)
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace


class CountedTrace:
    """A trace and what methods count on it, each when it is first asked for."""

    def __init__(
        self,
        trace: Trace,
        most: int,
        fit_bags: int,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
        thin: bool = False,
        num_rows: int | None = None,
    ) -> None:
        """Count nothing yet.

        Args:
            trace: The bags.
            most: The largest budget that will be asked for.
            fit_bags: Bags that floors are chosen on; they rise in proportion to ``trace``.
            memory_limit_bytes: Most memory that the counts of all pairs may take, and as much for
                the partners of items: of each, fewer are kept where there is no room.
            thin: Where pairs would take more, count those of every second bag, of every fourth, ...
            num_rows: Rows of the table, where ``trace`` is over those that are asked for; the more
                there are, the fewer partners are kept.  Default: the items of ``trace``.
        """
        self.trace = trace
        self.most = most
        self.memory_limit_bytes = memory_limit_bytes
        self.thin = thin
        self.num_rows = trace.num_items if num_rows is None else num_rows
        self.floor_scale = trace.num_bags / max(fit_bags, 1)
        self._sets: dict[set_merge.Rule, StoredSums] = {}

    def prepare(self, rules: Iterable[set_merge.Rule]) -> None:
        """Count what candidates share side by side: the cores hold no lock of the interpreter.

        What there is no room for is left to be refused where it is asked for.

        Args:
            rules: Rules of merged sets that will be asked for.
        """
        assert self.bags.num_items == self.trace.num_items  # counted first: the others need it
        shared: list[Callable[[], object]] = [lambda: self.subsets, lambda: self.pairs]
        rules = list(rules)
        if rules and _has_room(lambda: self._partners):  # counted once for all rules
            shared += [partial(self.sets, rule) for rule in rules]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for done in [pool.submit(_has_room, count) for count in shared]:
                done.result()

    def set_partners(self, num_tokens: int) -> int:
        """Return how many partners of each item or set are first candidates of merged sets.

        Raises:
            TooManyPairs: not even a few would fit.
        """
        wanted = set_merge.set_partners(self.num_rows)
        return partners_within(num_tokens, wanted, self.memory_limit_bytes)

    @property
    def pairs(self) -> PairCounts:
        """All pair counts.

        Raises:
            TooManyPairs: they would take too much memory; with ``thin`` even those of one bag.
        """
        return self._counted_pairs()[0]

    @property
    def pairs_share(self) -> float:
        """Share of the bags whose pairs are counted; errors as :attr:`pairs`."""
        return self._counted_pairs()[1]

    def _counted_pairs(self) -> tuple[PairCounts, float]:
        """Return what :attr:`_pairs` found, or raise it."""
        if isinstance(self._pairs, TooManyPairs):
            raise self._pairs
        return self._pairs

    @cached_property
    def _pairs(self) -> tuple[PairCounts, float] | TooManyPairs:
        """Pair counts, of as many bags as memory allows, and the share of the bags; or why none."""
        try:
            return _count(self.trace, self.memory_limit_bytes, self.thin)
        except TooManyPairs as error:
            return error

    @cached_property
    def bags(self) -> RankedBags:
        """Bags by rank."""
        return ranked_bags(self.trace)

    @cached_property
    def subsets(self) -> subset_clusters.RankedSubsets:
        """Subsets of clusters in order of value; errors as :meth:`set_partners`."""
        wanted = subset_clusters.cluster_partners(self.num_rows)
        count = partners_within(self.bags.num_items, wanted, self.memory_limit_bytes)
        return subset_clusters.rank_subsets(self.bags, best_partners(self.bags, count), self.most)

    def sets(self, rule: set_merge.Rule) -> StoredSums:
        """Merged sets for the largest budget; errors as :meth:`set_partners`."""
        if rule not in self._sets:
            self._sets[rule] = set_merge.merge_sets(self.bags, self._partners, self.most, rule)
        return self._sets[rule]

    @cached_property
    def _partners(self) -> Partners:
        """First candidates of merged sets."""
        return best_partners(self.bags, self.set_partners(self.bags.num_items))


def _has_room(count: Callable[[], object]) -> bool:
    """Count something; False where there is no room for it."""
    try:
        count()
    except TooManyPairs:
        return False
    return True


def _count(
    trace: Trace, memory_limit_bytes: int, thin: bool, share: float = 1.0
) -> tuple[PairCounts, float]:
    """Count the pairs of all bags, or of every second one, ...; return the share of the bags too."""
    try:
        return count_pairs(trace, memory_limit_bytes), share
    except TooManyPairs:
        if not thin or trace.num_bags < 2:
            raise
    half = trace.take(np.arange(0, trace.num_bags, 2))
    return _count(half, memory_limit_bytes, thin, share / 2)
