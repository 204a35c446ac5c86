"""MERCI: parts are small and keep bags together, clusters merge in the best order."""

import itertools

import numpy as np
import pytest

from bench.rivals import _partition_core, _partition_moves, merci, partition
from bench.rivals.partition import parts_of_items
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=14, num_bags=60, longest=9):
    """Random bags with repeats, small ids popular."""
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 2).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags, num_items)


def bags_of(trace):
    return [set(part.tolist()) for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


def clusters_of(sums):
    """The clusters: the largest set that each item is in."""
    sets = np.split(sums.set_items_S, sums.set_indptr_R1[1:-1]) if sums.num_sums else []
    largest = {}
    for items in sorted((frozenset(s.tolist()) for s in sets), key=len):
        largest |= dict.fromkeys(items, items)
    return set(largest.values())


def merged_by_hand(trace, budget):
    """The clusters of the plainest best-first merging, every count taken anew from the bags."""
    bags = bags_of(layered_bags(trace))
    clusters = [{item} for item in sorted(set().union(*bags))]
    left = budget
    while True:
        best, pair = 0, None
        for one, other in itertools.combinations(range(len(clusters)), 2):
            a, b = clusters[one], clusters[other]
            rows = (2 ** len(a) - 1) * (2 ** len(b) - 1)
            if len(a) + len(b) > 8 or rows > left:
                continue
            saved = sum(bool(bag & a) and bool(bag & b) for bag in bags)
            if saved / rows > best:
                best, pair = saved / rows, (one, other)
        if pair is None:
            return {frozenset(c) for c in clusters if len(c) > 1}
        one, other = pair
        left -= (2 ** len(clusters[one]) - 1) * (2 ** len(clusters[other]) - 1)
        clusters[one] |= clusters.pop(other)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [0, 1, 3, 10, 40, 300, 5000])
def test_clusters_merge_by_saved_reads_per_row_until_nothing_fits(seed, budget):
    trace = random_trace(seed)
    sums = merci.fit(trace, budget)
    assert sums.num_sums <= budget
    assert clusters_of(sums) == merged_by_hand(trace, budget)


def test_every_item_that_is_requested_has_one_part_of_at_most_the_size():
    bags = layered_bags(generate(900, 400, pooling=(3, 20)))
    parts = parts_of_items(bags, 50)
    seen = bags.counts() > 0
    assert (parts[seen] >= 0).all()
    assert (parts[~seen] == -1).all()
    assert np.bincount(parts[seen]).max() <= 50


def parts_touched(bags, part_N):
    bag_L = np.repeat(np.arange(bags.num_bags), np.diff(bags.offsets_B1))
    return np.unique(bag_L * (part_N.max() + 1) + part_N[bags.ids_L]).size


def test_bags_that_never_mix_are_never_cut():
    rng = np.random.default_rng(3)
    home = rng.permutation(960) % 8  # eight tastes of 120 items, each fits in a part of 128
    bags = [
        rng.choice(np.flatnonzero(home == taste), 12, replace=False).tolist()
        for taste in rng.integers(0, 8, 1500)
    ]
    layered = layered_bags(Trace.from_bags(bags, 960))
    assert parts_touched(layered, parts_of_items(layered, 128)) == layered.num_bags


def test_parts_keep_bags_together_far_better_than_chance():
    bags = layered_bags(generate(3000, 1500, pooling=(20, 60)))
    parts = parts_of_items(bags, 128)
    chance = np.random.default_rng(0).permutation(parts)
    assert parts_touched(bags, parts) < 0.75 * parts_touched(bags, chance)


def test_single_moves_between_all_parts_keep_bags_together_better(monkeypatch):
    bags = layered_bags(generate(2000, 1000, pooling=(10, 40)))
    with_moves = parts_touched(bags, parts_of_items(bags, 128))
    monkeypatch.setattr(partition, "MOST_COUNTERS", 0)
    assert with_moves < parts_touched(bags, parts_of_items(bags, 128))


@pytest.mark.parametrize("seed", range(5))
def test_a_pass_of_refinement_gains_what_it_says_and_ends_in_balance(seed):
    bags = layered_bags(random_trace(seed, num_items=60, num_bags=150))
    pairs = Trace.from_bags([sorted(bag) for bag in bags_of(bags) if len(bag) > 1], 60)
    weight_E = np.random.default_rng(seed).integers(1, 4, pairs.num_bags)
    weight_V = np.ones(60, np.int64)
    graph = (pairs.offsets_B1, pairs.ids_L, weight_E)
    inverse = _partition_core.nets_of_vertices(*graph[:2], 60)
    side_V = np.random.default_rng(seed).permutation(60).astype(np.int8) % 2
    before = _partition_core.cut_of(*graph, side_V)
    most = np.array([32, 32])
    gain = _partition_moves.refine(*graph, *inverse, weight_V, side_V, most, 100)
    assert before - _partition_core.cut_of(*graph, side_V) == gain > 0
    assert np.bincount(side_V, minlength=2).max() <= 32
    side_V[:] = 1  # far from balance: it is reached, whatever the cut
    side_V[0] = 0
    _partition_moves.refine(*graph, *inverse, weight_V, side_V, most, 100)
    assert np.bincount(side_V, minlength=2).max() <= 32


@pytest.mark.parametrize("budget", [1, 7, 60, 61, 62, 63, 64, 500, 2001])
def test_the_budget_holds_over_many_parts(budget):
    trace = generate(700, 500, pooling=(5, 25))
    assert 0.9 * budget - 3 <= merci.fit(trace, budget).num_sums <= budget


def test_equal_seeds_give_equal_sums():
    trace = generate(1000, 500, pooling=(5, 30))
    one, same = merci.fit(trace, 700, seed=2), merci.fit(trace, 700, seed=2)
    assert (one.set_items_S == same.set_items_S).all()
    assert (one.code.item_code_N == same.code.item_code_N).all()


@pytest.mark.parametrize(
    "bags",
    [[], [[]], [[3]], [[1, 1, 1]], [[0], [1], [2]]],
    ids=["none", "empty", "1", "copies", "1s"],
)
def test_bags_without_pairs_store_nothing(bags):
    assert merci.fit(Trace.from_bags(bags, 5), 10).num_sums == 0


def test_a_negative_budget_is_refused():
    with pytest.raises(GraceError, match="merci: budget -1"):
        merci.fit(random_trace(0), -1)


REAL = {  # cut of the authors' program at the stored rows it really used, in tables
    "ml100k": ((0.399, 0.99), (0.340, 0.52), (0.288, 0.32)),
    "steam200k": ((0.360, 0.95), (0.328, 0.48), (0.312, 0.33)),
    "citeulike_a": ((0.170, 1.03), (0.138, 0.47), (0.097, 0.20)),
    "youshu_bundles": ((0.116, 1.02), (0.102, 0.58), (0.090, 0.22)),
    "ml1m": ((0.358, 1.00), (0.313, 0.54), (0.227, 0.21)),
    "gowalla_full": ((0.151, 0.91), (0.125, 0.46), (0.108, 0.30)),
    "gowalla_poi": ((0.174, 1.04), (0.148, 0.54), (0.117, 0.26)),
    "tafeng_users": ((0.095, 0.99), (0.090, 0.56), (0.076, 0.20)),
    "tafeng_baskets": ((0.077, 1.05), (0.072, 0.52), (0.063, 0.25)),
    "retail": ((0.135, 0.93), (0.132, 0.47), (0.128, 0.34)),
}
QUICK = ("ml100k", "steam200k", "citeulike_a")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.soak) for n in REAL]
)
def test_it_is_as_good_as_the_program_of_its_authors(trace_path, name):
    split = split_bags(read_npz(trace_path(name)))
    for wanted, tables in REAL[name]:
        sums = merci.fit(split.train, int(tables * split.test.num_items))
        assert count_reads(split.test, sums).cut == pytest.approx(wanted, abs=0.015)
