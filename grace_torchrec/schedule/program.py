"""Program: what a set of streams is told, in the host's order.

Flow: lowered model, or several in flight -> *Program* -> race check, oracle.
A buffer is one value; its address is the memory it lies in, which others may hold later.  A
resource (a cache, a weight under delta) is a buffer that many operators write at one address.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

Buffer = Hashable
Event = Hashable


@dataclass(frozen=True)
class Launch:
    """An operator starts on a stream, after all that the stream was told before.

    Attributes:
        name: Of the operator, for reports.
        stream: Where it runs.
        reads: Buffers it reads.
        writes: Buffers it writes.
    """

    name: str
    stream: int
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


@dataclass(frozen=True)
class Record:
    """An event is recorded on a stream: it stands for all the stream was told so far."""

    event: Event
    stream: int


@dataclass(frozen=True)
class Wait:
    """A stream waits for the last record of an event; a no-op if there was none, as in CUDA."""

    event: Event
    stream: int


@dataclass(frozen=True)
class HostSync:
    """The host waits for the last record of an event; all it tells later comes after it."""

    event: Event


Instruction = Launch | Record | Wait | HostSync


@dataclass(frozen=True)
class Program:
    """Instructions and where buffers lie.

    Attributes:
        instructions: In the order in which the host gives them.
        address_of: Buffer -> address; a buffer that is not listed lies alone.
    """

    instructions: tuple[Instruction, ...]
    address_of: Mapping[Buffer, Hashable]

    @property
    def num_streams(self) -> int:
        """One more than the largest stream."""
        streams = (i.stream for i in self.instructions if not isinstance(i, HostSync))
        return max(streams, default=-1) + 1

    @property
    def num_launches(self) -> int:
        """Operators."""
        return sum(isinstance(i, Launch) for i in self.instructions)

    def waits(self) -> list[int]:
        """Return the places of the waits."""
        return [p for p, i in enumerate(self.instructions) if isinstance(i, Wait)]

    def without(self, place: int) -> "Program":
        """Return the program with one instruction left out."""
        kept = self.instructions[:place] + self.instructions[place + 1 :]
        return Program(kept, self.address_of)
