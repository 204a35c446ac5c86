"""The simulator: laws that hold for any numbers, and the paper's figures."""

from dataclasses import replace

import numpy as np
import pytest

from bench.scheduling.costs import load_costs
from bench.scheduling.figure3 import figure3
from bench.scheduling.figure6 import figure6, gain, workload
from bench.scheduling.table1 import table1
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.arrivals import PATTERNS, arrivals
from grace_torchrec.schedule.fusing import Workload, fused
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.simulator import POLICIES, RECOS, Calibration, simulate

PLAIN = Calibration(
    streams=4, framework_us=0.0, driver_us=0.0, decision_us=0.0, event_us=0.0, sync_us=0.0,
    gap_us=0.0, wait_us=0.0, lock_factor=0.0, locks=0, interference=0.0, jitter=0.0,
)  # fmt: skip


def work(needs, times, grids=None):
    graph = OpGraph.from_needs(needs)
    pairs = zip(times, grids or [1] * len(times), strict=True)
    return Workload(
        graph, OpStats.of(graph, [OpStat(float(t), grid=g) for t, g in pairs], "json", "")
    )


CHAIN = work([[], [0], [1]], [3, 4, 5])
FORK = work([[], [], [], [0, 1, 2]], [6, 6, 6, 2])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_one_query_of_a_chain_takes_its_work(policy):
    found = simulate(CHAIN, policy, PLAIN, clients=1, queries_per_client=3)
    assert found.latency_us == pytest.approx([12.0] * 3)


def test_one_stream_takes_the_work_and_four_take_the_critical_path():
    one = simulate(FORK, POLICIES["TSSS"], PLAIN, clients=1)
    ours = simulate(FORK, RECOS, PLAIN, clients=1)
    assert one.mean_us == pytest.approx(20)
    assert ours.mean_us == pytest.approx(8)


def test_processors_are_shared_by_grid():
    full = work([[], [], []], [6, 6, 6], [56, 56, 56])
    half = work([[], []], [6, 6], [28, 28])
    assert simulate(full, RECOS, PLAIN, clients=1).mean_us == pytest.approx(18)
    assert simulate(half, RECOS, PLAIN, clients=1).mean_us == pytest.approx(6)


@pytest.mark.parametrize("clients", [2, 5, 9])
def test_a_saturated_stream_obeys_littles_law(clients):
    found = simulate(CHAIN, POLICIES["TSSS"], PLAIN, clients=clients, queries_per_client=30)
    assert found.mean_us == pytest.approx(12 * clients, rel=0.02)


def test_no_latency_is_below_the_critical_path_or_the_hosts_work():
    machine = replace(PLAIN, framework_us=10.0, driver_us=2.0)
    for policy in POLICIES.values():
        found = simulate(FORK, policy, machine, clients=3)
        assert found.latency_us.min() >= 4 * 12.0


def test_naive_waiting_and_held_locks_cost_time():
    din = workload("din")
    base = Calibration.named()
    tsms = POLICIES["TSMS"]
    slow = simulate(din, tsms, replace(base, sync_us=300.0), clients=2).mean_us
    assert simulate(din, tsms, replace(base, sync_us=0.0), clients=2).mean_us < slow
    msss = POLICIES["MSSS"]
    free = simulate(din, msss, replace(base, locks=0), clients=15, queries_per_client=4)
    held = simulate(din, msss, base, clients=15, queries_per_client=4)
    assert free.contended_share == 0 < held.contended_share
    assert free.mean_us < held.mean_us


def test_recos_meets_no_held_lock():
    found = simulate(workload("dlrm"), RECOS, Calibration.named(), clients=15, queries_per_client=4)
    assert found.contended_share == 0


def test_the_same_seed_gives_the_same_latencies():
    runs = [simulate(FORK, RECOS, Calibration.named(), clients=4, seed=5) for _ in range(2)]
    assert np.array_equal(runs[0].latency_us, runs[1].latency_us)


def test_an_open_loop_queues_where_it_is_too_fast():
    slow = simulate(CHAIN, RECOS, PLAIN, arrivals_us=arrivals("poisson", 1e6 / 120, 300))
    fast = simulate(CHAIN, RECOS, PLAIN, arrivals_us=arrivals("poisson", 1e6 / 2, 300))
    assert slow.mean_us < 14
    assert fast.mean_us > 5 * slow.mean_us
    assert len(fast.latency_us) == 300


@pytest.mark.parametrize("pattern", PATTERNS)
def test_arrivals_keep_their_mean_rate(pattern):
    times = arrivals(pattern, 1000.0, 5000)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5e6, rel=0.02)
    middle = sum(2.25e6 < t < 2.75e6 for t in times) / 500
    assert (middle > 1.3) == (pattern in ("pulse", "unimodal"))


def test_wrong_calls_are_refused():
    for load in ({}, {"clients": 1, "arrivals_us": [0.0]}):
        with pytest.raises(GraceError, match="closed loop"):
            simulate(CHAIN, RECOS, PLAIN, **load)
    with pytest.raises(GraceError, match="not one of a30"):
        Calibration.named("h999")
    with pytest.raises(GraceError, match="bimodal"):
        arrivals("square", 1.0, 1)


def test_fusing_keeps_order_and_never_adds_work():
    for name in ("dlrm", "wide_deep", "din", "bst"):
        costs = load_costs(name, "a30")
        found = fused(costs.graph, costs.stats)
        assert len(found.graph.ops) < len(costs.graph.ops)
        assert sum(found.stats.times_us) < sum(costs.stats.times_us)
        kept = {op.name for op in found.graph.ops}
        assert {op.name for op in costs.graph.ops if op.kind != "elementwise"} <= kept


def test_figure_3_is_exact_where_the_paper_is():
    rows = {row["row"]: row for row in figure3()["rows"]}
    assert [row for row in rows if rows[row]["exact"]] == list("abcde")
    assert abs(rows["f"]["off_by"]) <= 0.01
    assert rows["f"]["throughput"] == pytest.approx(0.417, abs=1e-3)
    assert rows["g"]["throughput"] == 0.625
    assert rows["g"]["ours"] <= 6.2


def test_table_1_stands_beside_the_papers():
    found = table1()
    assert found["printed"] == {"grid_at_most_28": 0.85, "parallel": 0.78}
    assert abs(found["mean"]["grid_at_most_28"] - 0.85) <= 0.15
    assert abs(found["mean"]["parallel"] - 0.78) <= 0.15


def test_dins_printed_gains_come_out_of_the_calibration():
    machine = Calibration.named()
    ours, one, many = (
        simulate(workload("din"), POLICIES[name], machine, clients=30).mean_us
        for name in ("RecOS", "TSSS", "MSSS")
    )
    assert gain(ours, one) == pytest.approx(46, abs=6)
    assert gain(ours, many) == pytest.approx(44, abs=6)


@pytest.mark.soak
def test_figure_6_from_one_calibration():
    found = figure6()
    assert found["worst_gap_points"] <= 6
    assert all(found["shape"].values())
    assert set(found["latency_us"]) == {"dlrm", "wide_deep", "din", "bst"}
