"""Segments: every operator once, none waits half-way, short ones are joined where an order is left."""

import itertools
import random

import pytest

from bench.scheduling.random_programs import random_graph, random_lowered
from grace_torchrec.schedule.lower import Await, Lowered, Mark, Run, Use, lower
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.segments import Runs, cut, fused, needs_of, ordered


def random_case(seed: int) -> tuple[random.Random, Lowered]:
    rng = random.Random(seed)
    return rng, random_lowered(rng, random_graph(rng, rng.randint(2, 25)), rng.randint(1, 6))


def schedule_of_runs(needs: list[list[int]], streams: tuple[int, ...]) -> Schedule:
    """Operators in the given order; no waits are needed to cut or join."""
    count = len(streams)
    nothing = (0.0,) * count
    return Schedule(
        OpGraph.from_needs(needs), Machine(max(streams) + 1), streams, tuple(range(count)),
        ((),) * count, nothing, nothing,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_a_segment_ends_where_its_stream_changes_waits_or_is_waited_for(seed: int) -> None:
    _, lowered = random_case(seed)
    runs = cut(lowered)
    assert sorted(op for run in runs for op in run) == list(range(len(lowered.schedule.graph.ops)))
    inside = {pair for run in runs for pair in itertools.pairwise(run)}
    before, ends = None, False
    for step in lowered.steps:
        if isinstance(step, Run):
            assert before is None or ((before, step.op) in inside) != ends
            before, ends = step.op, False
        ends |= isinstance(step, Use | Await | Mark)


@pytest.mark.parametrize("seed", range(30))
def test_joined_runs_have_an_order_and_hold_every_operator_after_those_it_needs(seed: int) -> None:
    rng, lowered = random_case(seed)
    graph = lowered.schedule.graph
    times = [rng.uniform(0, 10) for _ in graph.ops]
    parts = cut(lowered)
    for least in (0.0, rng.uniform(0, 30), float("inf")):
        runs = fused(parts, lowered.schedule, times, least)
        assert sorted(op for run in runs for op in run) == list(range(len(graph.ops)))
        assert all(n < place for place, needs in enumerate(needs_of(runs, graph)) for n in needs)
        for run in runs:
            for at, op in enumerate(run):
                assert set(graph.ops[op].needs) & set(run) <= set(run[:at])
        kept = {frozenset(part) for part in parts if sum(times[op] for op in part) >= least}
        if not least:
            assert {frozenset(run) for run in runs} == kept


def plainly_fused(runs: Runs, schedule: Schedule, times: list[float], least: float) -> Runs:
    """What ``fused`` does, with everything looked at anew for each pair."""
    runs = ordered(runs, schedule.graph, schedule.order_n)
    while pair := pair_to_join(runs, schedule, times, least):
        first, second = pair
        runs[first], runs[second] = runs[first] + runs[second], ()
    return ordered([run for run in runs if run], schedule.graph, schedule.order_n)


def pair_to_join(
    runs: Runs, schedule: Schedule, times: list[float], least: float
) -> tuple[int, int] | None:
    us = [sum(times[op] for op in run) for run in runs]
    needs = needs_of(runs, schedule.graph)
    before = [all_before(place, needs) for place in range(len(runs))]
    live = [place for place, run in enumerate(runs) if run]
    for place in sorted((p for p in live if us[p] < least), key=lambda p: (us[p], p)):
        stream = schedule.stream_n[runs[place][0]]
        same = [p for p in live if schedule.stream_n[runs[p][0]] == stream]
        at = same.index(place)
        near = {*needs[place], *(p for p in live if place in needs[p])}
        near |= {*same[max(at - 1, 0) : at], *same[at + 1 : at + 2]}
        for other in sorted(near, key=lambda p: (us[p], p)):
            first, second = sorted((place, other))
            if second in before[first]:
                first, second = second, first
            if not any(first in before[need] for need in needs[second]):
                return first, second
    return None


def all_before(place: int, needs: list[list[int]]) -> set[int]:
    found, left = set(), list(needs[place])
    while left:
        if (need := left.pop()) not in found:
            found.add(need)
            left += needs[need]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_joined_as_if_all_were_looked_at_anew_for_each_pair(seed: int) -> None:
    """Whole microseconds, so that equal times are equal however they are added, and do occur."""
    rng, lowered = random_case(seed)
    times = [float(rng.randint(1, 6)) for _ in lowered.schedule.graph.ops]
    parts = cut(lowered)
    for least in (2.0, 7.0, float(rng.randint(1, 30)), float("inf")):
        wanted = plainly_fused(parts, lowered.schedule, times, least)
        assert fused(parts, lowered.schedule, times, least) == wanted
        assert fused(wanted, lowered.schedule, times, least) == plainly_fused(
            wanted, lowered.schedule, times, least
        )


def test_a_short_run_goes_to_its_shorter_neighbour() -> None:
    schedule = schedule_of_runs([[], [0], [1]], (0, 0, 0))
    runs = [(0,), (1,), (2,)]
    assert fused(runs, schedule, [30.0, 5.0, 20.0], 10.0) == [(0,), (1, 2)]
    assert fused(runs, schedule, [20.0, 5.0, 30.0], 10.0) == [(0, 1), (2,)]
    assert fused(runs, schedule, [20.0, 15.0, 30.0], 10.0) == runs


def test_runs_between_which_a_third_must_run_stay_apart() -> None:
    """0 -> 1 -> 2 and 0 -> 2: joining 0 with 2 would need 1 before and after."""
    schedule = schedule_of_runs([[], [0], [0, 1]], (0, 1, 0))
    runs = [(0,), (1,), (2,)]
    assert fused(runs, schedule, [5.0, 40.0, 6.0], 10.0) == [(0, 1, 2)]
    assert fused(runs, schedule, [5.0, 40.0, 50.0], 10.0) == [(0, 1), (2,)]


def test_cutting_at_waits_lets_branches_run_side_by_side() -> None:
    """One stream's run waits for the other in its middle: launched whole, it would not overlap."""
    graph = OpGraph.from_needs([[], [], [0, 1]])
    nothing = (0.0,) * 3
    schedule = Schedule(graph, Machine(2), (1, 0, 0), (0, 1, 2), ((), (), (0,)), nothing, nothing)
    assert cut(lower(schedule)) == [(0,), (1,), (2,)]
