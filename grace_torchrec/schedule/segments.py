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
    the shorter one is taken.  Two runs become one only if no third must run between them.  A joined
    run has the stream, and the place among the others, of its first part.

    Args:
        runs: Of :func:`cut`.
        schedule: Stream of each operator and the host's order.
        times_us: Time of each operator.
        least_us: What handing a run to a stream costs.

    Returns:
        Runs, each after those it needs.
    """
    found = _Joining(ordered(runs, schedule.graph, schedule.order_n), schedule, times_us)
    found.join_short(least_us)
    return ordered([run for run in found.runs if run], schedule.graph, schedule.order_n)


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


class _Joining:
    """Runs while they are joined, by their places; what was joined to another run is left empty.

    A run that needs others can be joined with the last of them, and so with the first of those that
    need it: nothing must run between.  So only a run with no neighbour at all is never joined.

    Args:
        runs: Each after those it needs.
        schedule: Stream of each operator.
        times_us: Time of each operator.
    """

    def __init__(self, runs: Runs, schedule: Schedule, times_us: Sequence[float]) -> None:
        self.runs = list(runs)
        self.times_us = [sum(times_us[op] for op in run) for run in runs]
        self.needs = [set(needed) for needed in needs_of(runs, schedule.graph)]
        self.users: list[set[int]] = [set() for _ in runs]
        self.before = [0] * len(runs)  # all that a run needs, in any number of steps, as bit sets
        self.previous, self.next = [-1] * len(runs), [-1] * len(runs)  # on its stream
        last: dict[int, int] = {}
        for place, run in enumerate(runs):
            for need in self.needs[place]:
                self.users[need].add(place)
                self.before[place] |= self.before[need] | 1 << need
            stream = schedule.stream_n[run[0]]
            self._link(last.get(stream, -1), place)
            last[stream] = place

    def join_short(self, least_us: float) -> None:
        """Join runs shorter than ``least_us`` until none of them can be."""
        short = [(us, place) for place, us in enumerate(self.times_us) if us < least_us]
        heapify(short)
        while short:
            us, place = heappop(short)
            if not self.runs[place] or self.times_us[place] != us:
                continue  # it was joined meanwhile
            pair = self._pair(place)
            if pair is not None:
                self._join(*pair)
                if self.times_us[pair[0]] < least_us:
                    heappush(short, (self.times_us[pair[0]], pair[0]))

    def _pair(self, place: int) -> tuple[int, int] | None:
        """Return a run and the shortest it can be joined with, in their order, if there is any."""
        beside = {self.previous[place], self.next[place]} - {-1}
        near = beside | self.needs[place] | self.users[place]
        for _, other in sorted((self.times_us[other], other) for other in near):
            first, second = sorted((place, other))
            if self.before[first] >> second & 1:
                first, second = second, first
            if not any(self.before[need] >> first & 1 for need in self.needs[second]):
                return first, second
        return None

    def _join(self, first: int, second: int) -> None:
        """Join two runs: the second becomes part of the first."""
        self._link(self.previous[second], self.next[second])
        self.runs[first], self.runs[second] = self.runs[first] + self.runs[second], ()
        self.times_us[first] += self.times_us[second]
        for mine, theirs in ((self.needs, self.users), (self.users, self.needs)):
            for other in mine[second]:
                theirs[other].discard(second)
                theirs[other].add(first)
            mine[first] = (mine[first] | mine[second]) - {first, second}
            theirs[first].discard(first)
        self.before[first] = (self.before[first] | self.before[second]) & ~(1 << first)
        self._tell_users(first)

    def _tell_users(self, place: int) -> None:
        """Add what a run needs, and itself, to what those that need it do."""
        told = [place]
        while told:
            place = told.pop()
            known = self.before[place] | 1 << place
            for user in self.users[place]:
                if known & ~self.before[user]:
                    self.before[user] |= known
                    told.append(user)

    def _link(self, previous: int, following: int) -> None:
        """Let one run be followed by another on its stream; -1 is none."""
        if previous >= 0:
            self.next[previous] = following
        if following >= 0:
            self.previous[following] = previous
