"""What an order holds, and orders that hold little: alike ones together, few switches, in budget."""

import itertools
import random

import pytest

from bench.scheduling.costs import load_costs
from bench.scheduling.random_programs import random_graph
from grace_torchrec.schedule.alike import alike_together
from grace_torchrec.schedule.held_bytes import held_bytes
from grace_torchrec.schedule.issue_order import count_switches, fewest_waits, with_few_switches
from grace_torchrec.schedule.lifetimes import (
    lifetimes,
    peak_bytes,
    peak_over_single_stream,
    pools_over_single_stream,
)
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.schedule import Machine, Schedule, predicted_starts, single_stream
from grace_torchrec.schedule.search import make_schedule

BRANCHES, LENGTH = 4, 5


def branches():
    """Branches of large values that meet at the end: all at once they hold BRANCHES times one."""
    ops, sizes = [], []
    for branch in range(BRANCHES):
        for place in range(LENGTH):
            needs = (len(ops) - 1,) if place else ()
            ops.append(Op(f"b{branch}_{place}", "other", needs, target=f"kind{place}(x)"))
            sizes.append(1 if place == LENGTH - 1 else 1000)
    ends = tuple(range(LENGTH - 1, len(ops), LENGTH))
    ops.append(Op("end", "other", ends, target="cat"))
    graph = OpGraph("branches", tuple(ops))
    stats = [OpStat(10.0, bytes_out=size) for size in (*sizes, 1)]
    return graph, OpStats.of(graph, stats, "json", "")


def random_costs(rng, graph):
    return OpStats.of(
        graph, [OpStat(rng.uniform(2, 12), bytes_out=rng.randrange(9999)) for _ in graph.ops],
        "json", "",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_on_one_stream_it_is_what_the_lowered_model_holds(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(1, 40))
    stats = random_costs(rng, graph)
    alone = lower(single_stream(graph, stats, Machine(1), "one"))
    exact = peak_bytes(lifetimes(alone, [stat.bytes_out for stat in stats.stats]))
    assert held_bytes(graph, stats).one_stream == exact


@pytest.mark.parametrize("streams", [2, 4])
def test_branches_run_side_by_side_and_are_issued_one_after_the_other(streams):
    graph, stats = branches()
    schedule = make_schedule(graph, stats, Machine(streams))
    assert schedule.makespan_us <= 1.15 * schedule.bound_us
    lowered = lower(schedule)
    assert peak_over_single_stream(lowered, stats) <= 1.1
    assert pools_over_single_stream(lowered, stats) > 0.8 * schedule.num_streams
    breadth_first = [b * LENGTH + p for p in range(LENGTH) for b in range(BRANCHES)]
    held = held_bytes(graph, stats)
    assert held.over_budget([*breadth_first, len(graph.ops) - 1]) > 1


@pytest.mark.parametrize("seed", range(40))
def test_an_order_within_the_budget_is_regrouped_within_it(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 60))
    held = held_bytes(graph, random_costs(rng, graph))
    streams = rng.randint(2, 4)
    order = list(range(len(graph.ops)))
    stream_n = [rng.randrange(streams) for _ in order]
    waits = fewest_waits(graph.needs, stream_n, order, streams)
    found = held.regrouped(order, stream_n, waits, streams)
    assert held.peak(found) <= max(held.budget, held.one_stream)
    assert sorted(found) == order
    rank = {op: place for place, op in enumerate(found)}
    assert all(rank[need] < rank[op] for op in order for need in graph.ops[op].needs)
    for stream in range(streams):
        own = [op for op in found if stream_n[op] == stream]
        assert own == sorted(own)
    calm = with_few_switches(stream_n, order, waits, streams)
    if held.peak(calm) <= held.budget:
        assert count_switches(stream_n, found) <= count_switches(stream_n, order)


def random_schedule(rng, num_ops):
    """A schedule with targets of three kinds on random streams."""
    plain = random_graph(rng, num_ops)
    ops = [Op(op.name, op.kind, op.needs, target=f"{rng.choice('abc')}(7)") for op in plain.ops]
    graph, streams = OpGraph("random", tuple(ops)), rng.randint(1, 4)
    stats = random_costs(rng, graph)
    stream_n = [rng.randrange(streams) for _ in ops]
    order = list(range(num_ops))
    waits = fewest_waits(graph.needs, stream_n, order, streams)
    order = with_few_switches(stream_n, order, waits, streams)
    times, machine = stats.times_us, Machine(streams)
    begin = predicted_starts(graph, times, stream_n, order, machine)
    schedule = Schedule(
        graph, machine, tuple(stream_n), tuple(order), waits, tuple(begin), tuple(times)
    )
    return schedule, stats


def changes(schedule):
    """Neighbours on one stream that call different code."""
    ops, stream_n = schedule.graph.ops, schedule.stream_n
    pairs = itertools.pairwise(schedule.order_n)
    return sum(ops[a].target != ops[b].target for a, b in pairs if stream_n[a] == stream_n[b])


@pytest.mark.parametrize("seed", range(40))
def test_alike_operators_come_together_and_nothing_else_changes(seed):
    rng = random.Random(seed)
    schedule, stats = random_schedule(rng, rng.randint(2, 60))
    held = held_bytes(schedule.graph, stats)
    found = alike_together(schedule, held)
    assert found.makespan_us == pytest.approx(schedule.makespan_us)
    assert (found.waits_n, found.num_events) == (schedule.waits_n, schedule.num_events)
    assert found.num_switches == schedule.num_switches
    assert held.peak(found.order_n) <= max(held.budget, held.peak(schedule.order_n))
    again = fewest_waits(
        schedule.graph.needs, found.stream_n, found.order_n, schedule.machine.streams
    )
    assert [set(needs) for needs in again] == [set(needs) for needs in schedule.waits_n]


def test_wide_deeps_tables_are_not_mixed_with_its_other_operators(schedule_of):
    schedule = schedule_of("wide_deep", 4)
    mixed = sum(
        schedule.graph.ops[a].kind != schedule.graph.ops[b].kind
        for a, b in itertools.pairwise(schedule.order_n)
    )
    assert mixed <= 50 < len(schedule.graph.ops)
    assert load_costs("wide_deep").graph == schedule.graph
