"""overhead: what the host pays for a lowered model, for a decision, for making a schedule.

Flow: plain and lowered GraphModule take turns at batch 1 (the null backend) -> microseconds for
each operator (below zero where the lowered model's code saves more than its stream calls cost,
which stand beside); RecOS's online decision, by operators and by segments; schedules of 200 and 2,000.
All on one thread: its own processor time is taken, which other processes do not lengthen.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.scheduling.cells import cells
from bench.scheduling.costs import load_costs
from bench.scheduling.random_programs import random_graph
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.lower import Lowered, Run, Use, lower
from grace_torchrec.schedule.online import OnlineScheduler
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.segments import cut
from grace_torchrec.schedule.tracing import op_graph, trace

REPEATS, ROUNDS, QUERIES, STREAMS = 5, 80, 40, 4


def overhead() -> dict[str, Any]:
    """Return all figures, each the least of five."""
    torch.set_num_threads(1)
    lowered = {name: _lowered_us(name) for name in MODELS}
    decisions = {name: _decision_us(name) for name in MODELS}
    by_segment = {name: _segment_us(name) for name in MODELS}
    return {
        "overhead_us_per_op": max(over_plain for over_plain, _ in lowered.values()),
        "overhead_us_per_op_by_model": {name: found[0] for name, found in lowered.items()},
        "stream_calls_us_per_op_by_model": {name: found[1] for name, found in lowered.items()},
        "decision_us_per_op": max(decisions.values()),
        "decision_us_per_op_segment": max(by_segment.values()),
        "decision_us_per_op_segment_by_model": by_segment,
        "schedule_ms_200_ops": _schedule_ms(200),
        "schedule_ms_2000_ops": _schedule_ms(2000),
    }


def _lowered_us(name: str) -> tuple[float, float]:
    """Return a lowered model's time over the plain one's, and what its stream calls take of it.

    Both for each operator, at batch 1, from the least of many turns.
    """
    example = bundled(name, batch=1)
    batch = example.batches[0]
    plain = trace(example.model)
    graph = op_graph(plain, name)
    stats = roofline(plain, graph, batch)
    steps = lower(make_schedule(graph, stats, Machine(STREAMS)))
    silent = Lowered(steps.schedule, tuple(s for s in steps.steps if isinstance(s, Run)))
    lowered, without_calls = to_graph_module(plain, steps), to_graph_module(plain, silent)
    least = dict.fromkeys((plain, lowered, without_calls), float("inf"))
    with torch.inference_mode():
        for _ in range(REPEATS * ROUNDS):
            for module in least:
                start = time.thread_time()
                module(*batch)
                least[module] = min(least[module], time.thread_time() - start)
    over_plain, calls = (least[lowered] - least[other] for other in (plain, without_calls))
    return over_plain * 1e6 / len(graph.ops), calls * 1e6 / len(graph.ops)


def _decision_us(name: str) -> float:
    """Return the time of one decision of the online scheduler, a query's start included."""
    costs = load_costs(name, "a30")
    return _online_us(costs.graph, costs.stats, len(costs.graph.ops))


def _segment_us(name: str) -> float:
    """Return the time of decisions by segments, for each operator in them."""
    schedule = cells("a30")[f"{name}/{STREAMS}"]
    graph, stats = segment_graph(schedule)
    return _online_us(graph, stats, len(schedule.graph.ops))


def _online_us(graph: OpGraph, stats: OpStats, ops: int) -> float:
    """Return the time of a query's launches for each of ``ops`` operators, the least of many."""
    scheduler = OnlineScheduler(graph, stats, STREAMS)
    least = float("inf")
    for _ in range(QUERIES * REPEATS):
        start = time.thread_time()
        for _ in scheduler.begin():
            pass
        least = min(least, time.thread_time() - start)
        for stream, running in enumerate(scheduler.running):
            while running:
                scheduler.complete(stream)
    return least / ops * 1e6


def segment_graph(schedule: Schedule) -> tuple[OpGraph, OpStats]:
    """Return the segments of a schedule as operators of a graph of their own."""
    runs = cut(lower(schedule), Use)
    segment_of = {op: number for number, run in enumerate(runs) for op in run}
    ops, stats = [], []
    for number, run in enumerate(runs):
        inside = [schedule.graph.ops[op] for op in run]
        needs = {segment_of[need] for op in inside for need in op.needs} - {number}
        reads = tuple(dict.fromkeys(name for op in inside for name in op.reads))
        writes = tuple(dict.fromkeys(name for op in inside for name in op.writes))
        name = f"segment{number}"
        ops.append(Op(name, "other", tuple(sorted(needs)), reads=reads, writes=writes))
        stats.append(OpStat(sum(schedule.times_us[op] for op in run)))
    graph = OpGraph(schedule.graph.name, tuple(ops))
    return graph, OpStats.of(graph, stats, "json", "segments")


def _schedule_ms(num_ops: int) -> float:
    """Return the time to schedule a random graph on four streams."""
    rng = random.Random(0)
    graph = random_graph(rng, num_ops)
    costs = [OpStat(rng.uniform(2, 12), bytes_out=rng.randrange(1 << 20)) for _ in graph.ops]
    stats = OpStats.of(graph, costs, "json", "random")
    return _least_s(lambda: make_schedule(graph, stats, Machine(STREAMS))) * 1e3


def _least_s(run: Callable[[], Any]) -> float:
    """Return the shortest time of five runs, after one that does not count."""
    run()
    least = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        run()
        least = min(least, time.thread_time() - start)
    return least
