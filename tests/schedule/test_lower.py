"""Lowering: fork and join, waits, values held until their stream knows."""

import random
from dataclasses import replace

import pytest

from bench.scheduling.events import fewest_possible
from bench.scheduling.random_programs import random_graph, random_lowered
from grace_torchrec.schedule.in_flight import prove
from grace_torchrec.schedule.issue_order import count_switches, fewest_waits, with_few_switches
from grace_torchrec.schedule.lower import FORK, Await, Mark, Release, Retire, Run, Use, lower
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.race_check import find_races
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.telling import to_program


def lowered_of(graph, streams, order=None):
    order = order or range(len(streams))
    waits = fewest_waits(graph.needs, streams, order, max(streams) + 1)
    nothing = (0.0,) * len(streams)
    machine = Machine(max(streams) + 1)
    return lower(Schedule(graph, machine, tuple(streams), tuple(order), waits, nothing, nothing))


def test_a_side_branch_forks_joins_and_is_held():
    graph = OpGraph.from_needs([[], [0], [0], [1, 2]])
    assert lowered_of(graph, (0, 0, 1, 0)).steps == (
        Run(0),
        Mark(0),
        Run(1),
        Use(1),
        Await(0),
        Run(2),
        Mark(2),
        Use(0),
        Await(2),
        Release((0,)),
        Run(3),
        Retire((2,)),
    )


def test_a_stream_that_waits_for_nothing_is_forked():
    steps = lowered_of(OpGraph.from_needs([[], [], [0, 1]]), (0, 1, 0)).steps
    assert steps[0] == Mark(FORK)
    assert steps.index(Await(FORK)) < steps.index(Run(1))


def test_a_result_on_another_stream_is_joined():
    lowered = lowered_of(OpGraph.from_needs([[], [0], [0]]), (0, 1, 0))
    assert lowered.steps[-4:] == (Mark(1), Use(0), Await(1), Release((0,)))
    assert find_races(to_program(lowered)) == []


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_are_free_of_races_with_the_fewest_waits(seed):
    rng = random.Random(seed)
    lowered = random_lowered(rng, random_graph(rng, rng.randint(2, 25)), rng.randint(1, 6))
    assert prove(lowered, 2).races == ()
    fork = Await(FORK)
    forks = sum(step == fork for step in lowered.steps)
    assert lowered.count(Await) == fewest_possible(lowered.schedule)
    assert forks <= lowered.schedule.num_streams - 1


def test_letting_go_at_the_last_use_is_a_race():
    rng = random.Random(2)
    found = 0
    for _ in range(30):
        lowered = random_lowered(rng, random_graph(rng, 12), 3)
        kept = tuple(s for s in lowered.steps if not isinstance(s, (Release, Retire)))
        found += bool(find_races(to_program(replace(lowered, steps=kept))))
    assert found >= 25


def test_memory_of_an_in_place_operator_is_that_of_its_base():
    ops = (
        Op("a", "other", ()),
        Op("b", "other", (0,)),
        Op("a_", "other", (0, 1), in_place_of=0),
        Op("c", "other", (2,)),
    )
    lowered = lowered_of(OpGraph("g", ops), (0, 1, 0, 1))
    assert prove(lowered).races == ()
    waits = to_program(lowered).waits()
    assert all(find_races(to_program(lowered).without(place)) for place in waits)


def test_staying_on_a_stream_saves_switches_and_keeps_each_streams_order():
    streams, order = [0, 1] * 10, list(range(20))
    waits = ((),) * 20
    calm = with_few_switches(streams, order, waits, 2)
    assert count_switches(streams, order) == 20
    assert count_switches(streams, calm) == 2
    assert [op for op in calm if streams[op]] == [op for op in order if streams[op]]


def test_waits_are_issued_after_what_they_wait_for():
    rng = random.Random(9)
    for _ in range(50):
        lowered = random_lowered(rng, random_graph(rng, 20), 4)
        marked = set()
        for step in lowered.steps:
            if isinstance(step, Mark):
                marked.add(step.event)
            if isinstance(step, Await):
                assert step.event in marked
