"""Answering: what a worker does with a batch.

Flow: RequestQueue -> *Answering*: take, join, rewrite ahead, compute, split -> futures, recorder, shadow.
A batch that fails is halved and tried again until only the request that cannot be answered fails.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.joining import CannotSplit, join, original_bags, split
from grace_torchrec.serve.live_model import LiveModel
from grace_torchrec.serve.metrics import EngineMetrics
from grace_torchrec.serve.outlook import Outlook
from grace_torchrec.serve.request_form import blank_row
from grace_torchrec.serve.request_queue import DeadlineExceeded, Request, RequestQueue, Taken
from grace_torchrec.serve.shadow import Shadow, copied
from grace_torchrec.serve.worker_streams import WorkerStream
from grace_torchrec.traces.live_hooks import shown_here, unheard_here

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Duties:
    """What workers work with.

    Attributes:
        queue: Where requests wait.
        live: Holds the model that answers now, and tells whether its stock twin is to answer.
        metrics: Counts.
        outlook: Told of every batch.
        observe: Called with the bags of every batch, or None.
        shadow: Compares a share of the answers, or None.
        max_inflight: Batches that compute at a time.
        device: Of the model.
    """

    queue: RequestQueue
    live: Callable[[], AbstractContextManager[tuple[LiveModel, bool]]]
    metrics: EngineMetrics
    outlook: Outlook
    observe: Callable[[Any], None] | None
    shadow: Shadow | None
    max_inflight: int
    device: torch.device


@dataclass(frozen=True)
class _Answered:
    """What was computed.

    Attributes:
        batch: The joined requests.
        answers: To each request, safe on its caller's stream.
        live: What computed them.
        with_stock: Whether its stock twin did.
    """

    batch: tuple[Any, ...]
    answers: list[Any]
    live: LiveModel
    with_stock: bool


class Answering:
    """What one thread does with one batch after the other.

    Args:
        duties: What it works with.
        streams: Those that are free, of all workers.

    Attributes:
        requests: What it has taken and not answered yet.
    """

    def __init__(self, duties: Duties, streams: "SimpleQueue[WorkerStream]") -> None:
        self.duties, self.streams = duties, streams
        self.requests: list[Request] = []

    def serve_next(self) -> bool:
        """Answer the next batch; nothing of it is kept afterwards.  False: there will be none."""
        taken = self.duties.queue.take()
        if taken is None:
            return False
        self.requests = taken.requests
        expire(taken, self.duties.metrics)
        if taken.requests:
            self._answer(taken.requests)
        self.requests = []
        return True

    def _answer(self, requests: list[Request]) -> None:
        """Answer requests together; if that fails, each part by itself.

        Futures are settled once the model is let go of: a callback may replace it.
        """
        with self.duties.live() as (live, with_stock):
            tried = self._tried(requests, live, with_stock)
        if isinstance(tried, _Answered):
            self._hand_out(requests, tried)
        elif len(requests) == 1:
            self.duties.metrics.count(failed=1)
            fail(requests[0], tried)
        elif isinstance(tried, CannotSplit):
            for request in requests:
                self._answer([request])
        else:
            self.duties.metrics.count(retried=1)
            half = len(requests) // 2
            self._answer(requests[:half])
            self._answer(requests[half:])

    def _tried(
        self, requests: list[Request], live: LiveModel, with_stock: bool
    ) -> _Answered | Exception:
        """Return the answers to requests that are computed together, or why there are none."""
        try:
            return self._computed(requests, live, with_stock)
        except CannotSplit as error:
            live.row_dims[with_stock].refuse(requests[0].form.kind, error)
            # one request was split only if it is empty: a blank row was computed beside it
            return _empty_without_rows(error) if len(requests) == 1 else error
        except Exception as error:
            return error

    def _hand_out(self, requests: list[Request], answered: _Answered) -> None:
        """Count answered requests and settle their futures, from which nothing fails."""
        drawn = self._drawn(requests, answered)
        now_s = time.perf_counter()
        self.duties.metrics.answered([now_s - request.submitted_s for request in requests])
        for request, answer in zip(requests, answered.answers, strict=True):
            _settle(request.future.set_result, answer)
        self._show(answered, drawn)

    def _computed(self, requests: list[Request], live: LiveModel, with_stock: bool) -> _Answered:
        """Return the answer to each request, computed as one batch.

        A CPU joins and rewrites before it waits for a stream: other batches compute meanwhile.
        A GPU does so on the stream: inputs are ready there and nowhere else.
        """
        on_host = self.duties.device.type == "cpu"
        batches, rows = _with_rows(requests)
        if len(rows) > 1:
            live.row_dims[with_stock].check(requests[0].form.kind)
        if on_host:
            batch = _prepared(batches, live, with_stock)
        with self._stream(requests, sum(rows)) as stream:
            if not on_host:
                batch = _prepared(batches, live, with_stock)
            output = live.compute(batch, with_stock=with_stock, in_flight=True)
            kind = requests[0].form.kind
            answers = _parts(output, kind, batches, rows, live, with_stock)[-len(requests) :]
        for request, answer in zip(requests, answers, strict=True):
            stream.hand_over(answer, request)
        self.duties.metrics.count(batches=1, rows=sum(rows))
        return _Answered(batch, answers, live, with_stock)

    @contextmanager
    def _stream(self, requests: list[Request], rows: int) -> Iterator[WorkerStream]:
        """Hold the next free stream for a batch."""
        outlook = self.duties.outlook
        stream = self.streams.get()
        try:
            began_s = outlook.begin(stream.number, rows)
            computed = False
            try:
                with stream.computing(requests):
                    yield stream
                computed = True
            finally:
                outlook.end(stream.number, rows, began_s, computed=computed)
        finally:
            self.streams.put(stream)
            self.duties.queue.wake()

    def _drawn(self, requests: list[Request], answered: _Answered) -> list[tuple[Request, Any]]:
        """Return the requests drawn for the shadow; their answers are copied, for they go out."""
        shadow = self.duties.shadow
        if shadow is None or answered.live.stock is None:
            return []
        return [
            (request, copied(answer))
            for request, answer in zip(requests, answered.answers, strict=True)
            if shadow.draws()
        ]

    def _show(self, answered: _Answered, drawn: list[tuple[Request, Any]]) -> None:
        """Show an answered batch to the recorder, and drawn requests to the shadow.

        Their own answers are out.  The recorder runs on this thread: the next batch waits for it.
        """
        duties = self.duties
        if duties.observe is not None:
            try:
                for bags in original_bags(answered.batch):
                    duties.observe(bags)
            except Exception:  # a recorder's fault is none of the requests'
                logger.debug("engine: the recorder raised", exc_info=True)
                duties.metrics.count(observer_errors=1)
        other = _other(answered.live, answered.with_stock, duties.observe)
        for request, answer in drawn:
            assert duties.shadow is not None
            duties.shadow.offer(request.batch, answer, other, by_stock=answered.with_stock)


def expire(taken: Taken, metrics: EngineMetrics) -> None:
    """Tell requests that they came too late, and count those that were cancelled."""
    for request in taken.expired:
        fail(request, DeadlineExceeded("engine: the deadline passed before a worker was free"))
    if taken.expired or taken.cancelled:
        metrics.count(expired=len(taken.expired), cancelled=taken.cancelled)


def _with_rows(requests: list[Request]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return batches and their rows; where all are empty, a blank row comes first if it can."""
    batches = [request.batch for request in requests]
    rows = [request.form.rows for request in requests]
    if any(rows) or requests[0].form.is_alone:
        return batches, rows
    return [blank_row(batches[0]), *batches], [1, *rows]


def _prepared(batches: list[tuple[Any, ...]], live: LiveModel, with_stock: bool) -> tuple[Any, ...]:
    """Join batches and, for the served model, rewrite them ahead."""
    batch = join(batches)
    return batch if with_stock else live.prepare(batch)


def _parts(
    output: Any,
    kind: Hashable,
    batches: list[tuple[Any, ...]],
    rows: list[int],
    live: LiveModel,
    with_stock: bool,
) -> list[Any]:
    """Return the part of each batch in an output.

    Raises:
        CannotSplit: they have none of their own.
    """
    row_dims = live.row_dims[with_stock]
    if len(batches) == 1:
        row_dims.note_alone(kind, rows[0], output)
        return [output]

    def compute(some: list[tuple[Any, ...]]) -> Any:
        """Return the output for some of the batches, which are recorded already."""
        prepared = _prepared(some, live, with_stock)
        with unheard_here():
            return live.compute(prepared, with_stock=with_stock, in_flight=True)

    return split(output, rows, row_dims.of(kind, batches, rows, output, compute))


def _other(
    live: LiveModel, with_stock: bool, observe: Callable[[Any], None] | None
) -> Callable[[tuple[Any, ...]], Any]:
    """Return what answers by the model that did not; on a thread of the shadow."""

    def compute(batch: tuple[Any, ...]) -> Any:
        """Answer one request."""
        shown_here(observe)
        prepared = live.prepare(batch) if with_stock else batch
        return live.compute(prepared, with_stock=not with_stock)

    return compute


def _empty_without_rows(error: CannotSplit) -> GraceError:
    """Return why an empty request has no answer: its part of the output cannot be told."""
    return GraceError(
        f"engine: an empty request has no answer of its own, for the model returns {error}; "
        "give one row or more"
    )


def fail(request: Request, error: BaseException) -> None:
    """Give a request its error."""
    if not isinstance(error, Exception):
        error = GraceError(f"engine: workers ended while they had this request: {error!r}")
    _settle(request.future.set_exception, error)


def _settle(settle: Callable[[Any], None], value: Any) -> None:
    """Settle a future; what its callbacks raise concerns no other request."""
    try:
        settle(value)
    except BaseException:
        logger.exception("engine: a callback of a request raised")
