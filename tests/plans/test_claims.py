"""Claims: bandwidths say nothing of what a cache holds, nor of less than one launch, of any table."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.claims import claims_of
from grace_torchrec.plans.cpu_lookup_cost import price_on_cpu
from grace_torchrec.plans.diff import diff_plans
from grace_torchrec.plans.files import Plan
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.views.claim_text import doubt_lines, speed_text
from grace_torchrec.views.plan_tables import inspect_markdown
from grace_torchrec.views.report import report_page

TABLE = 400 * 256  # bytes of the table below
FAST = (Tier("hbm", 10**9, 20e9), Tier("host", 10**9, 1e9))
OPTIONS = PlanOptions(methods=("subsets",))


@pytest.fixture(scope="module")
def planned(spec_of, grouped):
    """Return a function from a machine and options to the plan of one table that gains."""
    profile = Profile({"t_item": TableProfile(grouped(), ("item",))})

    def make(memory, options=OPTIONS):
        return make_plan([spec_of()], profile, memory, options)

    return make


def test_a_table_in_the_cache_claims_no_gain_and_one_byte_more_does(planned):
    inside = planned(MemoryModel("m", FAST, cache_bytes=TABLE))
    outside = planned(MemoryModel("m", FAST, cache_bytes=TABLE - 1))
    told = [next(iter(plan.tables.values())) for plan in (inside, outside)]
    read = [(t.num_sums, t.predicted.rows_read, t.predicted.cut) for t in told]
    assert read[0] == read[1]  # what is stored and read is the same
    assert told[0].verdict == told[1].verdict == "use"
    assert told[0].predicted.cut > 0.2
    assert "no gain in time is claimed" in told[0].reason
    assert f"{TABLE:,} bytes fit into the cache of m" in told[0].reason
    assert "modelled" not in told[0].reason
    assert f"modelled {told[1].predicted.time_ratio:.2f} times faster on m" in told[1].reason
    assert summarise(inside).time_ratio == 1
    assert speed_text(summarise(inside)) == "no gain in time is claimed"
    assert summarise(outside).time_ratio == pytest.approx(told[1].predicted.time_ratio)


def test_a_cache_of_the_gpu_says_nothing_of_tables_in_host_memory(planned):
    """They are read over the link, whatever the cache of the GPU holds."""
    small = (Tier("hbm", 60_000, 20e9), Tier("host", 10**9, 1e9))
    plan = planned(MemoryModel("m", small, cache_bytes=10**8))
    (table,) = plan.tables.values()
    assert table.predicted.stock_hbm_s == 0
    assert claims_of([table], plan.memory).tables[table.spec.key].doubt == ""
    assert table.predicted.time_ratio > 1
    assert summarise(plan).time_ratio == pytest.approx(table.predicted.time_ratio)


def test_a_gain_below_one_launch_is_none(planned):
    free = planned(MemoryModel("m", FAST))
    (table,) = free.tables.values()
    gain_s = table.predicted.stock_s - table.predicted.time_s
    assert gain_s > 0
    above = claims_of([table], replace(free.memory, launch_s=gain_s * 1.01))
    below = claims_of([table], replace(free.memory, launch_s=gain_s / 10))
    assert above.tables[table.spec.key].time_ratio == 1
    assert "less than one kernel launch" in above.tables[table.spec.key].doubt
    assert above.ids_for_a_launch is None
    assert below.tables[table.spec.key].time_ratio == pytest.approx(table.predicted.time_ratio)
    assert below.ids_for_a_launch == pytest.approx(table.predicted.ids / 10, abs=1)
    lines = doubt_lines(summarise(replace(free, memory=replace(free.memory, launch_s=gain_s / 10))))
    assert f"{below.ids_for_a_launch:,} ids" in lines[0]
    assert "smaller ones gain less than a launch" in lines[0]


def test_many_tables_share_a_launch(planned):
    free = planned(MemoryModel("m", FAST))
    (table,) = free.tables.values()
    gain_s = table.predicted.stock_s - table.predicted.time_s
    memory = replace(free.memory, launch_s=1.5 * gain_s)
    twin = replace(table, spec=replace(table.spec, name="t_other"))
    assert claims_of([table], memory).tables[table.spec.key].doubt
    both = claims_of([table, twin], memory)
    assert not any(claim.doubt for claim in both.tables.values())


@pytest.mark.parametrize("costs", [None, LookupCosts(0.1, 0.1, 0.0, 99.0, 0.0)])
def test_on_a_cpu_the_cost_of_lookups_is_claimed_not_the_bandwidth(planned, costs):
    cpu = MemoryModel("m", (Tier("host", 10**9, 1e9),), lookup_costs=costs)
    plan = planned(cpu, replace(OPTIONS, lookup="fused"))
    (table,) = plan.tables.values()
    cost = price_on_cpu(400, 256, table.sums, table.predicted.cut, costs)
    assert table.predicted.time_ratio > 1 > cost.stock_ns / cost.ours_ns  # a cached row is cheap
    assert summarise(plan).time_ratio == pytest.approx(cost.stock_ns / cost.ours_ns)
    assert "modelled slower alone" in table.reason


def test_presets_know_their_caches_and_files_of_earlier_releases_do_not(planned, tmp_path):
    assert MemoryModel.named("h200").cache_bytes == 50 << 20
    assert MemoryModel.named("a40", hbm_bytes=5).cache_bytes == 6 << 20
    assert MemoryModel.named("cpu").cache_bytes is MemoryModel.named("cpu").launch_s is None
    plan = planned(MemoryModel.named("h200"))
    plan.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").memory == plan.memory
    assert summarise(plan).document()["tables"][0]["doubt"]
    assert summarise(plan).document()["time_ratio"] == 1


def test_plans_of_other_machines_or_bags_are_not_compared_by_time(planned, small_plan):
    fast = planned(MemoryModel("m", FAST))
    slow = planned(MemoryModel("m", (Tier("hbm", 10**9, 2e9), Tier("host", 10**9, 1e8))))
    other = planned(MemoryModel("n", FAST))
    one, two = (
        planned(MemoryModel("c", (FAST[1],), lookup_costs=LookupCosts(0.01, 0.03, 0.2, cost, 0.7)))
        for cost in (5.0, 6.0)
    )
    assert "costs of lookups of c" in diff_plans(summarise(one), summarise(two)).apart[0]
    whole = planned(MemoryModel("m", FAST), replace(OPTIONS, budget=0.5))
    assert (
        "different bandwidths or costs of lookups of m"
        in diff_plans(summarise(fast), summarise(slow)).apart[0]
    )
    assert "different machines, m and n" in diff_plans(summarise(fast), summarise(other)).apart[0]
    assert diff_plans(summarise(fast), summarise(whole)).apart == ()
    apart = diff_plans(summarise(fast), summarise(small_plan)).apart
    assert "different held-out bags" in apart[-1]
    assert diff_plans(summarise(fast), summarise(other)).document()["times_compare"] is False


def timed(table, name, ours, stock):
    """The same table with other microseconds in HBM and host memory."""
    told = dict(
        zip(("hbm_s", "host_s", "stock_hbm_s", "stock_host_s"), (*ours, *stock), strict=True)
    )
    predicted = replace(table.predicted, **{key: us / 1e6 for key, us in told.items()})
    return replace(table, spec=replace(table.spec, name=name), predicted=predicted)


@pytest.fixture(scope="module")
def table(planned):
    (table,) = planned(MemoryModel("m", FAST)).tables.values()
    return table


@pytest.mark.parametrize(
    ("hbm_us", "launch_s", "said"),
    [(149.5, 3e-6, "gain 0.50 us in all tables together, less than one kernel launch"),
     (150.0, 3e-6, "all tables together gain nothing on the held-out bags"),
     (151.0, 3e-6, "all tables together lose 1.00 us on the held-out bags"),
     (151.0, None, "all tables together lose 1.00 us on the held-out bags")],
)  # fmt: skip
def test_where_all_tables_together_do_not_gain_none_is_said_to(table, hbm_us, launch_s, said):
    one = timed(table, "a", (0, 50), (0, 100))
    other = timed(table, "b", (hbm_us, 0), (150, 0))
    claims = claims_of([one, other], MemoryModel("m", FAST, launch_s=launch_s))
    assert all(said in claims.tables[plan.spec.key].doubt for plan in (one, other))
    assert claims.reason(one.spec.key, "m").startswith("no gain in time is claimed")
    assert "faster" not in claims.reason(other.spec.key, "m")
    assert claims.ids_for_a_launch is None
    assert claims.claimed_s == pytest.approx(max(hbm_us, 150) / 1e6)


def test_a_table_slower_alone_is_said_to_be_slower_whatever_is_doubted(table):
    slow, gains = timed(table, "a", (50, 0), (40, 0)), timed(table, "b", (0, 50), (0, 100))
    level = timed(table, "c", (40.1, 0), (40, 0))
    memory = MemoryModel("m", FAST)
    told = claims_of([slow, gains, level], memory)
    because = "modelled slower alone, 0.80 times the speed, on m"
    # stock: 100 us in host memory; ours: 90.1 us in HBM
    assert told.reason(slow.spec.key, "m") == f"{because}; all tables together are faster"
    assert told.reason(level.spec.key, "m") == "modelled as fast as stock on m"
    assert claims_of([slow], memory).reason(slow.spec.key, "m") == because
    assert claims_of([slow], memory).tables[slow.spec.key].doubt


def test_a_model_that_is_slower_is_said_to_be_slower_not_without_a_gain(planned, table):
    slow = timed(table, "t_item", (50, 0), (40, 0))
    plan = replace(planned(MemoryModel("m", FAST)), tables={slow.spec.key: slow})
    assert speed_text(summarise(plan)) == "modelled slower, 0.80 times the speed of stock"


def test_a_doubted_table_keeps_the_time_it_takes_in_host_memory(table):
    """Doubts take gains away and give none: 30 us of the small table stay in host memory."""
    small = timed(table, "a", (10, 30), (40, 0))
    large = timed(table, "b", (0, 50), (0, 100))
    claims = claims_of([small, large], MemoryModel("m", FAST, cache_bytes=TABLE))
    assert claims.tables[small.spec.key].doubt
    assert not claims.tables[large.spec.key].doubt
    assert claims.claimed_s == pytest.approx(80e-6)
    assert claims.gain_s == pytest.approx(20e-6)


MICROS = st.floats(0, 1000, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.tuples(*[MICROS] * 3, st.just(0.0) | MICROS), min_size=1, max_size=4),
    cache_bytes=st.sampled_from([None, TABLE]),
    launch_s=st.sampled_from([None, 3e-6]),
)
def test_claims_are_never_faster_than_modelled(table, times, cache_bytes, launch_s):
    plans = [timed(table, f"t{i}", t[:2], t[2:]) for i, t in enumerate(times)]
    claims = claims_of(plans, MemoryModel("m", FAST, cache_bytes=cache_bytes, launch_s=launch_s))
    ours = [sum(getattr(p.predicted, f"{m}_s") for p in plans) for m in ("hbm", "host")]
    stock = [sum(getattr(p.predicted, f"stock_{m}_s") for p in plans) for m in ("hbm", "host")]
    assert claims.claimed_s >= max(ours) - 1e-12
    assert claims.claimed_s <= max(*ours, *stock) + 1e-12  # nor is a doubt a loss
    assert claims.gain_s <= max(max(stock) - max(ours), 0.0) + 1e-12
    assert all(
        claims.tables[p.spec.key].time_ratio <= p.predicted.time_ratio * (1 + 1e-9) for p in plans
    )


def test_only_a_gain_in_time_is_told_as_a_bare_use(planned):
    """The verdict stays ``use`` for programs; people read what a table is used for."""
    inside, outside = (MemoryModel("m", FAST, cache_bytes=TABLE - n) for n in (0, 1))
    told = {}
    for memory in (inside, outside):
        plan = planned(memory)
        (row,) = summarise(plan).document()["tables"]
        assert row["verdict"] == "use"
        assert f"1 {row['verdict_told']}" in repr(plan)
        told[memory] = row["verdict_told"]
        shown = inspect_markdown(summarise(plan))
        assert f"| {row['verdict_told']} |" in shown
        assert ("as far as a gain is claimed" in shown) == (memory is inside)
        assert ('"pill use"' in report_page(plan)) == (memory is outside)
    assert told == {inside: "use for fewer reads only", outside: "use"}
    cpu = MemoryModel("m", (Tier("host", 10**9, 1e9),))
    slow = planned(cpu, replace(OPTIONS, lookup="fused"))
    assert summarise(slow).tables[0].verdict_told == "use though slower alone"
