"""Shared streams: what batches in flight are given to, and who decides which stream gets what.

Flow: Engine(streams=n) -> *SharedStreams*: the streams, one lock for decisions, what is under way ->
:mod:`grace_torchrec.serve.segmented_model` asks it for every segment of every batch.
Source: RecOS, IJCAI'25, sections 3.3 and 3.4: expected completion of streams, DepValue and a round
of embeddings for each query, caches on the stream that has them.
Derived: what is done is asked of events whenever something is decided, on a CPU as on a GPU.
The lock is held for a decision, and never while anything is launched or waited for.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from grace_torchrec.schedule.online import OnlineScheduler
from grace_torchrec.schedule.stream_sets import StreamSet, stream_set

MEASURED = 50  # hand-overs, of which the shortest counts


@dataclass(frozen=True)
class StreamLoad:
    """What one of the shared streams has to do.

    Attributes:
        backlog_us: Expected time until it is done.
        launched: Segments launched on it so far.
    """

    backlog_us: float
    launched: int


class Launched:
    """A segment on a stream; its event is there once the stream was told, or it is ``lost``."""

    __slots__ = ("event", "lost", "scheduler")

    def __init__(self, scheduler: OnlineScheduler) -> None:
        self.scheduler = scheduler
        self.event: Any = None
        self.lost = False


class SharedStreams:
    """The streams of an engine; queries of any number of threads share them.

    Args:
        num_streams: Streams.
        device: Of the model.
        callers: Streams that queries come from.
        streams: Carries them out; default: what the device has.

    Attributes:
        processors: Multiprocessors of the device.
        hand_over_us: Microseconds from giving a stream nothing to do until it is done, at best.

    Raises:
        NotSupported: the device has not so many streams.
    """

    def __init__(
        self,
        num_streams: int,
        device: torch.device,
        callers: int = 1,
        streams: StreamSet | None = None,
    ) -> None:
        self.num_streams = num_streams
        self.streams = stream_set(num_streams, device, callers) if streams is None else streams
        self.processors = 56
        if device.type == "cuda":
            self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.hand_over_us = self._hand_over_us()
        self._lock = threading.Lock()
        self._under_way: list[deque[Launched]] = [deque() for _ in range(num_streams)]
        self._launched_n = [0] * num_streams

    def begin(self, scheduler: OnlineScheduler) -> Iterator[tuple[int, int]]:
        """Start a query: its round of embeddings has a start of its own."""
        with self._lock:
            return scheduler.begin()

    def decide(
        self, decisions: Iterator[tuple[int, int]], scheduler: OnlineScheduler
    ) -> tuple[int, int, Launched] | None:
        """Return a query's next segment and its stream; None: there is no more.

        Args:
            decisions: Of the query.
            scheduler: That makes them.

        Returns:
            Place of the segment, its stream, and what is to get the event of its end.
        """
        with self._lock:
            self._note_done()
            decided = next(decisions, None)
            if decided is None:
                return None
            place, stream = decided
            launched = Launched(scheduler)
            self._under_way[stream].append(launched)
            self._launched_n[stream] += 1
            return place, stream, launched

    def loads(self) -> dict[int, StreamLoad]:
        """Return the load of each stream, now."""
        with self._lock:
            self._note_done()
            return {
                stream: StreamLoad(sum(of.backlog_us[stream] for of in _schedulers(queue)), count)
                for stream, (queue, count) in enumerate(
                    zip(self._under_way, self._launched_n, strict=True)
                )
            }

    def has(self, thread: threading.Thread) -> bool:
        """Tell whether a thread is one of the streams, which runs segments of a model."""
        return self.streams.has(thread)

    def close(self) -> None:
        """End the streams, once no query is under way; a second call does nothing."""
        self.streams.close()

    def _note_done(self) -> None:
        """Tell schedulers what is done, in the order in which it was decided; the lock is held.

        Threads may tell a stream their segments in another order: none counts as done before those
        that were decided before it, so a cache is never free too early.
        """
        for stream, queue in enumerate(self._under_way):
            while queue and self._is_over(queue[0]):
                queue.popleft().scheduler.complete(stream)

    def _is_over(self, launched: Launched) -> bool:
        """Tell whether a segment is done, or no stream will ever do it."""
        if launched.lost or launched.event is None:
            return launched.lost
        return self.streams.is_done(launched.event)

    def _hand_over_us(self) -> float:
        """Measure what handing a segment to a stream costs."""
        least_s = float("inf")
        for _ in range(MEASURED):
            began_s = time.perf_counter()
            self.streams.wait(self.streams.launch(0, lambda: None, ()))
            least_s = min(least_s, time.perf_counter() - began_s)
        return least_s * 1e6


def _schedulers(queue: Iterable[Launched]) -> Iterable[OnlineScheduler]:
    """Return the schedulers that have something on a stream."""
    return {id(one.scheduler): one.scheduler for one in queue}.values()
