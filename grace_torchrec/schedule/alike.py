"""Alike: operators that call the same code follow each other, where that moves nothing else.

Flow: Schedule -> *alike_together* -> Schedule with the same waits, events, switches and makespan.
Between two points at which a stream waits or is waited for, the order of its operators is free as
far as needs and memory go.  The host then runs the same code several times in a row, which its
caches like: an embedding, a ReLU and an embedding again cost more than two and one.  Derived.
"""

from dataclasses import replace
from heapq import heapify, heappop, heappush

from grace_torchrec.schedule.held_bytes import HeldBytes
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.schedule import Schedule, predicted_starts


def alike_together(schedule: Schedule, held: HeldBytes) -> Schedule:
    """Return the schedule with operators of one target next to each other.

    Args:
        schedule: For a machine without a capacity.
        held: What its operators hold; an order over the budget is taken only where the given one
            holds as much.
    """
    graph = schedule.graph
    most = max(held.budget, held.peak(schedule.order_n))
    waited_for = {need for needs in schedule.waits_n for need in needs}
    parts = _parts(schedule, waited_for)
    grouped = [
        _grouped(graph, part, bool(schedule.waits_n[part[0]]), part[-1] in waited_for)
        for part in parts
    ]
    order = [op for part in grouped for op in part]
    if held.peak(order) > most:  # part by part then
        order = []
        for place, part in enumerate(parts):
            rest = [op for later in parts[place + 1 :] for op in later]
            fits = held.peak([*order, *grouped[place], *rest]) <= most
            order += grouped[place] if fits else part
    begin = predicted_starts(graph, schedule.times_us, schedule.stream_n, order, schedule.machine)
    return replace(schedule, order_n=tuple(order), begin_us=tuple(begin))


def _parts(schedule: Schedule, waited_for: set[int]) -> list[list[int]]:
    """Return the host's order in parts: a wait, a switch or an operator waited for divides."""
    parts: list[list[int]] = []
    open_stream = -1
    for op in schedule.order_n:
        stream = schedule.stream_n[op]
        if stream != open_stream or schedule.waits_n[op]:
            parts.append([])
        parts[-1].append(op)
        open_stream = -1 if op in waited_for else stream
    return parts


def _grouped(graph: OpGraph, part: list[int], waits: bool, is_waited_for: bool) -> list[int]:
    """Return a part with its targets in runs; a first that waits stays, as a last waited for."""
    begin, end = int(waits), len(part) - int(is_waited_for)
    middle = part[begin:end]
    if len(middle) < 3:
        return part
    rank = {op: place for place, op in enumerate(middle)}
    missing = {op: sum(need in rank for need in graph.ops[op].needs) for op in middle}
    users: dict[int, list[int]] = {}
    for op in middle:
        for need in graph.ops[op].needs:
            if need in rank:
                users.setdefault(need, []).append(op)
    ready: dict[str, list[int]] = {}  # target -> ranks of its ready operators, a heap each
    for op, count in missing.items():
        if not count:
            ready.setdefault(_target(graph, op), []).append(rank[op])
    for ranks in ready.values():
        heapify(ranks)
    found: list[int] = []
    current = _target(graph, part[0])
    while ready:
        if current not in ready:
            current = min(ready, key=lambda target: ready[target][0])
        op = middle[heappop(ready[current])]
        if not ready[current]:
            del ready[current]
        found.append(op)
        for user in users.get(op, ()):
            missing[user] -= 1
            if not missing[user]:
                heappush(ready.setdefault(_target(graph, user), []), rank[user])
    return [*part[:begin], *found, *part[end:]]


def _target(graph: OpGraph, op: int) -> str:
    """Return what an operator calls, without its settings."""
    return graph.ops[op].target.partition("(")[0]
