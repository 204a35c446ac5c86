"""Refining and filling: budgets hold, nothing is stored twice, train bags read no more rows."""

import numpy as np
import pytest

from grace_torchrec.grouping import set_merge, subset_clusters
from grace_torchrec.grouping.partners import best_partners, ranked_bags
from grace_torchrec.grouping.set_refine import mix, refine
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

RULE = set_merge.Rule()


def sets_of(sums):
    parts = np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])[: sums.num_sums]
    return [tuple(sorted(part.tolist())) for part in parts]


@pytest.fixture(scope="module")
def counted():
    trace = generate(600, 400, 2)
    bags = ranked_bags(trace)
    return trace, bags, set_merge.merge_sets(bags, best_partners(bags), 300, RULE)


def test_refined_sets_are_different_within_the_budget_and_save_more_train_reads(counted):
    trace, bags, sums = counted
    refined = refine(bags, sums, 300, RULE)
    assert refined.num_sums <= 300
    assert len(set(sets_of(refined))) == refined.num_sums
    assert np.diff(refined.set_indptr_R1).max() <= 8
    assert count_reads(trace, refined).rows_after < count_reads(trace, sums).rows_after


def test_refined_sets_stand_in_order_of_use(counted):
    trace, bags, sums = counted
    refined = refine(bags, sums, 300, RULE)
    uses = count_reads(trace, refined).stored_reads_R
    assert uses[:100].sum() > 0.8 * np.sort(uses)[::-1][:100].sum()
    first = count_reads(trace, refined.first(100)).cut
    assert first > count_reads(trace, StoredSums.none(600)).cut


def test_the_most_used_sets_stay(counted):
    trace, bags, sums = counted
    uses = count_reads(trace, sums).stored_reads_R
    best = np.argsort(-uses, kind="stable")[: int(0.7 * sums.num_sums)]
    stayed = {sets_of(sums)[at] for at in best}
    assert stayed <= set(sets_of(refine(bags, sums, 300, RULE)))


def test_subsets_of_clusters_can_be_refined_too(counted):
    trace, bags, _ = counted
    subsets = subset_clusters.fit(trace, 300)
    refined = refine(bags, subsets, 300, RULE)
    assert 0.7 * 300 < refined.num_sums <= 300
    assert len(set(sets_of(refined)) & set(sets_of(subsets))) >= 0.7 * 300 - 1
    assert set(sets_of(refined)) - set(sets_of(subsets))


def test_order_of_bags_has_no_influence(counted):
    trace, bags, sums = counted
    other = ranked_bags(trace.take(np.random.default_rng(0).permutation(trace.num_bags)))
    assert sets_of(refine(bags, sums, 300, RULE)) == sets_of(refine(other, sums, 300, RULE))


@pytest.mark.parametrize("budget", [0, 1, 3, 4, 99])
def test_a_budget_is_filled_with_sets_that_are_not_there_yet(budget):
    one = StoredSums.from_sets(6, [0, 2, 4], [3, 1, 0, 2])
    two = StoredSums.from_clusters(6, np.array([0, 3]), np.array([1, 3, 5]))
    expected = [(1, 3), (0, 2), (1, 5), (3, 5), (1, 3, 5)][:budget]
    assert sets_of(mix(one, two, budget, np.ones(6, np.int64))) == expected


def test_nothing_to_refine_is_refined_to_nothing():
    bags = ranked_bags(Trace.from_bags([[0], [1, 2]], 4))
    none = StoredSums.from_sets(4, [0], [])
    assert refine(bags, none, 0, RULE).num_sums == 0
    assert refine(bags, none, 5, RULE).num_sums == 0
