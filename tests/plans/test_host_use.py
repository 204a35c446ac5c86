"""Host use: with room in HBM, rows go to host memory only for a gain that can be claimed."""

from dataclasses import replace

import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.views.claim_text import host_lines

ROOM = (Tier("hbm", 10**9, 10e9), Tier("host", 10**9, 2e9))
TABLE = 400 * 256
OPTIONS = PlanOptions(methods=("subsets",))


@pytest.fixture(scope="module")
def planned(spec_of, grouped):
    """Return a function from a machine and options to a plan of a busy table and a quiet one."""
    quiet = TableProfile(grouped(40, groups=1), ("user",))
    profile = Profile({"t_item": TableProfile(grouped(), ("item",)), "t_user": quiet})
    specs = [spec_of(), spec_of("t_user")]

    def make(memory, options=OPTIONS):
        return make_plan(specs, profile, memory, options)

    return make


def host_rows(plan):
    return sum(table.placement.host.rows for table in plan.tables.values())


def saved_s(plan):
    """Seconds that the use of host memory saves of the held-out bags, by the bandwidths alone."""
    summary = summarise(plan)
    return summary.all_in_hbm_s - summary.time_s


def test_with_room_in_hbm_host_memory_is_used_for_a_launch_or_more_only(planned):
    spread = planned(MemoryModel("m", ROOM))
    assert host_rows(spread) > 0  # bandwidths alone: both memories together are faster
    gain_s = saved_s(spread)
    assert gain_s > 0
    above = planned(MemoryModel("m", ROOM, launch_s=0.5 * gain_s))
    below = planned(MemoryModel("m", ROOM, launch_s=2 * gain_s))
    assert host_rows(above) > 0
    assert host_rows(below) == 0
    assert [t.verdict for t in below.tables.values()] == [t.verdict for t in spread.tables.values()]
    assert (
        summarise(below).stock_s >= summarise(spread).stock_s
    )  # the stock model plays by the rule


def test_what_the_cache_holds_stays_in_hbm_where_all_fits(planned):
    inside = planned(MemoryModel("m", ROOM, cache_bytes=TABLE))
    outside = planned(MemoryModel("m", ROOM, cache_bytes=TABLE - 1))
    assert host_rows(inside) == 0 < host_rows(outside)
    for table in inside.tables.values():
        assert table.predicted.stock_host_s == table.predicted.host_s == 0


def test_without_room_the_rule_says_nothing(planned):
    few = (replace(ROOM[0], num_bytes=TABLE), ROOM[1])
    knows = planned(MemoryModel("m", few, cache_bytes=10**8, launch_s=1.0))
    bare = planned(MemoryModel("m", few))
    told = [[t.placement.host for t in plan.tables.values()] for plan in (knows, bare)]
    assert told[0] == told[1]
    assert host_rows(knows) > 0


@pytest.mark.parametrize("rewriting", ["in_line", "ahead"])
def test_no_host_memory_keeps_sums_in_hbm(planned, rewriting):
    """Sums need no host memory where HBM has room for them, nor does their code."""
    options = replace(OPTIONS, rewriting=rewriting)
    tiers = (ROOM[0], replace(ROOM[1], num_bytes=0))
    plan = planned(MemoryModel("m", tiers), options)
    busy = plan.tables["sparse.ebc.t_item"]
    assert busy.verdict == "use"
    assert busy.num_sums == busy.placement.num_hbm_sums > 0
    assert sum(table.placement.host.bytes for table in plan.tables.values()) == 0


def test_rows_in_host_memory_beside_free_hbm_are_explained(planned):
    spread = summarise(planned(MemoryModel("m", ROOM)))
    (line,) = host_lines(spread)
    assert "HBM has room" in line
    assert "host_bytes=0" in line
    assert spread.document()["all_in_hbm_s"] > spread.time_s
    kept = summarise(planned(MemoryModel("m", (ROOM[0], replace(ROOM[1], num_bytes=0)))))
    assert host_lines(kept) == []
    assert kept.document()["all_in_hbm_s"] is None
    assert kept.time_s == pytest.approx(spread.all_in_hbm_s, rel=0.02)
    full = replace(ROOM[0], num_bytes=TABLE)
    assert host_lines(summarise(planned(MemoryModel("m", (full, ROOM[1]))))) == []


@pytest.mark.parametrize("rewriting", ["in_line", "ahead"])
@pytest.mark.parametrize("host_bytes", [0, 10**9])
def test_more_hbm_is_never_refused_and_tables_are_where_they_are_said_to_be(
    planned, rewriting, host_bytes
):
    options = PlanOptions(methods=("subsets",), rewriting=rewriting)
    host = replace(ROOM[1], num_bytes=host_bytes)
    whole = planned(MemoryModel("m", (ROOM[0], host)), options)
    most = sum(table.placement.hbm.bytes for table in whole.tables.values())
    with_sums = 0
    for hbm_bytes in range(2 * TABLE, most + 2048, 2048):
        memory = MemoryModel("m", (replace(ROOM[0], num_bytes=hbm_bytes), host), cache_bytes=TABLE)
        plan = planned(memory, options)
        for table in plan.tables.values():
            assert host_bytes or table.placement.originals == "hbm"
            if table.verdict != "use" and not table.predicted.host_s:
                assert table.placement.host.reads == 0
        with_sums += any(table.num_sums for table in plan.tables.values())
    assert with_sums > 0


def test_host_memory_that_is_needed_owes_nobody_a_launch(planned):
    tight = replace(ROOM[0], num_bytes=2 * TABLE)
    plain = planned(MemoryModel("m", (tight, ROOM[1])))
    dear = planned(MemoryModel("m", (tight, ROOM[1]), launch_s=1.0))
    assert sum(table.num_sums for table in plain.tables.values()) > 0
    for one, other in zip(plain.tables.values(), dear.tables.values(), strict=True):
        assert (one.verdict, one.num_sums) == (other.verdict, other.num_sums)
