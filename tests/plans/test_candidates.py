"""Candidates: sums are kept only where held-out bags read fewer rows, and the reason is said."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.plans.candidates import (
    clusters_of,
    find_sums,
    merge_bound,
    split_validation,
    trimmed,
)
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

QUICK = PlanOptions(size_limits=(3, 4))


def weighted(trace, weights):
    return Trace(trace.offsets_B1, trace.ids_L, trace.num_items, np.asarray(weights, np.float32))


def test_items_that_come_together_are_stored_and_held_out_bags_read_less(grouped):
    choice = find_sums(grouped(), PlanOptions())
    assert choice.method == "grace"
    assert choice.reads.cut > 0.4
    assert choice.reads.cut == count_reads(choice.bags.validation, choice.held_sums).cut
    assert 0 < choice.sums.num_sums <= 400


def test_the_size_limit_with_the_greatest_cut_is_taken(grouped):
    choice = find_sums(grouped(), PlanOptions())
    assert set(choice.cuts) == {3, 4, 5, 6, 7, 8}
    assert choice.cuts[choice.size_limit] == max(choice.cuts.values()) == choice.reads.cut
    # bags are made of groups of four: three items a cluster must leave reads behind
    assert choice.size_limit >= 4


def test_none_wins_where_ids_are_drawn_alone(uniform):
    choice = find_sums(uniform(), PlanOptions())
    assert (choice.method, choice.sums.num_sums) == ("none", 0)
    assert "on held-out bags, the least gain is 2.0%" in choice.reason
    assert choice.cuts


@pytest.mark.parametrize("length", [0, 1])
def test_bags_of_one_id_cannot_share_a_sum(length):
    trace = Trace.from_bags([[b % 7] * max(length, b % 2) for b in range(100)], 7)
    choice = find_sums(trace, QUICK)
    assert choice.method == "none"
    assert choice.reason == "bags of 1.0 ids cannot share a sum"


def test_too_few_bags_are_not_judged(grouped):
    assert "9 bags were recorded, 10 or more" in find_sums(grouped(num_bags=9), QUICK).reason
    assert "no bags" in find_sums(Trace.from_bags([[], []], 5), QUICK).reason


@pytest.mark.parametrize(
    "options", [PlanOptions(budget=0), PlanOptions(budget=0.001), PlanOptions(methods=())]
)
def test_options_can_forbid_sums(grouped, options):
    assert find_sums(grouped(), options).reason == "the options allow no sums"


def test_the_budget_is_a_multiple_of_the_rows(grouped):
    for budget in (0.05, 0.25, 1.0):
        choice = find_sums(grouped(), PlanOptions(budget=budget, size_limits=(4,)))
        assert choice.sums.num_sums <= 400 * budget
        assert choice.held_sums.num_sums <= 400 * budget


def test_a_cut_below_the_least_gain_leaves_the_table_alone(grouped):
    trace = grouped()
    cut = find_sums(trace, QUICK).reads.cut
    assert find_sums(trace, PlanOptions(size_limits=(3, 4), min_gain=cut)).method == "grace"
    assert find_sums(trace, PlanOptions(size_limits=(3, 4), min_gain=cut + 1e-6)).method == "none"


def test_weights_that_all_differ_forbid_sums_and_equal_ones_do_not(grouped):
    trace = grouped()
    all_differ = find_sums(weighted(trace, np.arange(trace.num_ids)), QUICK)
    assert "only ids of equal weight share a sum" in all_differ.reason
    all_equal = find_sums(weighted(trace, np.full(trace.num_ids, 0.5)), QUICK)
    assert all_equal.reads.cut == find_sums(trace, QUICK).reads.cut


def test_too_many_pairs_to_count_leave_the_table_alone_and_say_so():
    everything = np.arange(200_000)
    trace = Trace(
        np.array([0, *[everything.size * b for b in range(1, 11)]]), np.tile(everything, 10)
    )
    assert "sums could not be chosen (pair counts:" in find_sums(trace, QUICK).reason


def test_where_memory_is_short_pairs_are_counted_on_fewer_bags(grouped, monkeypatch):
    trace = grouped()
    whole = find_sums(trace, QUICK)
    need = count_pairs(trace).counts_E.size * 8
    limited = functools.partial(count_pairs, memory_limit_bytes=need)
    monkeypatch.setattr("grace_torchrec.plans.candidates.count_pairs", limited)
    fewer = find_sums(trace, QUICK)
    assert whole.counted_share == 1
    assert 0 < fewer.counted_share < 1
    assert fewer.method == "grace"
    assert 0 < fewer.reads.cut <= whole.reads.cut + 0.05


def test_the_validation_fifth_is_that_of_the_split_of_train_bags(grouped):
    split = split_bags(grouped())
    bags = split_validation(split.train, in_order=True)
    for mine, theirs in ((bags.fit, split.fit), (bags.validation, split.validation)):
        assert np.array_equal(mine.ids_L, theirs.ids_L)
        assert np.array_equal(mine.offsets_B1, theirs.offsets_B1)


def test_without_an_order_of_their_own_bags_are_permuted_by_the_seed():
    trace = Trace.from_bags([[b] for b in range(10)])
    order = np.random.default_rng(3).permutation(10)
    bags = split_validation(trace, seed=3)
    assert bags.fit.ids_L.tolist() == order[:8].tolist()
    assert bags.validation.ids_L.tolist() == order[8:].tolist()


bag_lists = st.lists(st.lists(st.integers(0, 7), max_size=6), min_size=10, max_size=30)


@given(bag_lists, st.booleans(), st.data())
def test_no_sums_save_more_than_the_bound(bags, with_weights, data):
    trace = Trace.from_bags(bags, 8)
    if with_weights:
        weights = data.draw(
            st.lists(st.integers(0, 2), min_size=trace.num_ids, max_size=trace.num_ids)
        )
        trace = weighted(trace, weights)
    sums = StoredSums.from_clusters(8, np.array([0, 8]), np.arange(8))
    assert count_reads(trace, sums).cut <= merge_bound(trace) + 1e-12


@given(
    st.lists(
        st.permutations(range(6)).flatmap(lambda p: st.integers(2, 6).map(lambda k: p[:k])),
        max_size=3,
    )
)
def test_clusters_are_read_back_from_the_code(groups):
    clusters = [[item + 6 * index for item in group] for index, group in enumerate(groups)]
    offsets = np.cumsum([0, *map(len, clusters)])
    members = np.array([item for cluster in clusters for item in cluster], np.int64)
    read = clusters_of(StoredSums.from_clusters(30, offsets, members))
    assert np.array_equal(read[0], offsets)
    assert np.array_equal(read[1], members)


@pytest.mark.parametrize("share", [0.01, 1 / 16, 0.5, 0.9])
def test_a_share_keeps_the_first_sums_and_never_more(grouped, share):
    choice = find_sums(grouped(), PlanOptions(size_limits=(4,)))
    fewer = trimmed(choice, share)
    for part, whole in ((fewer.sums, choice.sums), (fewer.held_sums, choice.held_sums)):
        assert part.num_sums <= share * whole.num_sums
        assert np.array_equal(part.set_indptr_R1, whole.set_indptr_R1[: part.num_sums + 1])
        assert np.array_equal(part.set_items_S, whole.set_items_S[: part.set_items_S.size])
    assert fewer.reads.cut <= choice.reads.cut
    assert trimmed(choice, 1.0) is choice


def test_a_share_is_used_up_to_the_last_whole_cluster(grouped):
    choice = find_sums(grouped(), PlanOptions(size_limits=(4,)))
    sizes = np.diff(clusters_of(choice.sums)[0])
    stored = np.cumsum((1 << sizes) - 1 - sizes)
    for clusters in (1, 3, stored.size - 1):
        share = stored[clusters - 1] / choice.sums.num_sums
        assert trimmed(choice, share).sums.num_sums == stored[clusters - 1]


@pytest.mark.parametrize(("name", "least"), [("ml100k", 0.38), ("retail", 0.10)])
def test_real_bags_reach_the_cut_of_the_paper_greedy(trace_path, name, least):
    with np.load(trace_path(name)) as file:
        trace = Trace(file["indptr"], file["indices"])
    split = split_bags(trace)
    choice = find_sums(split.train, PlanOptions(), in_order=True)
    assert choice.reads.cut >= least
    assert count_reads(split.test, choice.sums).cut >= least
