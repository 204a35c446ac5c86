"""Server: takes requests from shared memory, gives them to an engine, writes answers back.

Flow: a note on the socket -> request decoded -> Engine.submit -> answer -> shared memory, a note back.
One thread receives for all clients; answers are written by the thread that computed them.
"""

import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from grace_torchrec.loadtest.encoding import Decoder, flat_answer
from grace_torchrec.loadtest.generator import ANSWERED, ASK, FAILED, FINE, REJECTED, Material
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import Rejected


class Server:
    """Serves one socket with one engine, until it is stopped.

    Args:
        engine: Answers; may be set later, and anew whenever nothing is under way.
        material: Where slots are.
        example: A request of the kind that is asked.
        one: The server's end of the socket.
    """

    def __init__(
        self,
        engine: Engine | None,
        material: Material,
        example: tuple[Any, ...],
        one: socket.socket,
    ) -> None:
        self.engine, self.material, self.socket = engine, material, one
        self.decode = Decoder(example)
        self.memory = SharedMemory(material.memory)
        self.buffer: Any = self.memory.buf
        self.sends = threading.Lock()

    def serve(self) -> None:
        """Answer until the other end hangs up."""
        with suppress(ConnectionError):  # it ended amid its work, by Ctrl-C
            while note := self.socket.recv(ASK.size):
                self._take(*ASK.unpack(note))

    def close(self) -> None:
        """Let go of the shared memory, once the engine is closed."""
        self.buffer = None
        self.memory.close()

    def _take(self, slot: int, _request: int) -> None:
        """Submit the request in a slot."""
        began_ns = time.perf_counter_ns()
        try:
            batch = self.decode(self.buffer, slot * self.material.slot_bytes)
            began_ns = time.perf_counter_ns()
            assert self.engine is not None
            future = self.engine.submit(*batch)
        except Rejected:
            self._send(slot, REJECTED, 0, 0)
        except Exception:  # counted by the generator; the server goes on
            self._send(slot, FAILED, 0, 0)
        else:
            future.add_done_callback(lambda done: self._answer(slot, done, began_ns))

    def _answer(self, slot: int, done: "Future[Any]", began_ns: int) -> None:
        """Write an answer and tell the generator."""
        service_ns = time.perf_counter_ns() - began_ns
        try:
            answer = flat_answer(done.result())
        except Exception:  # counted by the generator
            self._send(slot, FAILED, 0, 0)
            return
        at = slot * self.material.slot_bytes + self.material.answer_at
        np.frombuffer(self.buffer, np.float32, answer.size, at)[:] = answer
        self._send(slot, FINE, service_ns, answer.size)

    def _send(self, slot: int, status: int, service_ns: int, floats: int) -> None:
        """Send a note."""
        with self.sends, suppress(ConnectionError):  # nobody waits for it any more
            self.socket.send(ANSWERED.pack(slot, status, service_ns, floats))
