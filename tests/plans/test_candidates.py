"""Candidates: sums are kept only where held-out bags read fewer rows, and the reason is said."""

import itertools

import numpy as np
import pytest

from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.plans import candidates
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

GRACE = PlanOptions(methods=("grace",))
QUICK = PlanOptions(methods=("grace",), size_limits=(3, 4))


def weighted(trace, weights):
    return Trace(trace.offsets_B1, trace.ids_L, trace.num_items, np.asarray(weights, np.float32))


def test_items_that_come_together_are_stored_and_held_out_bags_read_less(grouped):
    choice = judge_all(split_validation(grouped()), PlanOptions())
    assert choice.method != "none"
    assert choice.reads.cut > 0.4
    assert choice.reads.cut == count_reads(choice.bags.few.validation, choice.held_sums).cut
    assert 0 < choice.sums.num_sums <= 400


def test_the_size_limit_with_the_greatest_cut_is_taken(grouped):
    choice = judge_all(split_validation(grouped()), GRACE)
    assert set(choice.cuts) == {f"grace size_limit={k}" for k in (3, 4, 5, 6, 7, 8)}
    assert choice.cuts[choice.best.picked] == max(choice.cuts.values()) == choice.reads.cut
    # bags are made of groups of four: three items a cluster must leave reads behind
    assert int(choice.parameter.removeprefix("size_limit=")) >= 4


def test_none_wins_where_ids_are_drawn_alone(uniform):
    choice = judge_all(split_validation(uniform()), PlanOptions())
    assert (choice.method, choice.sums.num_sums, choice.finalists) == ("none", 0, ())
    assert "on held-out bags, the least gain is 1.0%" in choice.reason
    assert choice.cuts


# One item goes with everybody: sets may share it, disjoint clusters may not.
SHARED = Trace.from_bags([[0, i] for i in range(1, 60)] * 10)


def test_what_is_picked_is_what_bags_can_use_as_they_arrive():
    in_line = judge_all(split_validation(SHARED), PlanOptions())
    ahead = judge_all(split_validation(SHARED), PlanOptions(rewriting="ahead"))
    stock = judge_all(split_validation(SHARED), PlanOptions(rewriting="ahead", lookup="stock"))
    assert ahead.method == "set_merge"
    for choice in (in_line, stock):
        assert choice.method != "set_merge"
        assert {one.method for one in choice.finalists} <= {"grace", "grace_floor", "subsets"}
        assert any(name.startswith("set_merge") for name in choice.cuts)  # tried for the curve
    assert in_line.cuts == ahead.cuts == stock.cuts


def test_finalists_are_the_best_of_each_method(grouped):
    choice = judge_all(
        split_validation(grouped()), PlanOptions(rewriting="ahead", size_limits=(3, 4))
    )
    assert {one.method for one in choice.finalists} == {name.split()[0] for name in choice.cuts}
    for one in choice.finalists:
        of_method = [cut for name, cut in choice.cuts.items() if name.split()[0] == one.method]
        assert one.reads.cut == max(of_method) == choice.cuts[one.picked]
        assert one.reads.cut == count_reads(choice.bags.few.validation, one.held_sums).cut
    assert choice.best.reads.cut == max(choice.cuts.values())


def test_the_curve_rises_with_the_budget_and_ends_at_the_cuts_that_were_judged(grouped):
    for rewriting in ("in_line", "ahead"):
        options = PlanOptions(rewriting=rewriting, size_limits=(3, 4), budget=0.5)
        choice = judge_all(split_validation(grouped()), options)
        assert [point.num_sums for point in choice.curve] == [12, 25, 50, 100, 200]
        for cut in ("in_line_cut", "ahead_cut"):
            cuts = [getattr(point, cut) for point in choice.curve]
            assert cuts == sorted(cuts)
        sets = {name for name in choice.cuts if name.startswith("set_merge")}
        in_line = max(cut for name, cut in choice.cuts.items() if name not in sets)
        assert choice.curve[-1].in_line_cut == in_line
        assert choice.curve[-1].ahead_cut == max(choice.cuts.values())


def test_where_nothing_is_fitted_there_is_no_curve():
    choice = judge_all(
        split_validation(Trace.from_bags([[b % 7] for b in range(100)], 7)), PlanOptions()
    )
    assert (choice.curve, choice.cuts) == ((), {})


@pytest.mark.parametrize("length", [0, 1])
def test_bags_of_one_id_cannot_share_a_sum(length):
    trace = Trace.from_bags([[b % 7] * max(length, b % 2) for b in range(100)], 7)
    choice = judge_all(split_validation(trace), QUICK)
    assert choice.method == "none"
    assert choice.reason == "bags of 1.0 ids cannot share a sum"


def test_too_few_bags_are_not_judged(grouped):
    assert (
        "9 bags were recorded, 10 or more"
        in judge_all(split_validation(grouped(num_bags=9)), QUICK).reason
    )
    assert "no bags" in judge_all(split_validation(Trace.from_bags([[], []], 5)), QUICK).reason


@pytest.mark.parametrize(
    "options", [PlanOptions(budget=0), PlanOptions(budget=0.001), PlanOptions(methods=())]
)
def test_options_can_forbid_sums(grouped, options):
    assert judge_all(split_validation(grouped()), options).reason == "the options allow no sums"


def test_the_budget_is_a_multiple_of_the_rows(grouped):
    for budget in (0.05, 0.25, 1.0):
        choice = judge_all(
            split_validation(grouped()),
            PlanOptions(budget=budget, methods=("grace",), size_limits=(4,)),
        )
        assert choice.sums.num_sums <= 400 * budget
        assert choice.held_sums.num_sums <= 400 * budget


def test_a_cut_below_the_least_gain_leaves_the_table_alone(grouped):
    trace = grouped()
    cut = judge_all(split_validation(trace), QUICK).reads.cut
    assert (
        judge_all(
            split_validation(trace),
            PlanOptions(methods=("grace",), size_limits=(3, 4), min_gain=cut),
        ).method
        == "grace"
    )
    assert (
        judge_all(
            split_validation(trace),
            PlanOptions(methods=("grace",), size_limits=(3, 4), min_gain=cut + 1e-6),
        ).method
        == "none"
    )


def test_weights_that_all_differ_forbid_sums_and_equal_ones_do_not(grouped):
    trace = grouped()
    all_differ = judge_all(split_validation(weighted(trace, np.arange(trace.num_ids))), QUICK)
    assert "only ids of equal weight share a sum" in all_differ.reason
    all_equal = judge_all(split_validation(weighted(trace, np.full(trace.num_ids, 0.5))), QUICK)
    assert all_equal.reads.cut == judge_all(split_validation(trace), QUICK).reads.cut


def test_too_many_pairs_to_count_leave_the_table_alone_and_say_so():
    everything = np.arange(200_000)
    trace = Trace(
        np.array([0, *[everything.size * b for b in range(1, 11)]]), np.tile(everything, 10)
    )
    assert (
        "sums could not be chosen (pair counts:" in judge_all(split_validation(trace), QUICK).reason
    )


def test_methods_that_memory_has_no_room_for_are_named_with_the_reason():
    trace = Trace.from_bags([[2 * (b % 400), 2 * (b % 400) + 1] for b in range(2000)], 1_000_000)
    alone = judge_all(
        split_validation(trace),
        PlanOptions(methods=("grace", "grace_floor")),
        memory_limit_bytes=9999,
    )
    assert (alone.method, alone.cuts) == ("none", {})
    assert alone.reason.startswith("not tried: grace, grace_floor (pair counts: 800 items")
    assert "the limit is 9,999 B" in alone.reason
    halves = Trace.from_bags([list(range(50 * (b % 2), 50 * (b % 2) + 50)) for b in range(40)])
    both = judge_all(split_validation(halves), PlanOptions(methods=("grace", "subsets")), 19_700)
    assert (both.method, both.reason, set(both.cuts)) == ("subsets", "", {"subsets"})
    assert both.untried.startswith("not tried: grace (pair counts: 100 items")


def test_where_memory_is_short_pairs_are_counted_on_fewer_bags(grouped):
    trace = grouped()
    whole = judge_all(split_validation(trace), QUICK)
    need = count_pairs(trace).counts_E.size * 8
    fewer = judge_all(split_validation(trace), QUICK, memory_limit_bytes=need)
    assert whole.best.refit.counted_share == 1
    assert 0 < fewer.best.refit.counted_share < 1
    assert fewer.method == "grace"
    assert 0 < fewer.reads.cut <= whole.reads.cut + 0.05
    others = judge_all(
        split_validation(trace), PlanOptions(methods=("subsets",)), memory_limit_bytes=need
    )
    assert others.best.refit.counted_share == 1  # they count no pairs


@pytest.mark.parametrize("method", ["grace", "subsets"])
def test_where_all_bags_need_more_memory_the_fit_that_was_judged_is_kept(
    grouped, method, monkeypatch
):
    bags = split_validation(grouped())
    (one,) = judge_all(bags, PlanOptions(methods=(method,))).finalists
    counted = candidates._counted
    monkeypatch.setattr(candidates, "_counted", lambda *given: counted(*given[:-1], 1))
    assert one.refit.is_judged
    assert one.refit.counted_share == 1
    assert one.first(1.0).num_sums == one.held_sums.num_sums > 0


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


@pytest.mark.parametrize("method", ["grace", "grace_floor", "subsets", "set_merge"])
@pytest.mark.parametrize("share", [0.01, 1 / 16, 0.5, 0.9])
def test_a_share_keeps_the_best_sums_and_never_more(grouped, method, share):
    options = PlanOptions(methods=(method,), size_limits=(4,), rewriting="ahead")
    best = judge_all(split_validation(grouped()), options).best
    validation = judge_all(split_validation(grouped()), options).bags.few.validation
    for part, whole in (
        (best.first(share), best.refit.sums),
        (best.first_held(share), best.held_sums),
    ):
        assert part.num_sums <= share * whole.num_sums
        assert type(part.code) is type(whole.code)
        kept, known = ({tuple(sorted(row)) for row in rows_of(sums)} for sums in (part, whole))
        assert kept <= known
    assert count_reads(validation, best.first_held(share)).cut <= best.reads.cut + 1e-12
    assert best.first(1.0) is best.refit.sums
    assert best.first_held(1.0) is best.held_sums


def rows_of(sums):
    """The items of each stored row."""
    bounds = sums.set_indptr_R1.tolist()
    return [sums.set_items_S[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def test_a_share_is_used_up_to_the_last_whole_cluster(grouped):
    best = judge_all(
        split_validation(grouped()), PlanOptions(methods=("grace",), size_limits=(4,))
    ).best
    sizes = np.diff(best.refit.sums.code.listed()[0])
    stored = np.cumsum((1 << sizes) - 1 - sizes)
    for clusters in (1, 3, stored.size - 1):
        share = stored[clusters - 1] / best.refit.sums.num_sums
        assert best.first(share).num_sums == stored[clusters - 1]


@pytest.mark.parametrize(("name", "least"), [("ml100k", 0.38), ("retail", 0.10)])
def test_real_bags_reach_the_cut_of_the_paper_greedy(trace_path, name, least):
    with np.load(trace_path(name)) as file:
        trace = Trace(file["indptr"], file["indices"])
    split = split_bags(trace)
    choice = judge_all(split_validation(split.train, in_order=True), GRACE)
    assert choice.reads.cut >= least
    assert count_reads(split.test, choice.sums).cut >= least
