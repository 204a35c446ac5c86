"""Subset clusters, held against slow writings of both of their steps."""

import itertools

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import _cluster_merge_core, _subset_core
from grace_torchrec.grouping._beside_core import bits_are_few
from grace_torchrec.grouping.partners import best_partners, ranked_bags
from grace_torchrec.grouping.subset_clusters import fit, rank_subsets
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=20, num_bags=60, longest=10):
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 1.5).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


def sets_of(sums):
    return [tuple(part.tolist()) for part in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])][
        : sums.num_sums
    ]


def slow_clusters(bags, num_items, max_size, least=2):
    """The best of all pairs of clusters, counted anew before every merge."""
    held = [set(part.tolist()) for part in np.split(bags.ranks_L, bags.offsets_B1[1:-1])]
    alive = {rank: {rank} for rank in range(num_items)}
    token = num_items
    while True:
        best = None
        for one, other in itertools.combinations(sorted(alive), 2):
            size = len(alive[one]) * len(alive[other])
            shared = sum(bool(bag & alive[one]) and bool(bag & alive[other]) for bag in held)
            if shared < least or len(alive[one]) + len(alive[other]) > max_size:
                continue
            order = (-shared / size, other, one)
            if best is None or order < best:
                best = order
        if best is None:
            return sorted(sorted(items) for items in alive.values())
        _, other, one = best
        alive[token] = alive.pop(one) | alive.pop(other)
        token += 1


@pytest.mark.parametrize("max_size", [2, 3, 8])
@pytest.mark.parametrize("by_bits", [True, False])
def test_same_clusters_as_the_slow_writing(max_size, by_bits):
    for seed in range(5):
        # items that nobody requests make bits dear: then bags are walked
        drawn = random_trace(seed)
        bags = ranked_bags(Trace(drawn.offsets_B1, drawn.ids_L, 20 if by_bits else 400))
        assert bits_are_few(60, bags.num_items, bags.ranks_L.size) == by_bits
        partners = best_partners(bags, 20)
        found = _cluster_merge_core.merge(
            bags.offsets_B1, bags.ranks_L, bags.indptr_N1, bags.bags_L, partners.partners_NK,
            partners.counts_NK, max_size, 2, 20,
        )  # fmt: skip
        clusters = sorted(np.flatnonzero(found == c).tolist() for c in np.unique(found[:20]))
        assert clusters == slow_clusters(bags, 20, max_size)


def split_cost(mask, stored):
    """Fewest rows for a mask: stored subsets and single items, each used once."""
    if mask == 0:
        return 0
    low = mask & -mask
    parts = [s for s in stored if s & low and s & ~mask == 0]
    return 1 + min([split_cost(mask ^ low, stored)] + [split_cost(mask ^ s, stored) for s in parts])


def test_every_chosen_subset_saves_the_most_that_is_left_to_save():
    rng = np.random.default_rng(0)
    starts = np.array([0, 16, 24])
    for _ in range(20):
        counts = rng.integers(0, 6, 24).astype(np.int32)
        chosen = _subset_core.choose(starts, counts, 8, 2)
        stored = {0: [], 1: []}

        def reads(stored, counts=counts):
            return sum(
                int(counts[starts[c] + mask]) * split_cost(mask, stored[c])
                for c in (0, 1)
                for mask in range(starts[c + 1] - starts[c])
            )

        for entry in chosen:
            cluster = int(entry >= 16)
            now = reads(stored)
            options = [
                now - reads({**stored, c: [*stored[c], mask]})
                for c in (0, 1)
                for mask in range(starts[c + 1] - starts[c])
                if mask.bit_count() > 1
            ]
            stored[cluster].append(int(entry - starts[cluster]))
            assert now - reads(stored) == max(options) >= 2


def test_counted_masks_are_the_items_of_a_cluster_in_a_bag():
    trace = Trace.from_bags([[0, 1, 2], [0, 2], [3], [2, 0], [4, 1]])
    code = np.array([0, 1, 2, 8 * 8, 8 * 8 + 1])
    counts = _subset_core.count_masks(trace.offsets_B1, trace.ids_L, code, 12)
    assert {int(e): int(counts[e]) for e in np.flatnonzero(counts)} == {
        7: 1,
        5: 2,
        9: 1,
        10: 1,
        2: 1,
    }


def test_reads_of_the_train_bags_fall_by_what_was_promised():
    trace = random_trace(1, num_items=40, num_bags=300)
    bags = ranked_bags(trace)
    ranked = rank_subsets(bags, best_partners(bags, 40), 40)
    reads = [count_reads(trace, ranked.first(budget)).rows_after for budget in range(41)]
    saved = -np.diff(reads)
    assert reads[0] == trace.num_ids
    assert (saved >= 2).all()
    assert saved[0] == saved.max()


def test_a_smaller_budget_stores_a_part_of_a_larger_one():
    trace = random_trace(2, num_items=40, num_bags=300)
    bags = ranked_bags(trace)
    ranked = rank_subsets(bags, best_partners(bags, 40), 40)
    for budget in (0, 1, 13, 39):
        part = ranked.first(budget)
        assert part.num_sums == budget
        assert set(sets_of(part)) < set(sets_of(ranked.first(40)))
        assert {frozenset(s) for s in sets_of(fit(trace, budget))} == {
            frozenset(s) for s in sets_of(part)
        }


def test_tables_are_as_large_as_what_they_serve():
    trace = random_trace(3, num_items=40, num_bags=300)
    code = fit(trace, 1).code
    assert code.next_E.size == 4  # one pair
    assert (code.item_code_N >= 0).sum() == 2
    assert fit(trace, 1).metadata_bytes == 4 * 40 + 4 + 8


def test_order_of_bags_and_ids_has_no_influence():
    trace = random_trace(4, num_items=60, num_bags=300)
    rng = np.random.default_rng(0)
    bags = [
        rng.permutation(part).tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])
    ]
    other = Trace.from_bags([bags[b] for b in rng.permutation(len(bags))], trace.num_items)
    assert sets_of(fit(trace, 60)) == sets_of(fit(other, 60))


@pytest.mark.parametrize("budget", [0, 1, 5, 1000])
def test_never_more_sums_than_the_budget_nor_larger_clusters_than_eight(budget):
    trace = Trace.from_bags([list(range(40))] * 5 + [list(range(10, 30))] * 5)
    sums = fit(trace, budget)
    assert sums.num_sums <= budget
    assert np.diff(sums.set_indptr_R1).max(initial=0) <= 8


@pytest.mark.parametrize("bags", [[], [[]], [[0]], [[0, 0]], [[0], [1]], [[0, 1], [1, 2]]])
def test_nothing_to_group_stores_nothing(bags):
    assert fit(Trace.from_bags(bags), 10).num_sums == 0


def test_a_budget_below_0_is_refused():
    with pytest.raises(GraceError, match="budget -1"):
        fit(Trace.from_bags([[0, 1]]), -1)
