"""Generator: the process that asks, and clocks and checks every answer.

Flow: encoded requests -> shared memory, a note on a socket -> server -> the answer in shared memory, a
note back -> *Measured*.  Closed loop: each client asks again as soon as it is answered.  Open loop:
requests come when they are due, and their latency counts from then, also where no slot was free.
This module loads numpy only, so the process is small and takes little of the server's time.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from select import select
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.interrupts import end_silently
from grace_torchrec.schedule.arrivals import arrivals

ASK = struct.Struct("<ii")  # slot, request
ANSWERED = struct.Struct("<iiqi")  # slot, status, service time in ns, floats of the answer
FINE, REJECTED, FAILED = 0, 1, 2
PATIENCE_S = 120.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """What is asked of a server.

    Attributes:
        requests: Requests, those of the warm-up not counted.
        warmup: Requests before them.
        clients: Clients of a closed loop; 0: open loop.
        pattern: Of an open loop, see :mod:`grace_torchrec.schedule.arrivals`.
        rate: Its requests a second.
        sockets: Numbers of the sockets to ask on; clients take them in turns.
        seed: Of the choice of requests and of arrivals.
    """

    requests: int
    warmup: int
    clients: int
    sockets: tuple[int, ...] = (0,)
    pattern: str = "poisson"
    rate: float = 0.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Measured:
    """What became of the requests.

    Attributes:
        latency_s: From asking, or from when it was due, to the answer; answered requests only.
        service_s: Of the same requests, without transport: from submit to the answer.
        rejected: Requests that were not accepted.
        failed: Requests that the server could not answer, those of the warm-up too.
        wrong: Requests whose answer is not the expected one, those of the warm-up too.
        lost: Requests without an answer, and those that were not sent for that.
        span_s: From asking (or when it was due) the first that counts to the last answer.
        largest_difference: Of an answer to the expected one; infinite where sizes differ.
    """

    latency_s: Floats
    service_s: Floats
    rejected: int
    failed: int
    wrong: int
    lost: int
    span_s: float
    largest_difference: float

    @property
    def errors(self) -> int:
        """Requests that were accepted and not answered rightly."""
        return self.failed + self.wrong + self.lost


@dataclass(frozen=True)
class Material:
    """What the generator asks, and what it expects.

    Attributes:
        requests: Encoded requests.
        answers: Expected answer of each, float32.
        tolerance: Largest absolute difference of a right answer.
        memory: Name of the shared memory.
        slots: Requests that may be under way.
        slot_bytes: Bytes of a slot; the answer follows the request's largest size.
        answer_at: Where in a slot the answer is.
    """

    requests: tuple[bytes, ...]
    answers: tuple[npt.NDArray[np.float32], ...]
    tolerance: float
    memory: str
    slots: int
    slot_bytes: int
    answer_at: int


def generate(material: Material, sockets: Sequence[socket.socket], orders: Connection) -> None:
    """Carry out loads until the other end hangs up; runs as a process.

    Args:
        material: What to ask.
        sockets: One for each server.
        orders: Loads come in here, what was measured goes out.
    """
    end_silently()
    memory = SharedMemory(material.memory)
    try:
        while True:
            load = orders.recv()
            orders.send(_Run(material, sockets, memory.buf, load).measured())
    except EOFError:
        pass
    finally:
        memory.close()


class _Run:
    """One load."""

    def __init__(
        self, material: Material, sockets: Sequence[socket.socket], buffer: Any, load: Load
    ) -> None:
        self.material, self.load, self.buffer = material, load, buffer
        self.sockets = [sockets[number] for number in load.sockets]
        self.total = load.requests + load.warmup
        draw = np.random.default_rng(load.seed)
        self.choice = draw.integers(0, len(material.requests), self.total).tolist()
        self.next = self.done = self.rejected = self.failed = self.wrong = 0
        self.largest_difference = 0.0
        self.asked_s = [0.0] * material.slots
        self.number = [0] * material.slots
        self.latency_s, self.service_s = [], []  # type: list[float], list[float]
        self.begin_s = self.end_s = 0.0

    def measured(self) -> Measured:
        """Run it."""
        if self.load.clients:
            for slot in range(min(self.load.clients, self.total)):
                self._ask(slot, time.perf_counter())
            while self.done < self.total:
                slots = self._answers(PATIENCE_S)
                if slots is None:
                    break
                for slot in slots:
                    if self.next < self.total:
                        self._ask(slot, time.perf_counter())
        else:
            self._open_loop()
        return Measured(
            np.array(self.latency_s), np.array(self.service_s), self.rejected, self.failed,
            self.wrong, self.total - self.done, max(self.end_s - self.begin_s, 1e-9),
            self.largest_difference,
        )  # fmt: skip

    def _open_loop(self) -> None:
        """Ask when it is time."""
        load = self.load
        start_s = time.perf_counter() + 0.01
        due = deque(
            start_s + us * 1e-6 for us in arrivals(load.pattern, load.rate, self.total, load.seed)
        )
        free = deque(range(self.material.slots))
        while self.done < self.total:
            now_s = time.perf_counter()
            while due and due[0] <= now_s and free:
                self._ask(free.popleft(), due.popleft())
            waits_s = max(due[0] - time.perf_counter(), 0.0) if due and free else PATIENCE_S
            slots = self._answers(waits_s)
            if slots is None:
                if waits_s == PATIENCE_S:
                    return
                continue
            free.extend(slots)

    def _ask(self, slot: int, since_s: float) -> None:
        """Put the next request into a slot and send a note."""
        request = self.choice[self.next]
        blob, at = self.material.requests[request], slot * self.material.slot_bytes
        self.buffer[at : at + len(blob)] = blob
        self.asked_s[slot], self.number[slot] = since_s, self.next
        if self.next == self.load.warmup:
            self.begin_s = since_s
        self.next += 1
        self.sockets[slot % len(self.sockets)].send(ASK.pack(slot, request))

    def _answers(self, seconds: float) -> list[int] | None:
        """Wait for notes; take in what they say.  None: there was none in time."""
        ready, _, _ = select(self.sockets, (), (), seconds)
        if not ready:
            return None
        slots = []
        for one in ready:
            note = one.recv(ANSWERED.size)
            now_s = time.perf_counter()
            if not note:
                raise EOFError
            slot, status, service_ns, floats = ANSWERED.unpack(note)
            slots.append(slot)
            self.done += 1
            self._count(slot, status, service_ns, floats, now_s)
        return slots

    def _count(self, slot: int, status: int, service_ns: int, floats: int, now_s: float) -> None:
        """Count one answer; only right ones have a latency, and none of the warm-up."""
        counts = self.number[slot] >= self.load.warmup
        self.end_s = now_s
        if status == REJECTED:
            self.rejected += counts
        elif status == FAILED:
            self.failed += 1
        elif not self._right(slot, floats):
            self.wrong += 1
        elif counts:
            self.latency_s.append(now_s - self.asked_s[slot])
            self.service_s.append(service_ns * 1e-9)

    def _right(self, slot: int, floats: int) -> bool:
        """Compare an answer with what is expected."""
        wanted = self.material.answers[self.choice[self.number[slot]]]
        if floats != wanted.size:
            self.largest_difference = float("inf")
            return False
        at = slot * self.material.slot_bytes + self.material.answer_at
        found = np.frombuffer(self.buffer, np.float32, floats, at)
        difference = float(np.abs(found - wanted).max(initial=0.0))
        self.largest_difference = max(difference, self.largest_difference)
        return difference <= self.material.tolerance
