"""Shared streams: batches in flight share a few streams, segment by segment.

Flow: Engine(streams=n) -> *SharedStreams* -> a batch becomes a *QueryInFlight*: one segment after the
other is decided by OnlineScheduler and launched at once, and the caller gets the model's output.
Source: RecOS, IJCAI'25, sections 3.3 to 3.5: expected completion of streams, DepValue and a round of
embeddings for each query, caches on the stream that has them, memory let go of without waiting.
Derived: what is done is asked of events whenever something is decided, on a CPU as on a GPU; and a
segment shorter than handing it over, as measured at the start, is joined with a neighbour.
One lock is held for a decision, and never while anything is launched or waited for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.online import OnlineScheduler
from grace_torchrec.schedule.segment_program import SegmentProgram, segment_program
from grace_torchrec.schedule.stream_sets import StreamSet, stream_set
from grace_torchrec.serve.served import Served

MEASURED = 50  # hand-overs, of which the shortest counts


class Launched:
    """A segment on a stream; its event is there once the stream was told."""

    __slots__ = ("event", "scheduler")

    def __init__(self, scheduler: OnlineScheduler) -> None:
        self.scheduler, self.event = scheduler, None


class SharedStreams:
    """The streams of an engine; queries of any number of threads share them.

    Args:
        num_streams: Streams.
        device: Of the model.
        callers: Streams that queries come from.
        streams: Carries them out; default: what the device has.

    Attributes:
        hand_over_us: Microseconds from giving a stream nothing to do until it is done.
        launched_n: Segments launched on each stream.

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
        self.launched_n = [0] * num_streams
        self.hand_over_us = self._hand_over_us()
        self._lock = threading.Lock()
        self._under_way: list[deque[Launched]] = [deque() for _ in range(num_streams)]

    def serving(self, model: nn.Module) -> Callable[[Sequence[Any]], Any]:
        """Return what answers batches by a model over these streams; it is compiled now, once.

        Args:
            model: What ``convert`` returned, or a scheduled GraphModule.

        Raises:
            NotSupported: the model's operators are not scheduled over streams.
        """
        module = scheduled_module(model)
        shared = SharedModel(self, segment_program(module, self.hand_over_us))
        if isinstance(model, Served):
            return lambda batch: model.run_by(shared.run, *batch)
        return lambda batch: shared.run(module, *batch)

    def decide(
        self, decisions: Iterator[tuple[int, int]], scheduler: OnlineScheduler
    ) -> tuple[int, int, Launched] | None:
        """Return a query's next segment, its stream and what is to get its event; None: no more."""
        with self._lock:
            self._note_done()
            decided = next(decisions, None)
            if decided is None:
                return None
            place, stream = decided
            launched = Launched(scheduler)
            self._under_way[stream].append(launched)
            self.launched_n[stream] += 1
            return place, stream, launched

    def begin(self, scheduler: OnlineScheduler) -> Iterator[tuple[int, int]]:
        """Start a query: its round of embeddings has a start of its own."""
        with self._lock:
            return scheduler.begin()

    def backlog_us(self) -> tuple[float, ...]:
        """Return the expected time until each stream is done, now."""
        with self._lock:
            self._note_done()
            return tuple(
                sum(one.scheduler.backlog_us[stream] for one in _first_of_each(queue))
                for stream, queue in enumerate(self._under_way)
            )

    def close(self) -> None:
        """End the streams, once no query is under way."""
        self.streams.close()

    def _note_done(self) -> None:
        """Tell schedulers what is done, in the order in which it was decided; the lock is held."""
        for stream, queue in enumerate(self._under_way):
            while queue and queue[0].event is not None and self.streams.is_done(queue[0].event):
                queue.popleft().scheduler.complete(stream)

    def _hand_over_us(self) -> float:
        """Measure what handing a segment to a stream costs, at best."""
        least_s = float("inf")
        for _ in range(MEASURED):
            began_s = time.perf_counter()
            self.streams.wait(self.streams.launch(0, lambda: None, ()))
            least_s = min(least_s, time.perf_counter() - began_s)
        return least_s * 1e6


class SharedModel:
    """One model on shared streams.

    Each model has a scheduler of its own: while the last batches of a replaced model are under way,
    their load is not seen by the new one's.

    Args:
        shared: The streams.
        program: The model in segments.
    """

    def __init__(self, shared: SharedStreams, program: SegmentProgram) -> None:
        self.shared, self.program = shared, program
        self.scheduler = OnlineScheduler(
            program.graph, program.stats, shared.num_streams, shared.processors
        )
        for start in range(max(self.scheduler.turns, default=0) + 1):
            self.scheduler.order_of(start)  # now, not while the lock is held
        # Two threads that tell a stream's cache something must not do so in turns.
        self.one_teller = {group: threading.Lock() for group in self.scheduler.groups if group >= 0}

    def run(self, module: nn.Module, *batch: Any) -> Any:
        """Return the model's output.

        Args:
            module: The module that the program was made from, or a twin of it.
            *batch: Its positional arguments.
        """
        query = QueryInFlight(self, module, batch)
        try:
            while query.launch_next():
                pass
        finally:
            query.join()
        return query.result()


class QueryInFlight:
    """One batch on shared streams, told to them by the calling thread.

    Args:
        model: What computes it.
        module: Its modules.
        batch: Positional arguments.
    """

    def __init__(self, model: SharedModel, module: nn.Module, batch: Sequence[Any]) -> None:
        self.model, self.module, self.streams = model, module, model.shared.streams
        self.values = model.program.begin(module, batch)
        self.start = self.streams.begin()
        self.decisions = model.shared.begin(model.scheduler)
        self.errors: list[BaseException] = []
        self.told: dict[int, tuple[int, int, Any]] = {}  # segment -> its stream, number and event
        self.last: dict[int, Any] = {}  # event of the last segment on each stream

    def launch_next(self) -> bool:
        """Decide and launch the next segment; False: there is none, or one failed."""
        if self.errors:
            return False
        decided = self.model.shared.decide(self.decisions, self.model.scheduler)
        if decided is None:
            return False
        place, stream, launched = decided
        task = SegmentTask(self, place)
        launched.event = event = self.streams.launch(stream, task, self._after(place, stream))
        self.told[place], self.last[stream] = (stream, len(self.told), event), event
        return True

    def join(self) -> None:
        """Let the caller wait for all that was launched; values live until then."""
        self.streams.join(list(self.last.values()), list(self.values.values()))

    def result(self) -> Any:
        """Return the model's output.

        Raises:
            BaseException: what a segment raised.
        """
        if self.errors:
            raise self.errors[0]
        result = self.model.program.end(self.module, self.values)
        self.streams.give(result)
        return result

    def _after(self, place: int, stream: int) -> list[Any]:
        """Return the events a stream waits for: of each other stream, the last that is needed."""
        latest: dict[int, tuple[int, Any]] = {}
        for need in self.model.program.graph.ops[place].needs:
            other, number, event = self.told[need]
            if other != stream and number >= latest.get(other, (0, None))[0]:
                latest[other] = number, event
        needed = [event for _, event in latest.values()]
        is_first = stream not in self.last and self.start is not None
        return [self.start, *needed] if is_first else needed


class SegmentTask:
    """A segment of a query, as a task that raises nothing."""

    def __init__(self, query: QueryInFlight, place: int) -> None:
        self.query, self.place = query, place

    def __call__(self) -> None:
        """Run, unless what it needs failed."""
        query = self.query
        if query.errors:
            return
        model = query.model
        group = model.scheduler.groups[self.place]
        try:
            with model.one_teller[group] if group >= 0 else nullcontext():
                model.program.segments[self.place].run(query.module, query.values)
        except BaseException as error:
            query.errors.append(error)


def scheduled_module(model: nn.Module) -> nn.Module:
    """Return the module whose operators are scheduled.

    Raises:
        NotSupported: they are not; says why and what to do.
    """
    if not isinstance(model, Served):
        return model
    scheduled = model.scheduled
    if scheduled is None or not scheduled.modified:
        reason = "its target is torchscript" if scheduled is None else scheduled.reason
        raise NotSupported(
            f"shared streams: the operators of this model are not scheduled ({reason}); convert it "
            "with streams=2 or more, or leave the engine's streams out"
        )
    return model.slots.contents[0].module


def _first_of_each(queue: Sequence[Launched]) -> list[Launched]:
    """Return one launched segment of each scheduler."""
    return list({id(one.scheduler): one for one in queue}.values())
