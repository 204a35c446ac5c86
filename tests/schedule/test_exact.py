"""The exact search and the tight bound, against brute force over start times."""

import itertools
import random

import pytest

from bench.scheduling.random_graphs import random_problem
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.exact import optimal_makespan, tight_bound
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule


def stats_of(graph, times, grids=None):
    pairs = zip(times, grids or [1] * len(times), strict=True)
    return OpStats.of(graph, [OpStat(float(t), grid=g) for t, g in pairs], "json", "")


def brute_force(graph, stats, streams, capacity):
    """The best of all orders, each operator at the first whole microsecond where it fits."""
    times = [int(t) for t in stats.times_us]
    best = sum(times)
    for order in itertools.permutations(range(len(times))):
        begin = {}
        for op in order:
            if any(need not in begin for need in graph.ops[op].needs):
                break
            start = max((begin[n] + times[n] for n in graph.ops[op].needs), default=0)
            while True:
                for at in range(start, start + times[op]):
                    beside = [o for o, b in begin.items() if b <= at < b + times[o]]
                    blocks = sum(min(stats.grids[o], capacity) for o in (*beside, op))
                    if len(beside) >= streams or (capacity and blocks > capacity):
                        start += 1
                        break
                else:
                    break
            begin[op] = start
        else:
            best = min(best, max(begin[o] + times[o] for o in begin))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_brute_force(seed):
    rng = random.Random(seed)
    graph, stats, machine = random_problem(rng, 5, 6)
    wanted = brute_force(graph, stats, machine.streams, machine.capacity)
    assert optimal_makespan(graph, stats, machine.streams, machine.capacity) == wanted


def test_two_streams_of_the_papers_figure_3_need_four_units():
    graph = OpGraph.from_needs([[], [0], [1], [2], [], [2]])
    assert optimal_makespan(graph, stats_of(graph, [1] * 6), 2) == 4


def test_the_longest_first_is_not_always_best():
    graph = OpGraph.from_needs([[] for _ in range(5)])
    assert optimal_makespan(graph, stats_of(graph, [3, 3, 2, 2, 2]), 2) == 6


@pytest.mark.parametrize("times", [[1.5, 1], [1] * 17])
def test_what_is_too_large_or_not_whole_is_refused(times):
    graph = OpGraph.from_needs([[] for _ in times])
    with pytest.raises(GraceError, match="exact schedule"):
        optimal_makespan(graph, stats_of(graph, times), 2)


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_beats_the_tight_bound_and_it_beats_the_plain_one(seed):
    rng = random.Random(seed)
    graph, stats, machine = random_problem(rng, 8, 12)
    tight = tight_bound(graph, stats, machine.streams)
    plain = make_schedule(graph, stats, Machine(machine.streams, wait_us=0))
    assert plain.bound_us <= tight + 1e-9
    assert tight <= optimal_makespan(graph, stats, machine.streams) + 1e-9
    assert tight <= plain.makespan_us + 1e-9
