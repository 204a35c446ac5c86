"""Lowering: a schedule becomes steps for the host: streams, waits, operators, events, releases.

Flow: Schedule -> *Steps* -> GraphModule (:mod:`graph_module`), Program (:mod:`telling`).
Stream 0 is the caller's.  The other streams first wait for it (fork) unless something they wait
for already did; at the end it has waited for all of them (join).  Memory belongs to the stream
of the operator that made it: a stream may hand it out again as soon as the host lets go, so the
host keeps a value that another stream reads until its own stream knows that the reader is done, or hands it to the
tensor pool once the current stream knows (a stream that never waits again would learn too late).
"""

from dataclasses import dataclass

from grace_torchrec.schedule.schedule import Schedule

FORK = -1


@dataclass(frozen=True)
class Use:
    """The host's current stream changes."""

    stream: int


@dataclass(frozen=True)
class Await:
    """The current stream waits for an event."""

    event: int


@dataclass(frozen=True)
class Run:
    """An operator is launched on the current stream."""

    op: int


@dataclass(frozen=True)
class Mark:
    """An event is recorded on the current stream; it has the number of the operator before it."""

    event: int


@dataclass(frozen=True)
class Release:
    """The host lets go of values: the streams they belong to know that all readers are done."""

    ops: tuple[int, ...]


@dataclass(frozen=True)
class Retire:
    """The host hands values to the tensor pool, which keeps them until the current stream got here."""

    ops: tuple[int, ...]


Step = Use | Await | Run | Mark | Release | Retire


@dataclass(frozen=True)
class Lowered:
    """Steps of one schedule.

    Attributes:
        schedule: What was lowered.
        steps: In the host's order.
    """

    schedule: Schedule
    steps: tuple[Step, ...]

    def count(self, kind: type) -> int:
        """Return how many steps are of a kind."""
        return sum(isinstance(step, kind) for step in self.steps)

    @property
    def figures(self) -> dict[str, float]:
        """Events, waits and switches for each operator."""
        ops = max(len(self.schedule.graph.ops), 1)
        return {
            "events_per_op": self.count(Mark) / ops,
            "waits_per_op": self.count(Await) / ops,
            "switches_per_op": self.count(Use) / ops,
        }


def lower(schedule: Schedule) -> Lowered:
    """Return the steps of a schedule."""
    return _Lowering(schedule).run()


class _Lowering:
    """State while the steps are written: what each stream knows of the others' operators."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.streams = schedule.num_streams
        self.known = [[0] * self.streams for _ in range(self.streams)]
        self.clock = [0] * len(schedule.graph.ops)
        self.seen: dict[int, list[int]] = {}
        self.current = 0
        self.steps: list[Step] = []
        self.owner = schedule.graph.owners()
        self.readers: dict[int, list[int]] = {}
        for place, op in enumerate(schedule.graph.ops):
            for need in {self.owner[need] for need in op.needs}:
                self.readers.setdefault(need, []).append(place)
        self.unread = {base: len(found) for base, found in self.readers.items()}
        for base in schedule.graph.results():
            self.unread[base] = self.unread.get(base, 0) + 1  # the caller keeps it
        self.held: list[int] = []  # values whose readers were all issued on streams not yet known

    def run(self) -> Lowered:
        """Write all steps."""
        schedule = self.schedule
        waited_for = {need for needs in schedule.waits_n for need in needs}
        started = {0}
        forks = {s for s in schedule.stream_n if s} & self._forked_by_hand()
        if forks:
            self.steps.append(Mark(FORK))
        for op in schedule.order_n:
            stream = schedule.stream_n[op]
            self._use(stream)
            if stream not in started and stream in forks:
                self.steps.append(Await(FORK))
            started.add(stream)
            for need in schedule.waits_n[op]:
                self._await(need)
            self.steps.append(Run(op))
            self.known[stream][stream] += 1
            self.clock[op] = self.known[stream][stream]
            if op in waited_for:
                self._mark(op)
            self._read(op)
        self._join()
        return Lowered(schedule, tuple(self.steps))

    def _forked_by_hand(self) -> set[int]:
        """Return the streams whose first operator waits for no other operator."""
        first: dict[int, int] = {}
        for op in self.schedule.order_n:
            first.setdefault(self.schedule.stream_n[op], op)
        return {stream for stream, op in first.items() if not self.schedule.waits_n[op]}

    def _use(self, stream: int) -> None:
        """Change the stream if it is another one."""
        if stream != self.current:
            self.steps.append(Use(stream))
            self.current = stream

    def _mark(self, op: int) -> None:
        """Record the event of an operator that was just launched."""
        self.steps.append(Mark(op))
        self.seen[op] = self.known[self.schedule.stream_n[op]].copy()

    def _await(self, op: int) -> None:
        """Wait on the current stream; let go of what its knowledge sets free."""
        self.steps.append(Await(op))
        here = self.known[self.current]
        for other, value in enumerate(self.seen[op]):
            here[other] = max(here[other], value)
        free = [base for base in self.held if self._is_free(base)]
        if free:
            self.steps.append(Release(tuple(free)))
            self.held = [base for base in self.held if base not in free]

    def _read(self, op: int) -> None:
        """Note that an operator has read its inputs; hold or hand on what others own."""
        here = self.known[self.current]
        retired = []
        for base in sorted({self.owner[need] for need in self.schedule.graph.ops[op].needs}):
            self.unread[base] -= 1
            if self.unread[base] or self._is_free(base):
                continue
            if self._knows(here, base):
                retired.append(base)
            else:
                self.held.append(base)
        if retired:
            self.steps.append(Retire(tuple(retired)))

    def _is_free(self, base: int) -> bool:
        """Return whether the stream that owns a value knows that all its readers are done."""
        return self._knows(self.known[self.schedule.stream_n[base]], base)

    def _knows(self, here: list[int], base: int) -> bool:
        """Return whether a stream's knowledge covers all readers of a value."""
        return all(
            here[self.schedule.stream_n[reader]] >= self.clock[reader]
            for reader in self.readers[base]
        )

    def _join(self) -> None:
        """Let stream 0 wait for every stream's last operator that it does not know."""
        last: dict[int, int] = {}
        for op in self.schedule.order_n:
            last[self.schedule.stream_n[op]] = op
        behind = [op for s, op in last.items() if s and self.known[0][s] < self.clock[op]]
        behind.sort(key=lambda op: self.schedule.order_n.index(op))
        for op in behind:
            if op not in self.seen:
                self._use(self.schedule.stream_n[op])
                self._mark(op)
        self._use(0)
        for op in reversed(behind):
            if self.known[0][self.schedule.stream_n[op]] < self.clock[op]:
                self._await(op)
        if self.held:
            self.steps.append(Retire(tuple(self.held)))
