"""Claims: bandwidths say nothing of what a cache holds, nor of less than one launch."""

from dataclasses import replace

import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.claims import claims_of
from grace_torchrec.plans.cpu_lookup_cost import in_line_on_cpu, rewrite_ns_of
from grace_torchrec.plans.diff import diff_plans
from grace_torchrec.plans.files import Plan
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.views.claim_text import doubt_lines, speed_text

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
    assert told[0].predicted == told[1].predicted  # what is stored and read is the same
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


def test_many_tables_share_a_launch(planned):
    free = planned(MemoryModel("m", FAST))
    (table,) = free.tables.values()
    gain_s = table.predicted.stock_s - table.predicted.time_s
    memory = replace(free.memory, launch_s=1.5 * gain_s)
    twin = replace(table, spec=replace(table.spec, name="t_other"))
    assert claims_of([table], memory).tables[table.spec.key].doubt
    both = claims_of([table, twin], memory)
    assert not any(claim.doubt for claim in both.tables.values())


def test_on_a_cpu_the_cost_of_lookups_is_claimed_not_the_bandwidth(planned):
    cpu = MemoryModel("m", (Tier("host", 10**9, 1e9),))
    plan = planned(cpu, replace(OPTIONS, lookup="fused"))
    (table,) = plan.tables.values()
    cost = in_line_on_cpu(400, 256, table.num_sums, table.predicted.cut, rewrite_ns_of(table.sums))
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
    whole = planned(MemoryModel("m", FAST), replace(OPTIONS, budget=0.5))
    assert "different bandwidths of m" in diff_plans(summarise(fast), summarise(slow)).apart[0]
    assert "different machines, m and n" in diff_plans(summarise(fast), summarise(other)).apart[0]
    assert diff_plans(summarise(fast), summarise(whole)).apart == ()
    apart = diff_plans(summarise(fast), summarise(small_plan)).apart
    assert "different held-out bags" in apart[-1]
    assert diff_plans(summarise(fast), summarise(other)).document()["times_compare"] is False
