"""Drift: the live cut is that of the op that serves, its interval holds, verdicts follow."""

import dataclasses

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.serve.drift import LEAST_BAGS, break_even, drift, live_cut
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

ROWS = 300


def bags(seed: int, count: int = 400, world: int = 0) -> Trace:
    """Bags of one world: which items go together depends on ``world`` alone."""
    whole = generate(ROWS, 2000, world, pooling=(5, 20), community_size=5)
    picked = np.random.default_rng(seed).permutation(whole.num_bags)[:count]
    return whole.take(picked)


@pytest.fixture(scope="module")
def plan() -> Plan:
    spec = TableSpec("0", "t_item", ROWS, 64, "fp32", "sum", ("item",), False)
    other = dataclasses.replace(spec, name="t_shop", features=("shop",))
    profile = Profile.from_trace("t_item", bags(0, 1200), ("item",))
    memory = MemoryModel.named("h200")
    return make_plan([spec, other], profile, memory, PlanOptions(methods=("grace_floor",)))


def live(trace: Trace) -> Profile:
    return Profile.from_trace("t_item", trace, ("item",))


def test_the_live_cut_is_that_of_the_rewriting_op(plan) -> None:
    trace, sums = bags(1), plan.tables["0.t_item"].sums
    found = live_cut(trace, sums)
    assert found.cut == pytest.approx(count_reads(trace, sums).cut)
    assert found.low < found.cut < found.high
    assert (found.bags, found.ids) == (400, trace.num_ids)


def test_the_interval_is_that_of_bags_drawn_again(plan) -> None:
    trace, sums = bags(2), plan.tables["0.t_item"].sums
    found, rng = live_cut(trace, sums), np.random.default_rng(0)
    again = [count_reads(trace.take(rng.integers(0, 400, 400)), sums).cut for _ in range(300)]
    low, high = np.quantile(again, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.25)
    assert found.low == pytest.approx(low, abs=0.01)


def test_bags_of_the_same_world_are_fine_and_of_another_are_not(plan) -> None:
    same, other = drift(plan, live(bags(3))), drift(plan, live(bags(3, world=1)))
    assert same.verdict == same.tables["0.t_item"].verdict == "fine"
    assert other.tables["0.t_item"].verdict in ("stale", "worse than none")
    assert other.tables["0.t_item"].live.cut < same.tables["0.t_item"].live.cut - 0.05
    assert same.tables["0.t_shop"].verdict == "no sums"


def test_bags_that_no_sum_serves_are_worse_than_none(plan) -> None:
    apart = Trace.from_bags([[k % ROWS] for k in range(400)], ROWS)
    found = drift(plan, live(apart))
    assert found.verdict == "worse than none"
    assert found.tables["0.t_item"].live.high < found.tables["0.t_item"].break_even
    assert found.as_dict()["tables"]["0.t_item"]["live"]["cut"] == 0.0


def test_the_break_even_is_what_the_options_ask_or_what_reading_costs(plan) -> None:
    table = plan.tables["0.t_item"]
    assert break_even(table, 0.5) == 0.5
    told = dataclasses.replace(table.predicted, hbm_s=table.predicted.stock_hbm_s, host_s=0.0)
    slow = dataclasses.replace(table, predicted=told)
    assert break_even(slow, 0.01) == pytest.approx(table.predicted.cut)  # no time is saved
    balancing = dataclasses.replace(told, host_s=1.3 * told.stock_s)  # planned for the others' sake
    assert break_even(dataclasses.replace(table, predicted=balancing), 0.01) == 0.01


def test_weights_that_the_table_does_not_use_are_no_drift(plan) -> None:
    plain = bags(3)
    weights_L = np.random.default_rng(0).random(plain.num_ids, np.float32)
    weighted = dataclasses.replace(plain, weights_L=weights_L)
    assert drift(plan, live(weighted)) == drift(plan, live(plain))


def test_few_bags_and_none_are_no_verdict(plan) -> None:
    few = bags(4, LEAST_BAGS - 1, world=1)
    assert drift(plan, live(few)).verdict == "too few bags"
    assert drift(plan, Profile({})).verdict == "too few bags"
    assert live_cut(Trace.from_bags([[1, 2]]), None).cut == 0.0
    one = live_cut(Trace.from_bags([[1, 2], []]), StoredSums.from_clusters(3, [0, 2], [1, 2]))
    assert (one.cut, one.low, one.high, one.bags) == (0.5, 0.0, 1.0, 1)


def test_what_does_not_belong_to_the_plan_is_refused(plan) -> None:
    with pytest.raises(PlanMismatch):
        drift(plan, Profile.from_trace("t_user", bags(0)))
    with pytest.raises(GraceError, match="tolerance"):
        drift(plan, live(bags(0)), tolerance=1.0)
    with pytest.raises(GraceError, match="confidence"):
        drift(plan, live(bags(0)), confidence=1.0)
