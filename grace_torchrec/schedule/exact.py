"""The shortest schedule of a small graph, by branch and bound: what every heuristic is held to.

Flow: OpGraph + OpStats -> *optimal makespan* -> tests and ``bench schedule --what order``.
At each moment when an operator ends, every set of ready operators that fits may start, none too.
A machine has S streams and, if ``capacity`` is given, so many blocks at once.  Up to 16 operators.
"""

from math import ceil

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.priority import time_to_end

MOST_OPS = 16


def optimal_makespan(
    graph: OpGraph, stats: OpStats, streams: int, capacity: int = 0, upper: float = float("inf")
) -> float:
    """Return the makespan of a shortest schedule, in microseconds.

    Args:
        graph: At most 16 operators; their times must be whole microseconds.
        stats: Times and grids (a grid counts for no more than ``capacity``).
        streams: Operators that run at once.
        capacity: Blocks that run at once; 0 is no limit.
        upper: Makespan of a known schedule: speeds the search up.

    Raises:
        GraceError: the graph is too large, or a time is not whole.
    """
    times = stats.times_us
    if len(graph.ops) > MOST_OPS or any(time != int(time) for time in times):
        raise GraceError(
            f"exact schedule: {len(graph.ops)} operators; give at most {MOST_OPS} with whole times"
        )
    return _Search(graph, stats, streams, capacity, upper).run()


def tight_bound(graph: OpGraph, stats: OpStats, streams: int) -> float:
    """Return a makespan that no schedule on ``streams`` streams can beat, in microseconds.

    Operators that cannot start before r and are followed by work of q take at least
    r + their work / streams + q: the largest such value over all r and q.  With r = q = 0 and
    with single operators it is the usual max(critical path, work / streams).

    Args:
        graph: Operators.
        stats: Their times.
        streams: Number of streams.
    """
    times = np.array(stats.times_us)
    tail = time_to_end(graph, stats) - times
    head = np.zeros(times.size)
    for place, op in enumerate(graph.ops):
        head[place] = max((head[need] + times[need] for need in op.needs), default=0.0)
    best = float((head + times + tail).max(initial=0.0))
    for least_head in np.unique(head):
        late = head >= least_head
        for least_tail in np.unique(tail[late]):
            work = times[late & (tail >= least_tail)].sum()
            best = max(best, float(least_head + work / streams + least_tail))
    return best


class _Search:
    """State of one branch and bound."""

    def __init__(
        self, graph: OpGraph, stats: OpStats, streams: int, capacity: int, upper: float
    ) -> None:
        self.times = [int(time) for time in stats.times_us]
        self.streams, self.capacity = streams, capacity
        self.demand = [min(grid, capacity) if capacity else 0 for grid in stats.grids]
        self.tail = [int(level) for level in time_to_end(graph, stats)]
        self.need_bits = [sum(1 << need for need in op.needs) for op in graph.ops]
        self.users = graph.needed_by()
        self.best = upper
        self.lower = self._bound(0, (), tuple(range(len(graph.ops))))
        self.seen: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    def run(self) -> float:
        """Search; return the best makespan."""
        if self.best > self.lower:
            self._visit(0, (), (1 << len(self.times)) - 1)
        return float(self.best)

    def _bound(
        self, now: int, running: tuple[tuple[int, int], ...], waiting: tuple[int, ...]
    ) -> int:
        """Return a makespan that no continuation can beat."""
        bound = now
        left = sum(self.times[op] for op in waiting)
        blocks = sum(self.times[op] * self.demand[op] for op in waiting)
        for end, op in running:
            bound = max(bound, end - self.times[op] + self.tail[op])
            left += end - now
            blocks += (end - now) * self.demand[op]
        bound = max(bound, now + ceil(left / self.streams))
        if self.capacity:
            bound = max(bound, now + ceil(blocks / self.capacity))
        for op in waiting:
            bound = max(bound, now + self.tail[op])
        return bound

    def _visit(self, now: int, running: tuple[tuple[int, int], ...], waiting: int) -> None:
        """Continue from a moment at which an operator has just ended.

        Args:
            now: Time.
            running: (end, operator), by end.
            waiting: Bit set of the operators that have not started.
        """
        if not waiting:
            self.best = min(self.best, max((end for end, _ in running), default=now))
            return
        names = tuple(op for op in range(len(self.times)) if waiting >> op & 1)
        if self.best <= self.lower or self._bound(now, running, names) >= self.best:
            return
        state = (waiting, tuple((end - now, op) for end, op in running))
        if self.seen.get(state, now + 1) <= now:
            return
        self.seen[state] = now
        blocked = waiting | sum(1 << op for _, op in running)
        ready = [op for op in names if not self.need_bits[op] & blocked]
        ready.sort(key=lambda op: -self.tail[op])
        for chosen in self._sets(ready, running):
            if not chosen and not running:
                continue
            started = [(now + self.times[op], op) for op in chosen]
            after = sorted([*running, *started])
            then = after[0][0]
            left = waiting & ~sum(1 << op for op in chosen)
            self._visit(then, tuple(pair for pair in after if pair[0] > then), left)

    def _sets(
        self, ready: list[int], running: tuple[tuple[int, int], ...]
    ) -> list[tuple[int, ...]]:
        """Return the sets of ready operators that fit, the most urgent first."""
        free = self.streams - len(running)
        room = self.capacity - sum(self.demand[op] for _, op in running)
        found: list[tuple[int, ...]] = []
        stack: list[tuple[int, tuple[int, ...], int]] = [(0, (), room)]
        while stack:
            place, chosen, left = stack.pop()
            if place == len(ready):
                found.append(chosen)
                continue
            op = ready[place]
            stack.append((place + 1, chosen, left))
            if len(chosen) < free and self.demand[op] <= left:
                stack.append((place + 1, (*chosen, op), left - self.demand[op]))
        found.sort(key=lambda chosen: -sum(self.tail[op] for op in chosen))
        return found
