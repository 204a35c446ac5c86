"""events: what the host is asked for, by the very schedules of ``bound``.

Flow: schedules -> lowered steps -> events, waits and switches for each operator, fork and join
included; the fewest waits are counted apart, by transitive reduction with reachability.
"""

import itertools
from typing import Any

from bench.scheduling.cells import cells
from grace_torchrec.schedule.lower import Await, lower
from grace_torchrec.schedule.schedule import Schedule


def events() -> dict[str, Any]:
    """Return the worst cell of each figure, and all cells."""
    found: list[dict[str, Any]] = []
    for name, schedule in cells().items():
        lowered = lower(schedule)
        fewest = fewest_possible(schedule)
        waits = lowered.count(Await)
        figures = {
            "cell": name,
            **lowered.figures,
            "waits": waits,
            "fewest_waits": fewest,
            "waits_over_minimum": waits / fewest if fewest else 1.0,
        }
        found.append(figures)
    worst = ("events_per_op", "switches_per_op", "waits_over_minimum")
    return {name: max(cell[name] for cell in found) for name in worst} | {"cells": found}


def fewest_possible(schedule: Schedule) -> int:
    """Count the waits that no lowering of these streams can do without.

    Nodes are the fork, the operators and the join; an edge between streams that no path replaces
    needs a wait of its own.
    """
    count = len(schedule.graph.ops)
    fork, join = count, count + 1
    stream = [*schedule.stream_n, 0, 0]
    edges: set[tuple[int, int]] = set()
    for op, needed in enumerate(schedule.graph.needs):
        edges |= {(need, op) for need in needed}
    for each in range(schedule.num_streams):
        own = [op for op in schedule.order_n if schedule.stream_n[op] == each]
        chain = [fork, *own, join]
        edges |= set(itertools.pairwise(chain))
    order = [fork, *schedule.order_n, join]
    reach = dict.fromkeys(order, 0)
    after: dict[int, list[int]] = {node: [] for node in order}
    for a, b in edges:
        after[a].append(b)
    for node in reversed(order):
        for b in after[node]:
            reach[node] |= reach[b] | 1 << b
    return sum(
        stream[a] != stream[b]
        and not any(reach[other] >> b & 1 for other in after[a] if other != b)
        for a, b in edges
    )
