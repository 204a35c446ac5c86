"""Told streams: a stream set that runs segments at once and writes down what a GPU would be told.

Flow: SharedStreams over *ToldStreams*, queries in any order -> Program -> race check.
What is decided while queries run is in no plan: the program that was really told is checked.
An event is done when a draw says so and the host asks: all it tells later comes after it.  Memory
that a tensor pool lets go of is written over at once by the stream that owns it.
"""

import random
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from grace_torchrec.schedule.in_flight import resources
from grace_torchrec.schedule.program import (
    Buffer,
    HostSync,
    Instruction,
    Launch,
    Program,
    Record,
    Wait,
)
from grace_torchrec.schedule.race_check import Race, find_races
from grace_torchrec.schedule.segment_program import SegmentProgram
from grace_torchrec.schedule.tensor_pool import EpochPool


class ToldStreams:
    """Streams, and behind them a stream for each caller; told by one thread.

    Args:
        num_streams: Streams that are shared.
        callers: Callers; set ``caller`` before one of them asks for anything.
        program: What is told, in segments.
        rng: Draws what is done when it is asked for.
        pool_bytes: Budget of each caller's tensor pool: 1 seals an epoch for every query.

    Attributes:
        caller: Whose stream is current.
        told: Instructions so far.
    """

    def __init__(
        self,
        num_streams: int,
        callers: int,
        program: SegmentProgram,
        rng: random.Random,
        pool_bytes: int = 1,
    ) -> None:
        self.num_streams, self.program, self.rng, self.caller = num_streams, program, rng, 0
        schedule = program.lowered.schedule
        self.owner, self.results = schedule.graph.owners(), schedule.graph.results()
        self.told: list[Instruction] = []
        self.address: dict[Buffer, Hashable] = {}
        self.query_of: dict[int, int] = {}  # event -> the event its query began with
        self.stream_of: dict[tuple[int, int], int] = {}  # (query, segment) -> its stream
        self.events, self.joined = 0, -1
        self.done: set[int] = set()
        self.pools = [self._pool(num_streams + caller, pool_bytes) for caller in range(callers)]

    def begin(self) -> int:
        """A query's inputs are written by its caller."""
        event = self._record(self.num_streams + self.caller, (self.events, "inputs"))
        self.query_of[event] = event
        return event

    def launch(self, stream: int, task: Callable[[], None], after: Sequence[int]) -> int:
        """Tell a stream; run the task now."""
        self.told += [Wait(event, stream) for event in after]
        task()
        query, place = getattr(task, "query", None), getattr(task, "place", -1)
        if query is not None:
            reads, writes = self._accesses(query.start, place)
            self.told.append(Launch(f"segment {place} of {query.start}", stream, reads, writes))
            self.stream_of[query.start, place] = stream
        event = self._record(stream)
        self.query_of[event] = -1 if query is None else query.start
        return event

    def is_done(self, event: int) -> bool:
        """Draw whether an event is done; the host knows it then."""
        if event not in self.done and self.rng.random() < 0.3:
            self.wait(event)
        return event in self.done

    def wait(self, event: int) -> None:
        """The host waits for an event."""
        self.done.add(event)
        self.told.append(HostSync(event))

    def join(self, events: Sequence[int], values: Sequence[Any]) -> None:
        """The caller's stream waits; its pool keeps what the query's segments wrote."""
        self.told += [Wait(event, self.num_streams + self.caller) for event in events]
        if events:
            self.joined = self.query_of[events[0]]
            kept = _Kept()
            weakref.finalize(kept, self._written_over, self.joined)
            self.pools[self.caller].retire(kept, 1, 0)

    def give(self, result: Any) -> None:
        """The caller reads the result, whose memory stays until then."""
        reads = tuple((self.joined, base) for base in self.results)
        inputs = ((self.joined, "inputs"),)  # which it may write anew
        self.told.append(Launch("the caller", self.num_streams + self.caller, reads, inputs))

    def has(self, thread: threading.Thread) -> bool:
        """None is: segments run at once."""
        return False

    def close(self) -> None:
        """Let go of all that the pools hold."""
        for pool in self.pools:
            pool.drain()

    def races(self) -> list[Race]:
        """Return the races of all that was told."""
        program = Program(tuple(self.told), self.address)
        return find_races(program, resources(self.program.lowered))

    def _pool(self, stream: int, pool_bytes: int) -> EpochPool:
        """Return a caller's tensor pool."""
        return EpochPool(
            lambda _: self._record(stream), self.is_done, pool_bytes, synchronize=self.wait
        )

    def _record(self, stream: int, written: Buffer | None = None) -> int:
        """Record a new event on a stream, behind a write of the caller's."""
        if written is not None:
            self.told.append(Launch("the caller", stream, (), (written,)))
        event, self.events = self.events, self.events + 1
        self.told.append(Record(event, stream))
        return event

    def _accesses(self, query: int, place: int) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
        """Return the buffers that a segment reads and writes; any may read the inputs."""
        run, segment, owner = (
            set(self.program.runs[place]),
            self.program.graph.ops[place],
            self.owner,
        )
        ops = self.program.lowered.schedule.graph.ops
        given = {owner[need] for op in run for need in ops[op].needs if need not in run}
        reads = [(query, base) for base in sorted(given)]
        writes = [(query, base) for base in sorted({owner[op] for op in run})]
        inputs = (query, "inputs")
        return (*reads, inputs, *segment.reads, *segment.writes), (*writes, *segment.writes)

    def _written_over(self, query: int) -> None:
        """Let the streams write over what a query's segments wrote, but for its results."""
        for place, run in enumerate(self.program.runs):
            stream = self.stream_of.get((query, place))
            for op in run if stream is not None else ():
                if self.owner[op] == op and op not in self.results:
                    again = (query, "again", op)
                    self.address[again] = (query, op)
                    self.told.append(Launch("the allocator", stream or 0, (), (again,)))


class _Kept:
    """Stands for the values of a query while a pool keeps them."""
