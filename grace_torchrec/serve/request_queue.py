"""Request queue: what waits for a worker, in the order in which it came.

Flow: submit -> *RequestQueue*, bounded -> a free worker takes the first request and those behind it
that it can be joined with.  A worker that is free takes what there is at once, so batches grow
only while all workers are busy.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.request_form import Form


class Rejected(GraceError):
    """A request was not accepted: the queue is full, the engine closes, or it would be too late."""


class DeadlineExceeded(GraceError):
    """A request's deadline passed before a worker was free; it was not computed."""


@dataclass(eq=False, slots=True)
class Request:
    """One request and its answer to come.

    Attributes:
        batch: Positional arguments of the model.
        form: Its rows and kind.
        submitted_s: When it came, by ``time.perf_counter``.
        deadline_s: When it is too late, by the same clock; None is never.
        future: Its answer.
        started: Whether a worker took it.
        tries: Workers that ended while they had it.
        ready: On a GPU, the event that its inputs are ready after.
    """

    batch: tuple[Any, ...]
    form: Form
    submitted_s: float
    deadline_s: float | None = None
    future: "Future[Any]" = field(default_factory=Future)
    started: bool = False
    tries: int = 0
    ready: Any = None


@dataclass(frozen=True)
class Taken:
    """What a worker took.

    Attributes:
        requests: To be computed together; their futures run.
        expired: Too late; nobody answered them yet.
        cancelled: Requests that were cancelled in time.
    """

    requests: list[Request]
    expired: list[Request]
    cancelled: int


class RequestQueue:
    """A bounded queue of requests.

    Args:
        max_queue: Requests that wait at most.
        max_batch: Rows of a batch at most; a request with more runs alone.
        max_wait_s: How long a batch may grow while other workers are busy.
        others_busy: Whether another worker than the caller is.
    """

    def __init__(
        self, max_queue: int, max_batch: int, max_wait_s: float, others_busy: Callable[[], bool]
    ) -> None:
        self.max_queue, self.max_batch, self.max_wait_s = max_queue, max_batch, max_wait_s
        self.others_busy = others_busy
        self.waiting: deque[Request] = deque()
        self.rows = 0
        self._changed = threading.Condition()
        self._sleepers = 0
        self._closed: str | None = None
        # What waits is looked through only if something can leave: it may be long.
        self._cancelled = threading.Event()
        self._earliest_s = math.inf  # no request that waits is too late before

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self.waiting)

    def make_room(self) -> Taken | None:
        """Where the queue is full, take out what nobody waits for any more.

        Returns:
            Requests that were cancelled or too late, whoever gets the room; None is none.
        """
        with self._changed:
            full = len(self.waiting) >= self.max_queue
            return self._make_room() if full and self._can_make_room() else None

    def put(self, request: Request) -> None:
        """Add a request.

        Raises:
            Rejected: the queue is full or closed.
        """
        with self._changed:
            if self._closed is not None:
                raise Rejected(self._closed)
            if len(self.waiting) >= self.max_queue:
                raise Rejected(
                    f"engine: {self.max_queue} requests wait already; send fewer, or try later"
                )
            self._append(request)
            if self._sleepers:
                self._changed.notify()

    def put_back(self, requests: list[Request]) -> None:
        """Put started requests in front again, also when closed: they were accepted."""
        with self._changed:
            self.waiting.extendleft(reversed(requests))
            self.rows += sum(request.form.rows for request in requests)
            self._changed.notify()

    def take(self) -> Taken | None:
        """Wait for requests; return those of the next batch, or None once closed and empty."""
        with self._changed:
            while not self.waiting:
                if self._closed is not None:
                    return None
                self._sleep(None)
            if self.max_wait_s > 0:
                self._let_grow()
            taken = self._taken()
            if self.waiting and self._sleepers:  # of another kind, or too many for one batch
                self._changed.notify()
            return taken

    def close(self, why: str) -> None:
        """Accept no more requests; those that wait are still taken.

        Args:
            why: What later callers are told.
        """
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    def wake(self) -> None:
        """Let workers look again: a batch that grows must not wait for a worker that is free."""
        if self.max_wait_s > 0:
            with self._changed:
                self._changed.notify_all()

    def remove_all(self) -> list[Request]:
        """Remove and return everything that waits."""
        with self._changed:
            removed, self.rows = list(self.waiting), 0
            self.waiting.clear()
            return removed

    def _sleep(self, seconds: float | None) -> None:
        """Wait for a change."""
        self._sleepers += 1
        try:
            self._changed.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._sleepers -= 1

    def _let_grow(self) -> None:
        """Wait for company while other workers are busy, not longer than the bound."""
        while self.waiting and self.rows < self.max_batch and self._closed is None:
            left_s = self._grows_until_s() - time.perf_counter()
            if left_s <= 0 or not self.others_busy():
                return
            self._sleep(left_s)

    def _grows_until_s(self) -> float:
        """Return when a batch must start.

        No deadline is to pass by growing: as much as growing may take stays before the earliest.
        """
        deadlines_s = (r.deadline_s for r in self.waiting if r.deadline_s is not None)
        return min(
            self.waiting[0].submitted_s + self.max_wait_s,
            min(deadlines_s, default=math.inf) - self.max_wait_s,
        )

    def _taken(self) -> Taken:
        """Take the first request that is to be computed, and those it can be joined with."""
        now_s = time.perf_counter()
        requests: list[Request] = []
        expired: list[Request] = []
        cancelled = rows = 0
        while self.waiting:
            request = self.waiting[0]
            if requests and (
                request.tries  # its last worker ended: it is tried alone
                or requests[0].tries
                or request.form.kind != requests[0].form.kind
                or rows + request.form.rows > self.max_batch
                or len(requests) >= self.max_batch  # requests without rows are requests too
            ):
                break
            self.waiting.popleft()
            self.rows -= request.form.rows
            if not request.started and not begins(request.future):
                cancelled += 1
                continue
            late = request.deadline_s is not None and request.deadline_s <= now_s
            if late and not request.started:
                expired.append(request)
                continue
            request.started = True
            requests.append(request)
            rows += request.form.rows
        return Taken(requests, expired, cancelled)

    def _append(self, request: Request) -> None:
        """Add a request, and learn when it may leave."""
        if not self.waiting:
            self._earliest_s = math.inf
        if request.deadline_s is not None:
            self._earliest_s = min(self._earliest_s, request.deadline_s)
        request.future.add_done_callback(partial(_note_cancelled, self._cancelled))
        self.waiting.append(request)
        self.rows += request.form.rows

    def _can_make_room(self) -> bool:
        """Tell whether a request may be waiting that nobody waits for any more."""
        return self._cancelled.is_set() or self._earliest_s <= time.perf_counter()

    def _make_room(self) -> Taken:
        """Take out what nobody waits for any more."""
        self._cancelled.clear()  # first: what is cancelled from here on is for the next look
        now_s = time.perf_counter()
        kept: deque[Request] = deque()
        expired: list[Request] = []
        cancelled = 0
        for request in self.waiting:
            late = request.deadline_s is not None and request.deadline_s <= now_s
            if request.started or not (late or request.future.cancelled()):
                kept.append(request)
            elif begins(request.future):
                expired.append(request)
            else:
                cancelled += 1
        self.waiting = kept
        self.rows = sum(request.form.rows for request in kept)
        self._earliest_s = min(
            (r.deadline_s for r in kept if r.deadline_s is not None and not r.started),
            default=math.inf,
        )
        return Taken([], expired, cancelled)


def begins(future: "Future[Any]") -> bool:
    """Let a future run, which nobody can cancel then; False: nobody waits for it any more.

    A caller may have settled its own future; that must not take along what was taken before it.
    """
    try:
        return future.set_running_or_notify_cancel()
    except (InvalidStateError, RuntimeError):  # which of them depends on the version of Python
        return False


def _note_cancelled(cancelled: threading.Event, future: "Future[Any]") -> None:
    """Note that a request that waits was cancelled; the future keeps nothing else of a queue."""
    if future.cancelled():
        cancelled.set()
