"""Telling: the steps of a lowered schedule as the program that the race check reads.

Flow: Lowered -> *Program*.  What the host lets go of may be written over at once.
"""

from collections.abc import Hashable, Iterable

from grace_torchrec.schedule.lower import (
    Await,
    Lowered,
    Mark,
    Release,
    Retire,
    Run,
    Use,
)
from grace_torchrec.schedule.program import Instruction, Launch, Program, Record, Wait


def to_program(lowered: Lowered, query: Hashable = 0) -> Program:
    """Return the program that the steps are, with memory handed out again as early as can be.

    Where the host lets go of a value that another stream read, the stream that owns its memory is
    taken to write it at once: whatever the allocator does, and for whichever query, the check
    covers it.  Memory that only its own stream used is safe by the stream's order.

    Args:
        lowered: Steps.
        query: Tells the buffers and events of several queries apart.
    """
    return _Telling(lowered, query).run()


class _Telling:
    """State while a program is written: who still reads what."""

    def __init__(self, lowered: Lowered, query: Hashable) -> None:
        self.lowered, self.query = lowered, query
        schedule = lowered.schedule
        self.ops, self.stream_n = schedule.graph.ops, schedule.stream_n
        self.owner, self.results = schedule.graph.owners(), schedule.graph.results()
        self.unread = [0] * len(self.ops)
        self.foreign: set[int] = set()
        for place, op in enumerate(self.ops):
            for base in {self.owner[need] for need in op.needs}:
                self.unread[base] += 1
                if self.stream_n[base] != self.stream_n[place]:
                    self.foreign.add(base)
        for base in self.results:
            self.unread[base] += 1
        kept = (step.ops for step in lowered.steps if isinstance(step, (Release, Retire)))
        self.held = {op for ops in kept for op in ops}
        self.address: dict[Hashable, Hashable] = {}
        self.inputs = (query, "inputs")
        self.told: list[Instruction] = [Launch("the caller", 0, (), (self.inputs,))]

    def run(self) -> Program:
        """Write the program."""
        current, begun = 0, set()
        for step in self.lowered.steps:
            if isinstance(step, Use):
                current = step.stream
            elif isinstance(step, Await):
                self.told.append(Wait((self.query, step.event), current))
            elif isinstance(step, Mark):
                self.told.append(Record((self.query, step.event), current))
            elif isinstance(step, Release):
                self._free(step.ops)
            elif isinstance(step, Run):
                self._launch(step.op, current, current not in begun)
                begun.add(current)
        results = tuple((self.query, base) for base in self.results)
        self.told.append(Launch("the caller", 0, (*results, self.inputs), (self.inputs,)))
        return Program(tuple(self.told), self.address)

    def _launch(self, place: int, stream: int, is_first: bool) -> None:
        """Tell one operator; free what only it still read."""
        op = self.ops[place]
        bases = sorted({self.owner[need] for need in op.needs})
        reads: list[Hashable] = [(self.query, base) for base in bases]
        reads += [*op.reads, *op.writes]
        if is_first or not bases:
            reads.append(self.inputs)
        writes = ((self.query, self.owner[place]), *op.writes)
        self.told.append(Launch(op.name, stream, tuple(reads), writes))
        for base in bases:
            self.unread[base] -= 1
        self._free([b for b in bases if not self.unread[b] and b not in self.held])

    def _free(self, bases: Iterable[int]) -> None:
        """Let the owning streams write over values that other streams read."""
        for base in bases:
            if base in self.foreign:
                again = (self.query, "again", base)
                self.address[again] = (self.query, base)
                self.told.append(Launch("the allocator", self.stream_n[base], (), (again,)))
