"""Community chunks: communities are found, chopped by degree, and paid from the budget."""

import importlib

import numpy as np
import pytest

from bench.rivals import community
from bench.rivals.community import Choice
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace


@pytest.fixture
def louvain():
    return pytest.importorskip("sknetwork.clustering")


def two_tastes():
    """Items 0..5 and 6..11 are requested together, the low ids of each most often."""
    rng = np.random.default_rng(0)
    bags = [
        (6 * taste + np.flatnonzero(rng.random(6) < 1 - np.arange(6) / 10)).tolist()
        for taste in rng.integers(0, 2, 300)
    ]
    return Trace.from_bags(bags, 12)


@pytest.mark.usefixtures("louvain")
def test_chunks_are_the_busiest_items_of_one_community():
    sums = community.fit(two_tastes(), 8, choice=Choice(3, 1.0))
    assert {
        frozenset(s.tolist()) for s in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])
    } >= {
        frozenset({0, 1, 2}),
        frozenset({6, 7, 8}),
    }


@pytest.mark.usefixtures("louvain")
def test_communities_follow_the_tastes():
    found = community.communities(count_pairs(two_tastes()), 1.0, 0)
    assert len(set(found[:6])) == len(set(found[6:])) == 1
    assert found[0] != found[6]


@pytest.mark.usefixtures("louvain")
@pytest.mark.parametrize("budget", [0, 1, 4, 11, 100])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_sums_never_pass_the_budget(budget, size):
    assert community.fit(two_tastes(), budget, choice=Choice(size, 1.0)).num_sums <= budget


@pytest.mark.usefixtures("louvain")
def test_the_best_choice_on_validation_is_refitted_on_all_bags():
    train = two_tastes()
    keep = train.num_bags - train.num_bags // 5
    bags = np.arange(train.num_bags)
    cuts = community.choice_cuts(train.take(bags[:keep]), train.take(bags[keep:]), 20)
    best = community.best_choice(cuts)
    assert cuts[best] == max(cuts.values())
    chosen, told = community.fit(train, 20), community.fit(train, 20, choice=best)
    assert (chosen.set_items_S == told.set_items_S).all()


@pytest.mark.usefixtures("louvain")
@pytest.mark.parametrize("bags", [[], [[]], [[1], [2]]], ids=["none", "empty", "single"])
def test_bags_without_pairs_store_nothing(bags):
    assert community.fit(Trace.from_bags(bags, 4), 10).num_sums == 0


@pytest.mark.usefixtures("louvain")
def test_it_saves_reads_on_a_real_trace(trace_path):
    split = split_bags(read_npz(trace_path("ml100k")))
    sums = community.fit(split.train, split.test.num_items)
    assert count_reads(split.test, sums).cut > 0.3


def test_a_negative_budget_is_refused():
    with pytest.raises(GraceError, match="community: budget -1"):
        community.fit(two_tastes(), -1, choice=Choice(3, 1.0))


def test_without_scikit_network_it_says_what_to_install(monkeypatch):
    real = importlib.import_module

    def absent(name, *more):
        if name.startswith("sknetwork"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(NotSupported, match="pip install scikit-network"):
        community.fit(two_tastes(), 4, choice=Choice(3, 1.0))
