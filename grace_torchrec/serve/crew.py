"""Crew: the queue of an engine and the threads that serve it, and how they end.

Flow: Engine -> *Crew*.  ``close``, an engine that is dropped, or the end of the interpreter -> the
queue shuts its door, workers answer what it holds, the shadow compares the rest.
Threads hold what is here and never the engine: so one that is dropped can end them.
"""

import atexit
import os
import threading
import time
import weakref
from dataclasses import dataclass, field

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.answering import fail
from grace_torchrec.serve.metrics import EngineMetrics
from grace_torchrec.serve.request_queue import Rejected, RequestQueue, begins
from grace_torchrec.serve.shadow import Shadow
from grace_torchrec.serve.shared_streams import SharedStreams
from grace_torchrec.serve.workers import Workers

CLOSES = "engine: it is closing and accepts no more requests"
EXIT_S = 5.0  # what is under way when the interpreter exits has so long
_open: "set[Crew]" = set()  # those nobody has ended; other threads change it at any moment


@dataclass(frozen=True, eq=False)
class Crew:
    """The queue and the threads of an engine.

    Attributes:
        queue: Where requests wait.
        workers: Answer them.
        shadow: Compares a share of the answers, or None.
        metrics: Counts.
        streams: What batches in flight share, or None.
        process: That has the threads: a child that is forked has none of them.
    """

    queue: RequestQueue
    workers: Workers
    shadow: Shadow | None
    metrics: EngineMetrics
    streams: SharedStreams | None = None
    process: int = field(default_factory=os.getpid)

    def serve(self, owner: object) -> None:
        """Be ended when the owner is let go of, and when the interpreter exits."""
        weakref.finalize(owner, self._end_beside).atexit = False
        _open.add(self)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Accept no more, wait until what was accepted is answered; False: it took too long."""
        if self.is_elsewhere():
            return True
        if timeout_s is not None and timeout_s > threading.TIMEOUT_MAX:
            timeout_s = None  # more than a thread can wait
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.queue.close(CLOSES)
        if not self.workers.join(_left_s(until_s)):
            return False
        if self.shadow is not None and not self.shadow.drain(_left_s(until_s)):
            return False
        if self.streams is not None:
            self.streams.close()
        return True

    def close(self, *, cancel: bool = False, timeout_s: float | None = None) -> bool:
        """Drain and end; False: it took too long, and threads that compute are left alone.

        Args:
            cancel: Fail the requests that wait instead of computing them.
            timeout_s: Seconds to wait at most.
        """
        if self.is_elsewhere():
            return True
        self.queue.close(CLOSES)
        if cancel:
            self._fail_waiting()
        if not self.drain(timeout_s):
            return False
        if self.shadow is not None:
            self.shadow.close()
        _open.discard(self)
        return True

    def is_elsewhere(self) -> bool:
        """Tell a process that was forked from the one that has the threads."""
        return os.getpid() != self.process

    def refuse_child(self, call: str) -> None:
        """Refuse a call that nobody would answer, for this process was forked.

        Raises:
            NotSupported: it was.
        """
        if self.is_elsewhere():
            raise NotSupported(
                f"Engine.{call}: this process was forked from the one whose threads serve; "
                "make an engine after the fork"
            )

    def refuse_own_thread(self, call: str) -> None:
        """Refuse a call that would wait for the thread it is on.

        Raises:
            NotSupported: the thread is one of the crew.
        """
        if self.is_elsewhere():  # none is here, and a lock may have been held at the fork
            return
        thread = threading.current_thread()
        on_shadow = self.shadow is not None and self.shadow.is_on(thread)
        on_stream = self.streams is not None and self.streams.has(thread)
        if on_shadow or on_stream or self.workers.has(thread):
            raise NotSupported(
                f"Engine.{call}: called on a thread of the engine, such as by a future's callback, "
                "which it would wait for; call it from a thread of yours"
            )

    def _fail_waiting(self) -> None:
        """Fail the requests that wait."""
        for request in self.queue.remove_all():
            if request.started or begins(request.future):
                fail(request, Rejected(CLOSES))
            self.metrics.count(cancelled=1)

    def _end_beside(self) -> None:
        """End, on a thread of its own: the collector may run amid any code, with locks held."""
        if self.is_elsewhere():
            _open.discard(self)
        elif self in _open:
            threading.Thread(target=self.close, name="grace-engine-end", daemon=True).start()


def timed_out(call: str, timeout_s: float | None) -> GraceError:
    """Return the error of a call that waited in vain."""
    return GraceError(
        f"Engine.{call}: a batch is not done after {timeout_s} s; its requests stay open. Wait "
        "longer, or leave it: its thread ends with the model's call, or with the process"
    )


def _left_s(until_s: float | None) -> float | None:
    """Return the seconds left of a time limit."""
    return None if until_s is None else max(0.0, until_s - time.monotonic())


@atexit.register
def _end_all() -> None:
    """End the engines that nobody closed, before the interpreter takes their threads' ground."""
    until_s = time.monotonic() + EXIT_S
    here = [crew for crew in list(_open) if not crew.is_elsewhere()]  # the copy is one step
    for crew in here:
        crew.queue.close(CLOSES)
    for crew in here:
        crew.close(timeout_s=_left_s(until_s))
