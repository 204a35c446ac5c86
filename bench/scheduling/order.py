"""order: how far from the shortest schedule, and never worse than the model's own order.

Flow: random graphs -> schedule, exact optimum -> mean and p95 of their ratio; and, on many more
graphs, the list schedule of the topological order beside ours.
"""

import random
from typing import Any

import numpy as np

from bench.scheduling.random_graphs import random_problem
from grace_torchrec.schedule.exact import optimal_makespan
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import list_schedule, make_schedule

GRAPHS, COMPARED = 400, 10_000


def order(graphs: int = GRAPHS, compared: int = COMPARED, seed: int = 0) -> dict[str, Any]:
    """Compare with the optimum and with the topological order.

    Args:
        graphs: Graphs whose optimum is searched.
        compared: Graphs compared with the topological order.
        seed: Of the graphs.
    """
    rng = random.Random(seed)
    ratios, policies = [], dict.fromkeys(("topological", "dep_local", "dep_recursive"), 0.0)
    policies |= dict.fromkeys(("time_to_end", "opara"), 0.0)
    for _ in range(graphs):
        graph, stats, machine = random_problem(rng)
        ours = make_schedule(graph, stats, machine).makespan_us
        best = optimal_makespan(graph, stats, machine.streams, machine.capacity, ours)
        ratios.append(ours / best)
        for name in policies:
            policies[name] += list_schedule(graph, stats, machine, name) / best / graphs
    worse = sum(_worse(*random_problem(rng, 8, 24)) for _ in range(compared))
    return {
        "graphs": graphs,
        "mean": float(np.mean(ratios)),
        "p95": float(np.quantile(ratios, 0.95)),
        "worst": max(ratios),
        "optimal_share": float(np.mean(np.array(ratios) <= 1 + 1e-9)),
        "compared": compared,
        "worse_than_topological": worse,
        "mean_of_one_list_schedule": policies,
    }


def _worse(graph: OpGraph, stats: OpStats, machine: Machine) -> bool:
    """Return whether ours is longer than the list schedule of the model's own order."""
    ours = make_schedule(graph, stats, machine, starts=4, steps=0).makespan_us
    return ours > list_schedule(graph, stats, machine, "topological") + 1e-9
