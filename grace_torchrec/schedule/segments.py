"""Segments: the operators of a schedule in runs that are worth a launch of their own.

Flow: Lowered -> *cut* where streams wait for each other -> *fused* where a run is too short -> runs
of operators, each launched whole (:mod:`grace_torchrec.schedule.segment_program`).
Derived: the paper launches operators; a run spreads what a launch costs over all that are in it.
A run that is launched whole must not wait in its middle, or branches run one after the other; cuts
where the host changes the stream alone (``cut(lowered, Use)``) count the fewest decisions.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from types import UnionType

from grace_torchrec.schedule.lower import Await, Lowered, Mark, Run, Use
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.schedule import Schedule

Runs = list[tuple[int, ...]]


def cut(lowered: Lowered, ends: type | UnionType = Use | Await | Mark) -> Runs:
    """Return the longest runs of operators on one stream that nothing waits for, or in, half-way.

    Args:
        lowered: Steps of a schedule.
        ends: Steps that end a run.
    """
    found: list[list[int]] = [[]]
    for step in lowered.steps:
        if isinstance(step, Run):
            found[-1].append(step.op)
        elif isinstance(step, ends) and found[-1]:
            found.append([])
    return [tuple(run) for run in found if run]


def fused(runs: Runs, schedule: Schedule, times_us: Sequence[float], least_us: float) -> Runs:
    """Join runs that take less than a hand-over with a neighbour, shortest first.

    A neighbour is the run before or behind it on its stream, or one that it needs or that needs it;
    the shorter one is taken.  Two runs become one only if no third must run between them.

    Args:
        runs: Of :func:`cut`.
        schedule: Stream of each operator and the host's order.
        times_us: Time of each operator.
        least_us: What handing a run to a stream costs.

    Returns:
        Runs, each after those it needs.
    """
    while True:
        runs = ordered(runs, schedule.graph, schedule.order_n)
        pair = _pair_to_join(runs, schedule, times_us, least_us)
        if pair is None:
            return runs
        first, second = pair
        kept = [run for place, run in enumerate(runs) if place not in pair]
        runs = [*kept, runs[first] + runs[second]]


def needs_of(runs: Runs, graph: OpGraph) -> list[list[int]]:
    """Return the other runs that each run needs, ascending."""
    run_of = {op: place for place, run in enumerate(runs) for op in run}
    return [
        sorted({run_of[need] for op in run for need in graph.ops[op].needs} - {place})
        for place, run in enumerate(runs)
    ]


def ordered(runs: Runs, graph: OpGraph, order_n: Sequence[int]) -> Runs:
    """Return runs, each after those it needs; else as the host issues their first operators."""
    needs = needs_of(runs, graph)
    issued = {op: place for place, op in enumerate(order_n)}
    users: list[list[int]] = [[] for _ in runs]
    for place, needed in enumerate(needs):
        for need in needed:
            users[need].append(place)
    missing = [len(needed) for needed in needs]
    ready = [(issued[run[0]], place) for place, run in enumerate(runs) if not missing[place]]
    heapify(ready)
    found = []
    while ready:
        _, place = heappop(ready)
        found.append(runs[place])
        for user in users[place]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (issued[runs[user][0]], user))
    assert len(found) == len(runs), "runs need each other in a circle"
    return found


def _pair_to_join(
    runs: Runs, schedule: Schedule, times_us: Sequence[float], least_us: float
) -> tuple[int, int] | None:
    """Return the places of the next two runs to join, in their order; None: all are long enough."""
    times = [sum(times_us[op] for op in run) for run in runs]
    short = sorted((p for p, us in enumerate(times) if us < least_us), key=times.__getitem__)
    if not short:
        return None
    needs = needs_of(runs, schedule.graph)
    before: list[int] = []  # all that each run needs, as bit sets
    for needed in needs:
        before.append(sum(1 << need for need in needed))
        for need in needed:
            before[-1] |= before[need]
    for place in short:
        near = _neighbours(place, runs, needs, schedule.stream_n)
        for other in sorted(near, key=times.__getitem__):
            first, second = sorted((place, other))
            between = (need for need in needs[second] if need != first)
            if not any(before[need] >> first & 1 for need in between):
                return first, second
    return None


def _neighbours(
    place: int, runs: Runs, needs: list[list[int]], stream_n: Sequence[int]
) -> set[int]:
    """Return the runs that one may be joined with, if nothing must run between."""
    stream = stream_n[runs[place][0]]
    same = [other for other, run in enumerate(runs) if stream_n[run[0]] == stream]
    at = same.index(place)
    found = {other for other, needed in enumerate(needs) if place in needed} | set(needs[place])
    return found | set(same[max(at - 1, 0) : at]) | set(same[at + 1 : at + 2])
