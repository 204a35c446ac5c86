"""Race check: a proof by vector clocks that no order of the streams changes what is read.

Flow: Program -> *races* (none is the proof).  Every stream has a clock; a record keeps the
recording stream's knowledge of all clocks, a wait adds it to the waiting stream's.  Two accesses
of one address, one of them a write, must be ordered; then every read sees the last write before it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from grace_torchrec.schedule.program import (
    Buffer,
    Event,
    HostSync,
    Launch,
    Program,
    Record,
    Wait,
)


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders, or a read of what is no longer there.

    Attributes:
        kind: ``RAW``, ``WAR``, ``WAW``, ``clobbered``, ``never written``, ``wait before record``.
        operator: The later of the two in the host's order.
        other: The earlier one.
        buffer: What is accessed.
    """

    kind: str
    operator: str
    other: str
    buffer: Buffer

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.kind}: {self.operator} and {self.other} on {self.buffer!r}"


# (stream, clock of the stream, name of the operator, buffer)
_Access = tuple[int, int, str, Buffer]


def find_races(program: Program, given: Sequence[Buffer] = (), most: int = 0) -> list[Race]:
    """Return the races of a program, in the order of the instructions.

    Args:
        program: What the streams are told.
        given: Buffers that are there before it starts (inputs, weights, caches).
        most: Stop after so many; 0 finds all.
    """
    check = _Check(program, given)
    for instruction in program.instructions:
        if isinstance(instruction, Launch):
            check.launch(instruction)
        elif isinstance(instruction, Record):
            check.recorded[instruction.event] = check.clocks[instruction.stream].copy()
        elif isinstance(instruction, Wait):
            check.learn(check.clocks[instruction.stream], instruction.event, instruction.stream)
        else:
            assert isinstance(instruction, HostSync)
            check.learn(check.host, instruction.event, -1)
            check.host_knows = True
        if most and len(check.races) >= most:
            break
    return check.races


class _Check:
    """Clocks and last accesses while a program is read."""

    def __init__(self, program: Program, given: Sequence[Buffer]) -> None:
        streams = program.num_streams
        self.address_of = program.address_of
        self.given = frozenset(given)
        self.clocks = [[0] * streams for _ in range(streams)]
        self.host, self.host_knows = [0] * streams, False
        self.recorded: dict[Event, list[int]] = {}
        self.last_write: dict[Hashable, _Access] = {}
        self.read_since: dict[Hashable, list[_Access]] = {}
        self.races: list[Race] = []

    def learn(self, clock: list[int], event: Event, stream: int) -> None:
        """Add what an event stands for to a clock."""
        found = self.recorded.get(event)
        if found is None:
            self.races.append(Race("wait before record", f"stream {stream}", "no record", event))
            return
        for other, value in enumerate(found):
            if value > clock[other]:
                clock[other] = value

    def launch(self, op: Launch) -> None:
        """Check and keep the accesses of one operator."""
        clock = self.clocks[op.stream]
        if self.host_knows:
            for other, value in enumerate(self.host):
                if value > clock[other]:
                    clock[other] = value
        clock[op.stream] += 1
        for buffer in op.reads:
            self._read(op, buffer, clock)
        for buffer in op.writes:
            self._write(op, buffer, clock)

    def _read(self, op: Launch, buffer: Buffer, clock: list[int]) -> None:
        """Check one read."""
        address = self.address_of.get(buffer, buffer)
        write = self.last_write.get(address)
        if write is None:
            if buffer not in self.given:
                self.races.append(Race("never written", op.name, "nobody", buffer))
        elif write[3] != buffer:
            self.races.append(Race("clobbered", op.name, write[2], buffer))
        elif clock[write[0]] < write[1]:
            self.races.append(Race("RAW", op.name, write[2], buffer))
        access = (op.stream, clock[op.stream], op.name, buffer)
        reads = self.read_since.get(address)
        if reads is None:
            self.read_since[address] = [access]
        else:
            reads.append(access)

    def _write(self, op: Launch, buffer: Buffer, clock: list[int]) -> None:
        """Check one write."""
        address = self.address_of.get(buffer, buffer)
        write = self.last_write.get(address)
        if write is not None and clock[write[0]] < write[1]:
            self.races.append(Race("WAW", op.name, write[2], buffer))
        for stream, when, name, _ in self.read_since.pop(address, ()):
            if clock[stream] < when:
                self.races.append(Race("WAR", op.name, name, buffer))
        self.last_write[address] = (op.stream, clock[op.stream], op.name, buffer)
