"""order: how far from the shortest schedule, and never longer than the model's own order.

Flow: random graphs -> the schedule that a model would get, exact optimum -> mean and p95 of their
ratio; and, on many more graphs, the list schedule of the topological order beside ours.  The optimum
knows no waits: with a wait, the ratio counts what no schedule can avoid too.
"""

import random
from dataclasses import replace
from typing import Any

import numpy as np

from bench.scheduling.random_graphs import random_problem
from grace_torchrec.schedule.exact import optimal_makespan
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import list_schedule, make_schedule

GRAPHS, COMPARED = 400, 10_000
OPS, COMPARED_OPS = (8, 14), (8, 24)  # the optimum of larger ones takes too long
WAITS_US = (0.0, Machine().wait_us, 3.0)


def order(graphs: int = GRAPHS, compared: int = COMPARED, seed: int = 0) -> dict[str, Any]:
    """Compare with the optimum and with the topological order.

    Args:
        graphs: Graphs whose optimum is searched, each scheduled for every wait.
        compared: Graphs compared with the topological order, the waits in turn.
        seed: Of the graphs.
    """
    rng = random.Random(seed)
    ratios: dict[float, list[float]] = {wait: [] for wait in WAITS_US}
    policies = dict.fromkeys(
        ("topological", "dep_local", "dep_recursive", "time_to_end", "opara"), 0.0
    )
    for _ in range(graphs):
        graph, stats, machine = _problem(rng, OPS, 0.0)
        best = optimal_makespan(graph, stats, machine.streams)
        for wait in WAITS_US:
            ours = make_schedule(graph, stats, replace(machine, wait_us=wait))
            ratios[wait].append(ours.makespan_us / best)
        for name in policies:
            policies[name] += list_schedule(graph, stats, machine, name) / best / graphs
    waits = (WAITS_US[number % len(WAITS_US)] for number in range(compared))
    worse = sum(_worse(*_problem(rng, COMPARED_OPS, wait)) for wait in waits)
    return {
        "graphs": graphs,
        "ops": OPS,
        **_told(ratios[0.0]),
        "over_optimum_without_waits": {
            f"wait {wait:g} us": _told(ratios[wait]) for wait in WAITS_US
        },
        "compared": compared,
        "ops_compared": COMPARED_OPS,
        "worse_than_topological": worse,
        "mean_of_one_list_schedule": policies,
    }


def _problem(
    rng: random.Random, ops: tuple[int, int], wait_us: float
) -> tuple[OpGraph, OpStats, Machine]:
    """Return a random graph, its costs, and a machine as models are scheduled for: no capacity."""
    graph, stats, machine = random_problem(rng, *ops)
    return graph, stats, Machine(machine.streams, wait_us)


def _told(ratios: list[float]) -> dict[str, float]:
    """Return how far the schedules are from the optimum."""
    return {
        "mean": float(np.mean(ratios)),
        "p95": float(np.quantile(ratios, 0.95)),
        "worst": max(ratios),
        "optimal_share": float(np.mean(np.array(ratios) <= 1 + 1e-9)),
    }


def _worse(graph: OpGraph, stats: OpStats, machine: Machine) -> bool:
    """Return whether ours is longer than the list schedule of the model's own order."""
    ours = make_schedule(graph, stats, machine).makespan_us
    return ours > list_schedule(graph, stats, machine, "topological") + 1e-9
