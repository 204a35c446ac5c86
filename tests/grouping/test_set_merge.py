"""Set merging, held against a slow writing of the same rule."""

import itertools
import math

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.partners import best_partners, ranked_bags
from grace_torchrec.grouping.set_merge import Rule, fit, merge_sets
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.trace import Trace

PLAIN = Rule(popularity=0, size_price=0)


def random_trace(seed, num_items=20, num_bags=60, longest=10):
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 1.5).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


def sets_of(sums):
    return [part.tolist() for part in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])][
        : sums.num_sums
    ]


def slow_merge(trace, budget, rule):
    """All pairs of tokens of all bags, counted anew before every merge."""
    ranked = ranked_bags(trace)
    bags = [set(part.tolist()) for part in np.split(ranked.ranks_L, ranked.offsets_B1[1:-1])]
    items = {rank: [rank] for rank in range(trace.num_items)}
    born = {rank: sum(rank in bag for bag in bags) for rank in range(trace.num_items)}
    made = []
    while len(made) < budget:
        best = None
        for one, other in itertools.combinations(sorted(items), 2):
            size = len(items[one]) + len(items[other])
            count = sum(one in bag and other in bag for bag in bags)
            if count < 2 or size > rule.max_size:
                continue
            spread = math.sqrt(ranked.pair_scale * born[other] * born[one])
            key = count + rule.popularity * spread - rule.size_price * (size - 2)
            order = (-key, other, one)
            if best is None or order < best[0]:
                best = (order, one, other, count)
        if best is None:
            break
        _, one, other, count = best
        token = trace.num_items + len(made)
        items[token], born[token] = items[one] + items[other], count
        made.append(sorted(items[token]))
        for bag in bags:
            if one in bag and other in bag:
                bag -= {one, other}
                bag.add(token)
    return [[int(ranked.item_of_rank_N[rank]) for rank in ranks] for ranks in made]


@pytest.mark.parametrize("rule", [PLAIN, Rule(), Rule(1.0, 0.0), Rule(max_size=3)])
def test_same_sets_as_the_slow_writing(rule):
    sizes = set()
    for seed in range(4):
        trace = random_trace(seed)
        found = sets_of(fit(trace, 15, rule=rule))
        assert found == slow_merge(trace, 15, rule)
        sizes |= {len(items) for items in found}
    assert sizes == ({2, 3} if rule.max_size == 3 else set(range(2, max(sizes) + 1)))
    assert max(sizes) > 2


def test_tokens_with_bits_and_with_lists_count_alike():
    # one bag in 128 decides which way a token is counted
    trace = random_trace(1, num_items=400, num_bags=1500, longest=9)
    frequency = np.diff(ranked_bags(trace).indptr_N1)
    assert frequency[0] > 1500 / 128 > frequency[frequency > 0][-1]
    found = sets_of(fit(trace, 40, rule=PLAIN))
    assert found == slow_merge_fast_enough(trace, 40)


def slow_merge_fast_enough(trace, budget):
    """As slow_merge with the plain rule, counting only pairs that meet."""
    ranked = ranked_bags(trace)
    bags = [set(part.tolist()) for part in np.split(ranked.ranks_L, ranked.offsets_B1[1:-1])]
    items, made = {rank: [rank] for rank in range(trace.num_items)}, []
    while len(made) < budget:
        counts = {}
        for bag in bags:
            for pair in itertools.combinations(sorted(bag), 2):
                counts[pair] = counts.get(pair, 0) + 1
        _, other, one = min(
            (-count, other, one) for (one, other), count in counts.items()
            if len(items[one]) + len(items[other]) <= 8
        )  # fmt: skip
        token = trace.num_items + len(made)
        items[token] = items[one] + items[other]
        made.append(sorted(items[token]))
        for bag in bags:
            if one in bag and other in bag:
                bag -= {one, other}
                bag.add(token)
    return [[int(ranked.item_of_rank_N[rank]) for rank in ranks] for ranks in made]


def test_a_smaller_budget_is_the_beginning_of_a_larger_one():
    trace = random_trace(3)
    whole = fit(trace, 30)
    for budget in (0, 1, 7, 29):
        part, first = fit(trace, budget), whole.first(budget)
        assert sets_of(part) == sets_of(whole)[:budget] == sets_of(first)
        served = random_trace(4)
        assert count_reads(served, part).rows_after == count_reads(served, first).rows_after


@pytest.mark.parametrize("rule", [PLAIN, Rule()])
def test_order_of_bags_and_ids_has_no_influence(rule):
    trace = random_trace(5, num_items=60, num_bags=300)
    rng = np.random.default_rng(0)
    bags = [
        rng.permutation(part).tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])
    ]
    other = Trace.from_bags([bags[b] for b in rng.permutation(len(bags))], trace.num_items)
    assert sets_of(fit(trace, 60, rule=rule)) == sets_of(fit(other, 60, rule=rule))


@pytest.mark.parametrize("budget", [0, 1, 5, 1000])
def test_never_more_sums_than_the_budget_nor_larger_sets_than_eight(budget):
    trace = Trace.from_bags([list(range(40))] * 5 + [list(range(10, 30))] * 5)
    sums = fit(trace, budget)
    assert sums.num_sums <= budget
    assert np.diff(sums.set_indptr_R1).max(initial=0) <= 8


def test_a_pair_seen_once_is_no_evidence():
    assert fit(Trace.from_bags([[0, 1], [1, 2], [2, 0]]), 10).num_sums == 0


def test_copies_of_an_item_support_a_set_once_each():
    assert sets_of(fit(Trace.from_bags([[0, 1, 0, 1]]), 10)) == [[0, 1]]  # two layers
    assert fit(Trace.from_bags([[0, 0, 0, 1]]), 10).num_sums == 0


def test_few_partners_are_only_fewer_candidates():
    trace = random_trace(6, num_items=60, num_bags=300)
    bags = ranked_bags(trace)
    sums = merge_sets(bags, best_partners(bags, 2), 30)
    assert 0 < sums.num_sums <= 30
    assert count_reads(trace, sums).cut > 0


@pytest.mark.parametrize("bags", [[], [[]], [[0]], [[0, 0]], [[0], [1]]])
def test_nothing_to_group_stores_nothing(bags):
    assert fit(Trace.from_bags(bags), 10).num_sums == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": -1}, "budget -1"),
        ({"popularity": -0.1}, "popularity"),
        ({"popularity": float("nan")}, "popularity"),
        ({"size_price": float("inf")}, "size_price"),
        ({"max_size": 1}, "max_size 1, give 2..8"),
        ({"max_size": 9}, "max_size 9, give 2..8"),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments, message):
    budget = arguments.pop("budget", 3)
    with pytest.raises(GraceError, match=message):
        fit(Trace.from_bags([[0, 1, 2]]), budget, rule=Rule(**arguments))
