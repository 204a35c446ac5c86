"""Engine: concurrent requests for one model, batched, bounded, and answered whatever happens.

Flow: submit -> form checked -> RequestQueue -> workers -> futures; recorder and shadow look on.
A worker that is free serves at once; requests that come while all are busy wait together and are
computed together.  How workers and streams follow RecOS: docs/engine.md.
"""

import asyncio
import math
import threading
import time
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any

from torch import nn

from grace_torchrec.arguments import expect, expect_model, expect_number
from grace_torchrec.errors import NotSupported
from grace_torchrec.serve.answering import Duties, expire
from grace_torchrec.serve.crew import Crew, timed_out
from grace_torchrec.serve.engine_arguments import (
    check_counts,
    check_seconds,
    observer_of,
    refuse_no_arguments,
)
from grace_torchrec.serve.metrics import EngineMetrics, Now
from grace_torchrec.serve.model_switch import ModelSwitch
from grace_torchrec.serve.outlook import Outlook
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.serve.request_queue import Rejected, Request, RequestQueue
from grace_torchrec.serve.segmented_model import streams_for
from grace_torchrec.serve.shadow import Shadow, ShadowCounts
from grace_torchrec.serve.worker_streams import device_of, ready_event
from grace_torchrec.serve.workers import Workers


class Engine:
    """Serves a model to any number of callers.

    Rows of a request must not depend on rows of other requests, as they do in no model in eval mode
    that does not compare the samples of its batch: requests are joined row by row.

    Args:
        served: What answers: a Served, or any module in eval mode.
        stock: The stock model, for ``use_stock`` and for the shadow.
        recorder: Shown the bags of every batch after its answers are out: has ``observe(bags)``;
            the thread that computed the batch calls it before it takes the next one.
        max_inflight: Batches that compute at a time, each on a thread of its own.
        streams: Streams that batches in flight share, segment by segment; None: each batch keeps to
            its own.  The models must be scheduled: ``convert(streams=2 or more)``.
        max_batch: Rows of a joined batch at most.
        max_wait_ms: How long a batch may grow while other batches compute; 0: a free worker never
            waits.
        max_queue: Requests that wait at most; more are rejected.
        shadow: Share of the requests that the other of ``served`` and ``stock`` answers too.
        shadow_tolerance: Largest absolute difference of answers that count as equal.

    Attributes:
        metrics: Counts and latencies; ``metrics.snapshot()``.

    Raises:
        GraceError: a number is out of range.
        NotSupported: a model is in training mode, there is a shadow and no stock model, or streams
            are to be shared by a model that is not scheduled.
    """

    def __init__(
        self,
        served: nn.Module,
        *,
        stock: nn.Module | None = None,
        recorder: Any = None,
        max_inflight: int = 1,
        streams: int | None = None,
        max_batch: int = 256,
        max_wait_ms: float = 0.0,
        max_queue: int = 1024,
        shadow: float = 0.0,
        shadow_tolerance: float = 1e-4,
    ) -> None:
        expect_model("Engine", served)
        check_counts(
            max_inflight=max_inflight, streams=1 if streams is None else streams,
            max_batch=max_batch, max_queue=max_queue,
        )  # fmt: skip
        if max_wait_ms != math.inf:  # as long as others compute
            expect_number("Engine", "max_wait_ms", max_wait_ms, 0)
        if shadow_tolerance != math.inf:  # differences are measured, none is too large
            expect_number("Engine", "shadow_tolerance", shadow_tolerance, 0)
        expect_number("Engine", "shadow (a share of requests)", shadow, 0, 1)
        if shadow and stock is None:
            raise NotSupported("Engine: a shadow compares with the stock model; pass stock=model")
        observe = observer_of(recorder)
        self._device = device_of(served)
        shared = None
        if streams is not None:
            shared = streams_for(served, streams, self._device, max_inflight)
        self._one_change = threading.Lock()
        try:
            self._switch = ModelSwitch(served, stock, shared)
        except BaseException:
            if shared is not None:
                shared.close()  # their threads would wait for segments for ever
            raise
        self._max_inflight, self._max_batch = max_inflight, max_batch
        # What threads hold must not lead back here, or an engine that is dropped would never end.
        self._outlook = outlook = Outlook(max_inflight)
        self._queue = RequestQueue(
            max_queue, max_batch, max_wait_ms * 1e-3, lambda: outlook.busy > 0
        )
        self._shadow = Shadow(shadow, shadow_tolerance) if shadow else None
        self.metrics = EngineMetrics(
            partial(_now, self._queue, outlook, self._switch, self._shadow, max_batch)
        )
        self._workers = Workers(
            Duties(
                self._queue, self._switch.held, self.metrics, self._outlook,
                observe, self._shadow, max_inflight, self._device,
            )
        )  # fmt: skip
        self._crew = Crew(self._queue, self._workers, self._shadow, self.metrics, shared)
        self._crew.serve(self)
        self._start_workers()

    @property
    def served(self) -> nn.Module:
        """The model that is served: it answers, unless :meth:`use_stock` asks for its stock twin."""
        return self._switch.live.model

    def submit(self, *batch: Any, deadline_s: float | None = None) -> "Future[Any]":
        """Accept one request.

        Args:
            *batch: The model's positional arguments, with any number of rows, 0 too.
            deadline_s: Seconds from now after which nobody wants the answer.

        Returns:
            Its answer to come; ``cancel()`` works until a worker takes it.  It fails with
            DeadlineExceeded, told when a worker is free, or with what the model raises on this
            very request.

        Raises:
            Rejected: too many requests wait, the deadline cannot be met, or the engine closes.
            GraceError: the request is malformed, or has no arguments and the model takes some.
            NotSupported: this process was forked from the one that has the engine's threads.
        """
        self._crew.refuse_child("submit")
        try:
            check_seconds("request", "deadline_s", deadline_s)
            if not batch:
                refuse_no_arguments(self._switch.answering)
            form = form_of(batch)
            now_s = time.perf_counter()
            if deadline_s is not None:
                self._check_deadline(deadline_s)
            until_s = None if deadline_s is None else now_s + deadline_s
            request = Request(batch, form, now_s, until_s, ready=ready_event(self._device))
            gone = self._queue.make_room()
            if gone is not None:  # told now: this request may be rejected all the same
                expire(gone, self.metrics)
            self._queue.put(request)
        except Exception:  # also what a malformed request raises where it is looked at
            self.metrics.count(rejected=1)
            raise
        self.metrics.count(accepted=1)
        return request.future

    async def answer(self, *batch: Any, deadline_s: float | None = None) -> Any:
        """Accept one request and return its answer; arguments and errors as of ``submit``.

        Cancelling the task cancels the request, if no worker has taken it.
        """
        return await asyncio.wrap_future(self.submit(*batch, deadline_s=deadline_s))

    def replace(self, served: nn.Module, *, stock: nn.Module | None = None) -> None:
        """Answer with another model from the next batch on; returns when no batch uses the old one.

        Requests that were drawn for the shadow are still compared with the old one.

        Args:
            served: The new model.
            stock: Its stock twin; default: the one there was.

        Raises:
            NotSupported: a model is in training mode, a model that computes calls this, or a
                process that was forked does.
        """
        expect_model("Engine.replace", served)
        if self._switch.is_held_here():
            raise NotSupported(
                "Engine.replace: called while this thread computes a batch, whose model it would "
                "wait for; call it from a thread of yours, or from a future's callback"
            )
        self._crew.refuse_child("replace")
        with self._one_change:
            old = self._switch.replace(served, stock)
            self._start_workers()
        old.wait_until_unused()

    def use_stock(self, on: bool = True) -> None:
        """Answer with the stock model, or with the served one again, from the next batch on.

        Raises:
            GraceError: ``on`` is no bool.
            NotSupported: there is no stock model.
        """
        expect("Engine.use_stock", "on", on, bool)
        self._switch.use_stock(on)

    def drain(self, *, timeout_s: float | None = None) -> None:
        """Accept no more requests; return when all that were accepted have their answer.

        Args:
            timeout_s: Seconds to wait at most; None: as long as it takes.

        Raises:
            NotSupported: a thread of the engine calls this, as callbacks of futures do.
            GraceError: the time is over; the door stays shut, and requests stay open.  Or it is none.
        """
        check_seconds("Engine.drain", "timeout_s", timeout_s)
        self._crew.refuse_own_thread("drain")
        if not self._crew.drain(timeout_s):
            raise timed_out("drain", timeout_s)

    def close(self, *, cancel: bool = False, timeout_s: float | None = None) -> None:
        """Drain and end; a second call does nothing.

        Args:
            cancel: Fail the requests that wait instead of computing them.
            timeout_s: Seconds to wait at most; None: as long as it takes.

        Raises:
            NotSupported: a thread of the engine calls this, as callbacks of futures do.
            GraceError: the time is over: a model did not return.  Or an argument is something else.
        """
        expect("Engine.close", "cancel", cancel, bool)
        check_seconds("Engine.close", "timeout_s", timeout_s)
        self._crew.refuse_own_thread("close")
        if not self._crew.close(cancel=cancel, timeout_s=timeout_s):
            raise timed_out("close", timeout_s)

    def __enter__(self) -> "Engine":
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close: what was accepted is answered."""
        self.close()

    def _check_deadline(self, deadline_s: float) -> None:
        """Refuse a request that is expected to come too late."""
        if not self._outlook.busy:
            return
        start_s = self._outlook.expected_start_s(self._queue.rows, self._max_batch)
        if start_s > deadline_s:
            raise Rejected(
                f"engine: a request that comes now is expected to start in {start_s * 1e3:.1f} ms, "
                f"its deadline is {deadline_s * 1e3:.1f} ms; send fewer, or allow more time"
            )

    def _start_workers(self) -> None:
        """Let there be a thread for each batch in flight, and one that rewrites ahead."""
        self._workers.start(self._max_inflight + bool(self._switch.live.ahead))


def _now(
    queue: RequestQueue,
    outlook: Outlook,
    switch: ModelSwitch,
    shadow: Shadow | None,
    max_batch: int,
) -> Now:
    """Return what metrics cannot count."""
    return Now(
        queued=len(queue),
        running=outlook.busy,
        model="stock" if switch.with_stock else "ours",
        replaced=switch.replaced,
        expected_start_ms=1e3 * outlook.expected_start_s(queue.rows, max_batch),
        outlook_error_us=outlook.mean_error_us,
        shadow=ShadowCounts() if shadow is None else shadow.snapshot(),
        streams={} if switch.streams is None else switch.streams.loads(),
    )
