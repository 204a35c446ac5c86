"""Fusing: a model's operators as a compiler would leave them, for the simulator.

Flow: OpGraph + OpStats -> *Workload*.  Source: RecOS, IJCAI'25, section 4.1: production models are
first optimised by tools such as TVM.  Derived: which operators are joined and what that saves.
"""

from dataclasses import dataclass

from grace_torchrec.schedule.op_graph import Op, OpGraph, order_by_resource
from grace_torchrec.schedule.op_stats import OpStat, OpStats


@dataclass(frozen=True)
class Workload:
    """A model as the simulator sees it."""

    graph: OpGraph
    stats: OpStats


def fused(graph: OpGraph, stats: OpStats, fixed_us: float = 2.0) -> Workload:
    """Join elementwise operators to the one they follow alone, as the paper's models are (TVM).

    A joined operator adds its time beyond ``fixed_us``, the shortest a kernel takes by itself.
    """
    users = graph.needed_by()
    head = list(range(len(graph.ops)))
    for place, op in enumerate(graph.ops):
        if op.kind == "elementwise" and op.needs:
            last = max(op.needs, key=lambda need: (stats.stats[need].time_us, need))
            if users[last] == [place] and all(n == last or head[n] < head[last] for n in op.needs):
                head[place] = head[last]
    kept = [place for place in range(len(head)) if head[place] == place]
    number = {place: k for k, place in enumerate(kept)}
    ops, costs = [], []
    for place in kept:
        members = [k for k in range(len(head)) if head[k] == place]
        needs = {number[head[n]] for k in members for n in graph.ops[k].needs} - {number[place]}
        own = [stats.stats[k] for k in members]
        time_us = own[0].time_us + sum(max(0.0, s.time_us - fixed_us) for s in own[1:])
        grid, size = max(s.grid for s in own), own[-1].bytes_out
        costs.append(OpStat(time_us, own[0].launch_us, grid, size))
        ops.append((place, needs))
    return _in_order(graph, ops, costs, stats)


def _in_order(
    graph: OpGraph, ops: list[tuple[int, set[int]]], costs: list[OpStat], stats: OpStats
) -> Workload:
    """Sort fused operators so that each follows those it needs."""
    rank: list[int] = []
    left = dict(enumerate(ops))
    while left:
        ready = [k for k, (_, needs) in left.items() if needs <= set(rank)]
        rank += ready
        left = {k: v for k, v in left.items() if k not in set(ready)}
    place_of = {k: place for place, k in enumerate(rank)}
    sorted_ops = []
    for k in rank:
        op = graph.ops[ops[k][0]]
        needs = tuple(sorted(place_of[n] for n in ops[k][1]))
        sorted_ops.append(Op(op.name, op.kind, needs, op.target, op.nodes, op.reads, op.writes))
    fused_graph = OpGraph(graph.name, order_by_resource(sorted_ops))
    found = OpStats.of(fused_graph, [costs[k] for k in rank], stats.source, stats.device)
    return Workload(fused_graph, found)
