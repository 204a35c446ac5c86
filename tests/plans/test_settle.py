"""Settling: sums are used where they are faster on that machine, else the reason is said."""

from dataclasses import replace

import numpy as np
import pytest

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import NoPlan
from grace_torchrec.plans.candidates import judge_all, split_validation
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.settle import settle
from grace_torchrec.traces.trace import Trace

QUICK = PlanOptions(methods=("grace",), size_limits=(3, 4))
PLENTY = 10**9
TABLE = 400 * 256


@pytest.fixture(scope="module")
def good(grouped):
    return judge_all(split_validation(grouped()), QUICK)


@pytest.fixture(scope="module")
def single():
    return judge_all(
        split_validation(Trace.from_bags([[(b * b) % 40] for b in range(200)], 400)), QUICK
    )


def test_sums_that_cut_reads_are_used_where_everything_fits(spec_of, good, two_memories):
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), QUICK)
    assert (table.verdict, table.method, table.lookup) == ("use", "grace", "fused")
    assert table.placement.originals == "hbm"
    assert table.placement.num_rows == 400
    assert table.sums.num_sums == good.sums.num_sums
    assert table.predicted.cut == good.reads.cut
    assert "fewer" in table.reason or "cut" in table.reason


def test_a_plan_says_that_it_was_judged_on_bags_that_it_knows(spec_of, grouped, two_memories):
    bags = grouped()
    few = bags.take(np.arange(bags.num_bags) % 40)  # a log that repeats the histories of 40 users
    for trace, told in ((bags, False), (few, True)):
        choice = judge_all(split_validation(trace), QUICK)
        (table,) = settle([spec_of()], [choice], two_memories(PLENTY), QUICK)
        assert table.verdict == "use"
        assert ("100% of these are among the bags it was fitted on" in table.reason) == told
        assert ("among the bags" in table.reason) == told


def test_times_count_rows_read_and_one_sector_an_id_for_the_code(spec_of, good, two_memories):
    memory = two_memories(PLENTY, sector_bytes=32)
    (table,) = settle([spec_of()], [good], memory, QUICK)
    told = table.predicted
    hbm, host = told.hbm_s * 20e9, told.host_s * 1e9
    assert hbm + host == pytest.approx(told.rows_read * 256 + told.ids * 32)
    assert told.stock_s == pytest.approx(told.ids * 256 / 20e9)
    stored = table.sums.num_sums * 256 + table.sums.metadata_bytes
    assert told.extra_bytes == stored + told.kept_bytes


def test_a_cut_that_the_code_eats_up_leaves_the_table_stock(spec_of, good, two_memories):
    # rows of 16 bytes are read as one sector each, and so is the code of every id
    (table,) = settle([spec_of(dim=4)], [good], two_memories(PLENTY), QUICK)
    assert (table.verdict, table.sums, table.method, table.lookup) == (
        "leave stock",
        None,
        "none",
        "fused",
    )
    assert "modelled no faster on test machine" in table.reason
    assert (table.predicted.cut, table.predicted.extra_bytes, table.predicted.time_ratio) == (
        0,
        0,
        1,
    )


def test_bags_of_one_id_leave_a_table_that_fits_stock(spec_of, single, two_memories):
    (table,) = settle([spec_of()], [single], two_memories(PLENTY), QUICK)
    assert (table.verdict, table.reason) == ("leave stock", "bags of 1.0 ids cannot share a sum")


def test_hot_rows_alone_are_used_where_the_table_does_not_fit(spec_of, single, two_memories):
    (table,) = settle([spec_of()], [single], two_memories(TABLE // 2), QUICK)
    assert (table.verdict, table.method, table.sums.num_sums) == ("use", "none", 0)
    read = {b * b % 40 for b in range(200)}
    assert set(table.placement.hot_items.tolist()) <= read
    assert (
        len(table.placement.hot_items) >= len(read) - 1
    )  # host memory serves what it has time for
    assert table.reason.startswith("bags of 1.0 ids cannot share a sum; its")
    assert table.predicted.time_ratio > 2
    assert table.predicted.metadata_bytes == 400 * 4


def test_a_software_cache_is_a_rival_that_hot_rows_do_not_beat(spec_of, single, two_memories):
    cached = two_memories(TABLE // 2, uvm="cached")
    (table,) = settle([spec_of()], [single], cached, QUICK)
    assert (table.verdict, table.placement.originals) == ("leave stock", "host")
    assert table.placement.hot_items.size == 0
    assert table.predicted.time_ratio == 1


@pytest.mark.parametrize("hbm_bytes", [0, 5000, TABLE // 2, TABLE - 1, TABLE, 2 * TABLE, 3 * TABLE])
def test_no_plan_is_modelled_slower_than_stock(spec_of, good, single, two_memories, hbm_bytes):
    specs = [spec_of("t_a"), spec_of("t_b", dim=16), spec_of("t_c")]
    tables = settle(specs, [good, good, single], two_memories(hbm_bytes), QUICK)
    stock = settle(specs, [single, single, single], two_memories(0), QUICK)
    assert all(table.verdict == "leave stock" for table in stock)
    hbm_s = sum(table.predicted.hbm_s for table in tables)
    host_s = sum(table.predicted.host_s for table in tables)
    assert max(hbm_s, host_s) <= sum(table.predicted.stock_s for table in tables) + 1e-12
    assert sum(table.placement.hbm.bytes for table in tables) <= hbm_bytes


def test_fewer_sums_are_stored_where_they_drive_rows_out_of_hbm(spec_of, good, two_memories):
    (table,) = settle([spec_of()], [good], two_memories(TABLE + TABLE // 8), QUICK)
    (roomy,) = settle([spec_of()], [good], two_memories(PLENTY), QUICK)
    assert 0 < table.sums.num_sums < roomy.sums.num_sums
    assert table.predicted.time_ratio > 1


def test_a_table_that_is_slower_alone_shares_hbm_where_the_whole_model_gains(
    spec_of, good, two_memories
):
    few = judge_all(split_validation(Trace.from_bags([[b % 40] for b in range(600)], 400)), QUICK)
    specs, memory = [spec_of("t_item"), spec_of("t_few")], two_memories(TABLE)
    item, other = settle(specs, [good, few], memory, QUICK)
    # alone the first table would sit whole in HBM, and every read of the other one in host memory
    assert item.predicted.time_ratio < 1 < other.predicted.time_ratio
    assert (item.verdict, other.verdict) == ("use", "use")
    assert "modelled slower alone, 0.98 times the speed" in item.reason
    assert "all tables together are faster" in item.reason


def test_a_table_in_the_cache_of_a_cpu_is_not_rewritten_in_line(spec_of, good):
    (table,) = settle([spec_of()], [good], MemoryModel.named("cpu"), QUICK)
    assert (table.verdict, table.sums) == ("leave stock", None)
    assert "rewriting in line is modelled at" in table.reason
    ahead = replace(QUICK, rewriting="ahead")
    (table,) = settle([spec_of()], [good], MemoryModel.named("cpu"), ahead)
    assert (table.verdict, table.lookup) == ("use", "ahead")


def test_that_the_judged_sums_are_kept_is_said(spec_of, good, two_memories, monkeypatch):
    refit = good.best.refit
    monkeypatch.setitem(vars(good.best), "refit", replace(refit, is_judged=True))
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), QUICK)
    assert "need more memory than those it was judged on" in table.reason
    monkeypatch.setitem(vars(good.best), "refit", refit)
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), QUICK)
    assert "more memory" not in table.reason


@pytest.mark.parametrize(("rewrite_ns", "verdict"), [(0.5, "use"), (50.0, "leave stock")])
def test_costs_that_were_measured_decide(spec_of, good, rewrite_ns, verdict):
    """Dear rows and cheap rewriting: the sums pay; with dear rewriting they do not."""
    costs = LookupCosts(0.1, 0.1, 0.0, rewrite_ns, 0.0)
    memory = replace(MemoryModel.named("cpu"), lookup_costs=costs)
    (table,) = settle([spec_of()], [good], memory, QUICK)
    assert table.verdict == verdict
    said = table.lookup_reason if verdict == "use" else table.reason
    assert f"{rewrite_ns:.0f} ns an id on one core, by the costs in the memory model" in said


def test_one_memory_needs_no_hbm(spec_of, good):
    asked = replace(QUICK, lookup="fused")
    (table,) = settle([spec_of()], [good], MemoryModel.named("cpu"), asked)
    assert (table.verdict, table.placement.originals, table.predicted.hbm_s) == ("use", "host", 0.0)
    assert table.predicted.time_ratio > 1


def test_originals_that_fit_nowhere_are_no_plan(spec_of, good, two_memories):
    with pytest.raises(
        NoPlan, match=r"table sparse\.ebc\.t_item: its originals need 102,400 bytes, 20 are"
    ):
        settle([spec_of()], [good], two_memories(20, host_bytes=10), QUICK)


def test_sums_that_fit_nowhere_are_given_up_and_the_table_stays(spec_of, good, two_memories):
    (table,) = settle([spec_of()], [good], two_memories(0, host_bytes=TABLE + 300), QUICK)
    assert table.verdict == "leave stock"
    assert "its stored sums need" in table.reason


def test_lookup_can_be_asked_for(spec_of, good, two_memories):
    asked = PlanOptions(methods=("grace",), size_limits=(3, 4), lookup="stock")
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), asked)
    assert (table.lookup, table.lookup_reason) == ("stock", "lookup 'stock' was asked for")


def test_a_table_with_sums_is_read_ahead_where_bags_arrive_rewritten(spec_of, good, two_memories):
    ahead = PlanOptions(methods=("grace",), size_limits=(3, 4), rewriting="ahead")
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), ahead)
    assert (table.lookup, table.verdict) == ("ahead", "use")
    assert "bags arrive rewritten" in table.lookup_reason
    (table,) = settle([spec_of()], [good], two_memories(PLENTY), replace(ahead, lookup="stock"))
    assert table.lookup == "stock"  # what is asked for stands
    (table,) = settle([spec_of()], [good], two_memories(0, host_bytes=TABLE + 300), ahead)
    assert (table.lookup, table.sums) == ("fused", None)  # nothing to rewrite


def test_placed_reads_are_those_of_the_whole_profile(spec_of, good, two_memories):
    (table,) = settle([spec_of()], [good], two_memories(TABLE + TABLE // 8), QUICK)
    reads = table.placement.hbm.reads + table.placement.host.reads
    assert reads < good.bags.all.num_ids
    assert np.array_equal(np.unique(table.placement.hot_items), table.placement.hot_items)
