"""A diff tells every change of a plan, and a plan has none to itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.plans.diff import diff_plans, set_hashes
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.stock_plan import summarise_stock
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile, TableProfile

KEY = "sparse.ebc.t_item"


@pytest.fixture(scope="module")
def plan_of(spec_of, grouped, two_memories):
    """Return a function from HBM bytes and a seed of the bags to a plan of one table."""

    def make(hbm_bytes=30_000, seed=0):
        profile = Profile({"t_item": TableProfile(grouped(seed=seed), ("item",))})
        memory = two_memories(hbm_bytes)
        return make_plan(
            [spec_of()], profile, memory, PlanOptions(methods=("grace",), size_limits=(4,))
        )

    return make


def test_a_plan_does_not_differ_from_itself_saved_and_loaded(small_plan, tmp_path):
    small_plan.save(tmp_path / "plan")
    found = diff_plans(summarise(small_plan, "a"), summarise(Plan.load(tmp_path / "plan"), "b"))
    assert not found.differs
    assert found.same == len(small_plan.tables)
    assert (found.totals, found.time_s) == ({}, None)


def test_more_hbm_moves_rows_and_the_totals_are_the_sum_of_the_tables(plan_of):
    small, large = summarise(plan_of(30_000)), summarise(plan_of(60_000))
    found = diff_plans(small, large)
    assert found.differs
    assert [change.name for change in found.settings] == ["hbm bytes"]
    (table,) = found.tables
    moved = {change.name: change.after - change.before for change in table.tiers["hbm"]}
    assert moved["bytes"] > 0
    assert table.tiers == found.totals
    assert found.time_s.after < found.time_s.before


def test_other_sums_of_the_same_number_are_seen(plan_of):
    plan = plan_of(200_000)
    table = plan.tables[KEY]
    assert table.sums.num_sums > 0
    code_N = table.sums.code.item_code_N
    grouped, single = np.flatnonzero(code_N >= 0), np.flatnonzero(code_N < 0)
    renamed = np.arange(400)
    renamed[[grouped[0], single[0]]] = renamed[[single[0], grouped[0]]]
    sums = StoredSums(
        400,
        table.sums.set_indptr_R1,
        renamed[table.sums.set_items_S],
        replace(table.sums.code, item_code_N=code_N[renamed]),
    )
    other = Plan(
        {KEY: replace(table, sums=sums)}, plan.memory, plan.options, plan.profile_fingerprint
    )
    found = diff_plans(summarise(plan), summarise(other))
    (swap,) = found.tables[0].swaps
    assert swap.kind == "sums"
    assert swap.added == swap.removed == 7  # of the eleven sums of four items, those with one item
    assert swap.kept + swap.removed == table.sums.num_sums


def test_tables_of_one_plan_only_are_listed(small_plan, plan_of):
    found = diff_plans(summarise(small_plan), summarise(plan_of()))
    assert found.removed == ("sparse.ebc.t_user", "sparse.ebc.t_new")
    assert found.added == ()
    back = diff_plans(summarise(plan_of()), summarise(small_plan))
    assert back.added == found.removed


def test_against_a_plan_of_torchrec_only_what_both_say_is_compared(plan_of):
    entry = {"sharding_type": "table_wise", "compute_kernel": "fused_uvm", "ranks": [0], "shards": [
        {"shard_offsets": [0, 0], "shard_sizes": [400, 64], "placement": "rank:0/cuda:0"}]}  # fmt: skip
    stock = summarise_stock({"plan": {"sparse.ebc": {"t_item": entry}}}, "stock")
    found = diff_plans(stock, summarise(plan_of()))
    assert [change.name for change in found.settings] == ["kind"]
    (table,) = found.tables
    assert {change.name for change in table.changes} == {"verdict", "method", "lookup"}
    assert {c.name for changes in table.tiers.values() for c in changes} <= {
        "originals", "sums", "hot_rows", "bytes",
    }  # fmt: skip
    assert found.time_s is None


sets = st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True), max_size=8)


@given(sets, st.randoms())
def test_sums_have_one_hash_exactly_if_they_have_the_same_items(found, random):
    def hashes(chosen):
        lengths = np.cumsum([0, *map(len, chosen)])
        items = np.array([item for items in chosen for item in items], np.int64)
        return set_hashes(StoredSums.from_sets(31, lengths.astype(np.int64), items))

    turned = [random.sample(items, len(items)) for items in found]
    assert np.array_equal(hashes(found), hashes(turned))
    different = {frozenset(items) for items in found}
    assert np.unique(hashes(found)).size == len(different)


def test_other_ranks_are_told_table_by_table(sharded_plan) -> None:
    sharding = sharded_plan.sharding
    first = sharding.tables[0]
    moved = replace(first, shards=tuple(replace(s, rank=1 - s.rank) for s in first.shards))
    swapped = replace(sharding, tables=(moved, *sharding.tables[1:]))
    before = summarise(sharded_plan)
    found = diff_plans(before, summarise(replace(sharded_plan, sharding=swapped)))
    assert found.differs
    (change,) = found.ranks
    assert change.name == f"{first.module}.{first.table}"
    assert "on rank 0" in change.before
    assert change.before != change.after
    assert (found.settings, found.tables, found.totals) == ((), (), {})
    assert diff_plans(before, summarise(sharded_plan)).ranks == ()
    gone = diff_plans(before, summarise(replace(sharded_plan, sharding=None)))
    assert len(gone.ranks) == len(sharding.tables) + 1  # and how many ranks there are
    assert {change.after for change in gone.ranks} == {"on no rank"}
