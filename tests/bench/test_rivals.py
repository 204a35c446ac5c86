"""Rivals: each does what its paper says, and as well as it can."""

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest

from bench.rivals import fae, pair_oracle, space
from grace_torchrec.errors import NotSupported
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=12, num_bags=60, longest=14):
    """Random bags with repeats, small ids popular."""
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 2).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


@cache
def most_pairs(copies):
    """The most pairs of different items out of a sorted tuple of numbers of copies."""
    best = 0
    for a, b in itertools.combinations(range(len(copies)), 2):
        if copies[a] and copies[b]:
            left = tuple(sorted(c - (k in (a, b)) for k, c in enumerate(copies)))
            best = max(best, 1 + most_pairs(left))
    return best


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 6, 10, 30, 66, 1000])
def test_space_pairs_as_many_popular_copies_as_can_be_paired(budget):
    train, test = random_trace(1), random_trace(2)
    stored = space.fit(train, budget)
    assert stored.num_sums <= budget
    popular = set(stored.set_items_S.tolist())
    pairs = [tuple(sorted(pair)) for pair in stored.set_items_S.reshape(-1, 2).tolist()]
    assert sorted(pairs) == sorted(itertools.combinations(sorted(popular), 2))
    bags = stored.rewrite(test)
    rows_of = np.split(bags.rows, bags.offsets_B1[1:-1])
    for bag, rows in zip(np.split(test.ids_L, test.offsets_B1[1:-1]), rows_of, strict=True):
        behind = [
            item
            for row in rows
            for item in ([row] if row < 12 else stored.set_items_S.reshape(-1, 2)[row - 12])
        ]
        assert Counter(behind) == Counter(bag)
        copies = tuple(sorted(Counter(item for item in bag.tolist() if item in popular).values()))
        if len(bag) < 10:
            assert len(bag) - len(rows) == most_pairs(copies)


def test_space_takes_the_most_requested_items_and_ties_go_to_the_lower_id():
    train = Trace.from_bags([[4, 4, 2, 3, 1], [4, 0]])
    assert set(space.fit(train, 3).set_items_S.tolist()) == {4, 0, 1}


def test_space_stores_as_many_popular_items_as_the_budget_pays():
    for budget in range(200):
        p = space.popular_items(budget)
        assert p * (p - 1) // 2 <= budget < p * (p + 1) // 2


def test_space_refuses_weights_rather_than_mix_them():
    trace = Trace.from_bags([[0, 1]])
    weighted = Trace(trace.offsets_B1, trace.ids_L, 2, np.array([1, 2], np.float32))
    with pytest.raises(NotSupported, match="weighted"):
        space.fit(trace, 1).rewrite(weighted)


def test_fae_names_the_hottest_rows_and_stores_no_sum():
    trace = Trace.from_bags([[5, 5, 2], [2, 5, 0], [1]])
    assert fae.hot_items(trace, 3).tolist() == [5, 2, 0]
    assert fae.hot_items(trace, 0).size == 0
    assert fae.fit().num_sums == 0
    assert fae.fit().rewrite(trace).rows.tolist() == trace.ids_L.tolist()


def test_pair_oracle_halves_every_bag_rounding_up():
    assert pair_oracle.rows_read(Trace.from_bags([[1, 2, 3], [4], [], [5, 6]])) == 4
    assert pair_oracle.rows_read(Trace.from_bags([])) == 0
