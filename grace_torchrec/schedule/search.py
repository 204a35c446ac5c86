"""Search: a short schedule with few waits.

Flow: OpGraph + OpStats + Machine -> *make_schedule* -> Schedule.
Every priority and many perturbed ones are tried, chains whole or operator by operator; the
shortest is kept, then the fewest waits.  An order that holds more bytes than its budget counts as
longer by as much.  Derived: the paper schedules online only; a fixed model can afford the search
once.  Shapes: n operators, K keys, S streams.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule import _list_core
from grace_torchrec.schedule.alike import alike_together
from grace_torchrec.schedule.csr import csr
from grace_torchrec.schedule.held_bytes import HeldBytes, held_bytes
from grace_torchrec.schedule.issue_order import fewest_waits, with_few_switches
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.priority import (
    PRIORITIES,
    orders_of,
    perturbed,
    priority,
    time_to_end,
)
from grace_torchrec.schedule.schedule import Machine, Schedule, predicted_starts

STARTS, STEPS = 32, 64
SPREAD, STEP_SPREAD = 0.3, 0.08
DEAR_WAIT = 0.002  # a wait's price, as a share of the bound, where few waits are wanted
WORTH_A_CALM_HOST = 0.01  # makespan given for fewer events, waits and switches


def make_schedule(
    graph: OpGraph,
    stats: OpStats,
    machine: Machine,
    *,
    pins: Mapping[str, int] | None = None,
    starts: int = STARTS,
    steps: int = STEPS,
    seed: int = 0,
) -> Schedule:
    """Return a short schedule with few waits.

    Args:
        graph: Operators.
        stats: Their costs.
        machine: Streams and what a wait costs.
        pins: Operator -> stream it must run on (a cache's stream); -1 or absent is free.
        starts: Perturbed priorities to try.
        steps: Steps around the best one.
        seed: Of the perturbations.

    Raises:
        PlanMismatch: the costs belong to another graph.
        GraceError: a pin names no operator or no stream of the machine.
    """
    stats.check(graph)
    pin_n = _pins(graph, machine, pins or {})
    if not graph.ops:
        return Schedule(graph, machine, (), (), (), (), ())
    problem = _Problem(graph, stats, machine, pin_n, seed, held_bytes(graph, stats))
    keys = np.concatenate(
        [
            orders_of(tuple(PRIORITIES), graph, stats),
            perturbed(time_to_end(graph, stats), starts, SPREAD, seed),
        ]
    )
    found: list[Schedule] = []
    for chain_n in problem.groupings():
        price = machine.wait_us / 10
        first = problem.search(chain_n, keys, steps, machine.streams, price)
        found.append(problem.finished(first))
        if machine.capacity:
            continue
        again = np.concatenate([keys[: len(PRIORITIES)], first.key_n[None]])
        for streams in range(problem.least_streams(), machine.streams + 1):
            for dear in (price, found[0].bound_us * DEAR_WAIT):
                fewer = problem.search(chain_n, again, steps // 8, streams, dear)
                found.append(problem.finished(fewer))
    if machine.capacity:
        return found[0]
    own_us = problem.makespan(priority("topological", graph, stats))
    return alike_together(_calmest(found, problem.held, own_us), problem.held)


def _calmest(found: Sequence[Schedule], held: HeldBytes, own_us: float) -> Schedule:
    """Return, of the schedules about as short as the shortest, the one that costs the host least.

    None is longer than ``own_us``, the list schedule of the model's own order, if one is as short.
    """

    def strained_us(schedule: Schedule) -> float:
        """Return the makespan, longer by the share of bytes that are too many."""
        return schedule.makespan_us * (1 + held.over_budget(schedule.order_n))

    strained = [strained_us(schedule) for schedule in found]
    least = min(strained)
    enough = max(least, min(least * (1 + WORTH_A_CALM_HOST), own_us)) + 1e-9
    short = [s for s, us in zip(found, strained, strict=True) if us <= enough]
    one_stream_us = sum(found[0].times_us)
    gaining = [schedule for schedule in short if schedule.makespan_us < one_stream_us]
    return min(
        gaining or short,
        key=lambda s: (s.num_events + s.num_waits + s.num_switches, s.makespan_us),
    )


def list_schedule(graph: OpGraph, stats: OpStats, machine: Machine, policy: str) -> float:
    """Return the makespan of one plain list schedule by a named priority, in microseconds.

    With a capacity the ready operators that fit start whenever one ends; without one, each is
    placed where it starts first.
    """
    free = np.full(len(graph.ops), -1, np.int64)
    problem = _Problem(graph, stats, machine, free, 0, held_bytes(graph, stats))
    return problem.makespan(priority(policy, graph, stats))


@dataclass(frozen=True)
class _Found:
    """The best of one search: operators in the order in which they were placed, and their keys."""

    stream_n: list[int]
    begin_n: list[float]  # of the chains
    order_n: list[int]
    key_n: npt.NDArray[np.float64]


def _pins(graph: OpGraph, machine: Machine, pins: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the stream each operator must run on, -1 for any."""
    places = graph.places()
    pin_n = np.full(len(graph.ops), -1, np.int64)
    for name, stream in pins.items():
        if name not in places or not -1 <= stream < machine.streams:
            raise GraceError(
                f"pin {name!r} to stream {stream}: the graph has {len(places)} operators, the "
                f"machine {machine.streams} streams; name an operator and one of its streams"
            )
        pin_n[places[name]] = stream
    return pin_n


@dataclass(frozen=True)
class _Problem:
    """What all searches of one call share."""

    graph: OpGraph
    stats: OpStats
    machine: Machine
    pin_n: npt.NDArray[np.int64]
    seed: int
    held: HeldBytes

    def groupings(self) -> list[npt.NDArray[np.int64]]:
        """Return ways to schedule several operators as one: chains whole, and none."""
        alone = np.arange(len(self.graph.ops))
        if self.machine.capacity:
            return [alone]
        users = self.graph.needed_by()
        chain = alone.copy()
        for place, op in enumerate(self.graph.ops):
            if len(op.needs) == 1 and len(users[op.needs[0]]) == 1:
                need = op.needs[0]
                if self.pin_n[place] in (-1, self.pin_n[need]):
                    chain[place] = chain[need]
        return [chain, alone] if (chain != alone).any() else [alone]

    def least_streams(self) -> int:
        """Return the fewest streams worth a try: pins need theirs, work needs its share."""
        times = self.stats.times_us
        path = self.graph.critical_path(times)
        needed = int(sum(times) / path) if path else 1
        return max(int(self.pin_n.max()) + 1, min(self.machine.streams, max(needed, 1)))

    def search(
        self,
        chain_n: npt.NDArray[np.int64],
        keys_Kn: npt.NDArray[np.float64],
        steps: int,
        streams: int,
        wait_price: float,
    ) -> _Found:
        """Search over chains; return the best as operators."""
        heads, group_n = np.unique(chain_n, return_inverse=True)
        rng = np.random.default_rng(self.seed + 1)
        noise = rng.uniform(1 - STEP_SPREAD, 1 + STEP_SPREAD, (steps, heads.size))
        _, stream_g, begin_g, key_g, order_g = self._run(
            heads, group_n, keys_Kn, noise, streams, wait_price, self._by_time
        )
        members: list[list[int]] = [[] for _ in heads]
        for place, group in enumerate(group_n):
            members[group].append(place)
        order = [place for group in order_g for place in members[group]]
        return _Found(stream_g[group_n].tolist(), begin_g.tolist(), order, key_g[group_n])

    def makespan(self, key_n: npt.NDArray[np.float64]) -> float:
        """Return the makespan of one list schedule."""
        alone, none = np.arange(len(self.graph.ops)), np.zeros((0, key_n.size))
        if not self._by_time:
            return float(
                self._run(alone, alone, key_n[None], none, self.machine.streams, 0.0, False)[0]
            )
        csr = self._csr(alone)
        places = np.empty(key_n.size, np.int64)
        begins = np.empty(key_n.size)
        found: float = _list_core.place_by_time(
            key_n, np.array(self.stats.times_us), self._demand(alone), *csr,
            self.machine.streams, self.machine.capacity, places, begins, begins.copy(),
            places.copy(),
        )  # fmt: skip
        return found

    @property
    def _by_time(self) -> bool:
        """Whether schedules that start operators as others end are tried too."""
        return bool(self.machine.capacity) and self.machine.wait_us == 0

    @property
    def _budget(self) -> int:
        """Bytes that may be held; no limit where blocks decide what starts."""
        return 0 if self.machine.capacity else self.held.budget

    def _run(
        self,
        heads: npt.NDArray[np.int64],
        group_n: npt.NDArray[np.int64],
        keys_Kn: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        streams: int,
        wait_price: float,
        by_time: bool,
    ) -> Any:
        """Call the compiled search; return what it returns."""
        return _list_core.search(
            np.ascontiguousarray(keys_Kn[:, heads]), noise,
            np.bincount(group_n, weights=self.stats.times_us), self._demand(heads),
            *self._csr(group_n), streams, self.machine.capacity, self.machine.wait_us,
            self.pin_n[heads], by_time, wait_price, *self.held.of_groups(group_n), self._budget,
        )  # fmt: skip

    def _demand(self, heads: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the blocks of the operators at the heads of chains."""
        return np.minimum(np.array(self.stats.grids, np.int64), self.machine.capacity or 1)[heads]

    def _csr(self, group_n: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Return needs and users of the groups in CSR form."""
        groups = int(group_n.max()) + 1
        needs: list[set[int]] = [set() for _ in range(groups)]
        users: list[set[int]] = [set() for _ in range(groups)]
        for place, op in enumerate(self.graph.ops):
            for need in op.needs:
                if group_n[need] != group_n[place]:
                    needs[group_n[place]].add(int(group_n[need]))
                    users[group_n[need]].add(int(group_n[place]))
        return *csr([sorted(row) for row in needs]), *csr([sorted(row) for row in users])

    def finished(self, found: _Found) -> Schedule:
        """Name the streams so that the last operator is on stream 0; add waits, order, times."""
        graph, machine, stream_n = self.graph, self.machine, found.stream_n
        if (self.pin_n < 0).all():
            names = {stream_n[-1]: 0}
            for place in found.order_n:
                names.setdefault(stream_n[place], len(names))
            stream_n = [names[stream] for stream in stream_n]
        waits = fewest_waits(graph.needs, stream_n, found.order_n, machine.streams)
        order = with_few_switches(stream_n, found.order_n, waits, machine.streams)
        if self._budget and self.held.over_budget(order):
            order = self.held.regrouped(found.order_n, stream_n, waits, machine.streams)
        times = self.stats.times_us
        begin = found.begin_n
        if not machine.capacity:  # with one, no operators were joined to chains
            begin = predicted_starts(graph, times, stream_n, found.order_n, machine)
        return Schedule(
            graph, machine, tuple(stream_n), tuple(order), waits, tuple(begin), tuple(times)
        )
