"""Random programs for the race check: sound ones, and ones that were broken on purpose.

Flow: seed -> random graph on random streams -> lowered -> *Program*, whole or with a part missing.
"""

import random
from dataclasses import replace

from grace_torchrec.schedule.in_flight import products
from grace_torchrec.schedule.issue_order import fewest_waits, with_few_switches
from grace_torchrec.schedule.lower import Lowered, Release, Retire, lower
from grace_torchrec.schedule.op_graph import Op, OpGraph, order_by_resource
from grace_torchrec.schedule.program import HostSync, Program
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.telling import to_program

KINDS = ("sound", "wait left out", "let go too early", "host instead of wait", "two in flight")


def random_graph(rng: random.Random, num_ops: int, caches: int = 0) -> OpGraph:
    """Return a random graph; the first ``caches`` operators each write a cache of their own.

    Args:
        rng: Source of the draws.
        num_ops: Operators.
        caches: Tables with a cache; roots.
    """
    ops = []
    for place in range(num_ops):
        chance = min(1.0, 8 / (place + 1)) * 0.25
        needs = () if place < caches else tuple(j for j in range(place) if rng.random() < chance)
        writes = (f"cache {place}",) if place < caches else ()
        in_place = rng.choice(needs) if needs and rng.random() < 0.05 else -1
        ops.append(Op(f"v{place}", "other", needs, writes=writes, in_place_of=in_place))
    return OpGraph("random", _in_place_last(order_by_resource(ops)))


def random_lowered(
    rng: random.Random, graph: OpGraph, streams: int, pins: dict[int, int] | None = None
) -> Lowered:
    """Lower a graph with every operator on a random stream, and random order.

    Args:
        rng: Source of the draws.
        graph: Operators.
        streams: Streams.
        pins: Operator -> its stream.
    """
    stream_n = [rng.randrange(streams) for _ in graph.ops]
    for op, stream in (pins or {}).items():
        stream_n[op] = stream
    order = _random_order(rng, graph)
    waits = fewest_waits(graph.needs, stream_n, order, streams)
    if rng.random() < 0.5:
        order = with_few_switches(stream_n, order, waits, streams)
    nothing = (0.0,) * len(order)
    machine = Machine(max(stream_n, default=0) + 1)
    schedule = Schedule(graph, machine, tuple(stream_n), tuple(order), waits, nothing, nothing)
    return lower(schedule)


def random_program(rng: random.Random) -> tuple[str, Program]:
    """Return a kind and a program of that kind."""
    graph = random_graph(rng, rng.randint(3, 16), rng.choice((0, 0, 2)))
    streams = rng.randint(2, 5)
    lowered = random_lowered(rng, graph, streams)
    kind = rng.choice(KINDS)
    if kind == "two in flight":
        other = lowered if rng.random() < 0.5 else random_lowered(rng, graph, streams)
        parts = [to_program(lowered, 0), to_program(other, 1)]
        return kind, rng.choice(products(parts, rng.randrange(1000)))
    if kind == "let go too early":
        steps = tuple(s for s in lowered.steps if not isinstance(s, (Release, Retire)))
        return kind, to_program(replace(lowered, steps=steps))
    program = to_program(lowered)
    waits = program.waits()
    if not waits or kind == "sound":
        return "sound", program
    if kind == "wait left out":
        return kind, program.without(rng.choice(waits))
    place = rng.choice(waits)
    told = list(program.instructions)
    told[place] = HostSync(told[place].event)  # type: ignore[union-attr]
    return kind, replace(program, instructions=tuple(told))


def _in_place_last(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Keep an in-place operator only where it is the last reader of a value of its own."""
    kept = []
    for place, op in enumerate(ops):
        base = op.in_place_of
        users = [other for other, o in enumerate(ops) if base in o.needs and base >= 0]
        alone = base >= 0 and ops[base].in_place_of < 0 and users == [place]
        kept.append(op if alone else replace(op, in_place_of=-1))
    return tuple(kept)


def _random_order(rng: random.Random, graph: OpGraph) -> list[int]:
    """Return a random order that respects the needs."""
    missing = [len(op.needs) for op in graph.ops]
    users = graph.needed_by()
    ready = [op for op, count in enumerate(missing) if not count]
    order = []
    while ready:
        op = ready.pop(rng.randrange(len(ready)))
        order.append(op)
        for user in users[op]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return order
