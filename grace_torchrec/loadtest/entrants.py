"""Entrants: what stands beside what under load, one difference at a time.

Flow: Subject -> *entrants* by name -> engines.

    plain              stock, one request at a time, one worker: what nothing is done for
    batching           + requests joined                     (stock, one worker)
    sums               + our tables                          (converted, one request at a time)
    streams            + several requests in flight, each on a worker stream (stock, scheduled)
    stock              stock with the same engine as ours: joined requests, as many in flight
    stock_workers      stock, joined requests, several in flight
    ours               converted, joined requests
    ours_workers       converted, joined requests, several in flight
    shared_streams     ours_workers, whose batches share as many streams, segment by segment
    ours_recorded      ours with a recorder that sees every batch
    processes_control  stock in two processes: what cores give where the interpreter lock does not bind
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from grace_torchrec.loadtest.subject import Subject
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.serve.engine import Engine


@dataclass(frozen=True)
class Entrant:
    """How requests are served.

    Attributes:
        model: ``stock``, ``ours`` or ``scheduled`` (stock, its operators scheduled over streams).
        max_batch: Rows of a joined batch; 1 row more than none joins nothing.
        max_inflight: Batches in flight.
        recorded: Whether a recorder looks on.
        processes: Processes that serve.
        streams: Streams that batches in flight share; None: each has its own.
        by_default: Whether it runs unless others are named.
    """

    model: str
    max_batch: int
    max_inflight: int = 1
    recorded: bool = False
    processes: int = 1
    streams: int | None = None
    by_default: bool = True


def entrants(max_batch: int, inflight: int, workers: int) -> dict[str, Entrant]:
    """Return the entrants by name.

    Args:
        max_batch: Rows of joined batches.
        inflight: Batches in flight of ours, and of stock.
        workers: Batches in flight of entrants with several.
    """
    return {
        "plain": Entrant("stock", 1),
        "batching": Entrant("stock", max_batch),
        "sums": Entrant("ours", 1),
        "streams": Entrant("scheduled", 1, workers),
        "stock": Entrant("stock", max_batch, inflight),
        "stock_workers": Entrant("stock", max_batch, workers),
        "ours": Entrant("ours", max_batch, inflight),
        "ours_workers": Entrant("ours", max_batch, workers, by_default=False),
        "shared_streams": Entrant("ours", max_batch, workers, streams=workers, by_default=False),
        "ours_recorded": Entrant("ours", max_batch, inflight, recorded=True, by_default=False),
        "processes_control": Entrant("stock", max_batch, 1, processes=2),
    }


class Models:
    """The models of a subject, each made when it is first asked for.

    Args:
        subject: What is served.
        streams: Streams at most of one query.
    """

    def __init__(self, subject: Subject, streams: int) -> None:
        self.subject, self.streams = subject, streams
        self._scheduled: nn.Module | None = None

    def named(self, name: str) -> nn.Module:
        """Return ``stock``, ``ours`` or ``scheduled``."""
        if name == "stock":
            return self.subject.stock
        if name == "ours":
            return self.subject.served
        if self._scheduled is None:
            result = schedule_(self.subject.stock, self.subject.requests[0], self.streams)
            self._scheduled = result.module
        return self._scheduled


def engine_of(
    entrant: Entrant, models: Models, recorder: Callable[[nn.Module], Any] | None
) -> Engine:
    """Return the engine of an entrant.

    Args:
        entrant: How.
        models: What.
        recorder: Makes a recorder for a model.
    """
    model = models.named(entrant.model)
    return Engine(
        model,
        recorder=recorder(model) if entrant.recorded and recorder is not None else None,
        max_batch=entrant.max_batch,
        max_inflight=entrant.max_inflight,
        streams=entrant.streams,
        max_queue=4096,
    )
