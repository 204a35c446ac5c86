"""Processes of a load test: the generator, and the server of the control.

Flow: Material -> *Rig*: shared memory, a generator, a socket for each server -> ``measure(load)``.
Processes are spawned, so a script that makes a Rig needs a ``__main__`` guard.
"""

import multiprocessing
import socket
import threading
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import torch
from torch import nn

from grace_torchrec.errors import GraceError
from grace_torchrec.interrupts import end_silently, starting_processes
from grace_torchrec.loadtest.encoding import encode
from grace_torchrec.loadtest.entrants import Entrant, Models, engine_of
from grace_torchrec.loadtest.generator import Load, Material, Measured, generate
from grace_torchrec.loadtest.server import Server
from grace_torchrec.loadtest.subject import Subject
from grace_torchrec.serve.engine import Engine

PAGE = 4096


class Rig:
    """A generator process, and servers here and, if asked for, in a second process.

    Args:
        subject: What is asked.
        slots: Requests that may be under way.
        tolerance: Largest absolute difference of a right answer.
        control: How the second process serves the stock model; None: there is none.
    """

    def __init__(
        self, subject: Subject, slots: int, tolerance: float, control: Entrant | None
    ) -> None:
        blobs = tuple(encode(request) for request in subject.requests)
        answer_at = _up(max(map(len, blobs)), 64)
        slot_bytes = _up(answer_at + max(answer.nbytes for answer in subject.answers) + 64, PAGE)
        self.example = subject.requests[0]
        self.memory = SharedMemory(create=True, size=slots * slot_bytes)
        self.material = Material(
            blobs, subject.answers, tolerance, self.memory.name, slots, slot_bytes, answer_at
        )
        spawn = multiprocessing.get_context("spawn")
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.orders, theirs = spawn.Pipe()
        self.processes: list[Any] = [
            spawn.Process(
                target=generate, args=(self.material, [ends[0] for ends in pairs], theirs),
                daemon=True,
            )
        ]  # fmt: skip
        small = Material((), (), tolerance, self.memory.name, slots, slot_bytes, answer_at)
        if control is not None:
            arguments = (subject.stock, self.example, control, small, pairs[1][1])
            self.processes.append(
                spawn.Process(
                    target=serve_stock, args=(*arguments, torch.get_num_threads()), daemon=True
                )
            )
        with starting_processes():
            for process in self.processes:
                process.start()
        theirs.close()
        for ours in (pairs[0][0], *pairs[1]):
            ours.close()
        self.server = Server(None, small, self.example, pairs[0][1])
        self.receiver = threading.Thread(target=self.server.serve, daemon=True)
        self.receiver.start()

    def measure(self, engine: Engine, load: Load) -> Measured:
        """Let the generator ask an engine here (and the second process, if the load says so).

        Raises:
            GraceError: the generator ended.
        """
        self.server.engine = engine
        try:
            self.orders.send(load)
            found: Measured = self.orders.recv()
        except (EOFError, OSError) as error:
            raise GraceError(
                "load test: the process that asks ended before it was done; standard error says why"
            ) from error
        return found

    def close(self) -> None:
        """End the processes."""
        self.orders.close()
        for process in self.processes:
            process.join(30)
            if process.is_alive():
                process.terminate()
        self.receiver.join(30)
        self.server.close()
        self.memory.close()
        self.memory.unlink()

    def __enter__(self) -> "Rig":
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def serve_stock(
    stock: nn.Module,
    example: tuple[Any, ...],
    entrant: Entrant,
    material: Material,
    one: socket.socket,
    threads: int,
) -> None:
    """Serve the stock model until the generator hangs up; runs as a process."""
    end_silently()
    torch.set_num_threads(threads)
    subject = Subject("stock", stock, stock, (example,), ())
    with engine_of(entrant, Models(subject, 1), None) as engine:
        server = Server(engine, material, example, one)
        server.serve()
    server.close()


def _up(number: int, unit: int) -> int:
    """Round up to whole units."""
    return -(-number // unit) * unit
