"""Segmented model: a scheduled model whose batches share streams with others, segment by segment.

Flow: LiveModel -> *SegmentedModel*; a batch -> *QueryInFlight*: each segment is decided when it is
launched (SharedStreams), after the events of those that it needs -> the model's output.
Source: RecOS, IJCAI'25, sections 3.4 and 3.5.  Derived: a query's values are kept whole until the
caller's stream has waited for all its segments, so nothing is let go of while another stream reads
it; a segment shorter than handing it over, as measured at the start, is joined with a neighbour.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.in_flight import resources
from grace_torchrec.schedule.online import OnlineScheduler
from grace_torchrec.schedule.segment_program import (
    SegmentProgram,
    check_scheduled,
    segment_program,
)
from grace_torchrec.serve.served import Served
from grace_torchrec.serve.shared_streams import SharedStreams
from grace_torchrec.traces.live_hooks import shown_here, told_here


class SegmentedModel:
    """One model on shared streams.

    Each model has a scheduler of its own, which sees no other's load and knows no other's caches:
    batches of two models that use the same cache must not be under way at a time.

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

    def __init__(self, model: SegmentedModel, module: nn.Module, batch: Sequence[Any]) -> None:
        self.model, self.module, self.streams = model, module, model.shared.streams
        self.values = model.program.begin(module, batch)
        self.start = self.streams.begin()
        self.decisions = model.shared.begin(model.scheduler)
        self.errors: list[BaseException] = []
        self.told: dict[int, tuple[int, int, Any]] = {}  # segment -> its stream, number and event
        self.last: dict[int, Any] = {}  # event of the last segment on each stream
        self.shown = told_here()  # a recorder: the thread of a stream hears for the caller

    def launch_next(self) -> bool:
        """Decide and launch the next segment; False: there is none, or one failed."""
        if self.errors:
            return False
        decided = self.model.shared.decide(self.decisions, self.model.scheduler)
        if decided is None:
            return False
        place, stream, launched = decided
        after, task = self._after(place, stream), SegmentTask(self, place)
        try:
            launched.event = event = self.streams.launch(stream, task, after)
        except BaseException:
            launched.lost = True
            raise
        self.told[place], self.last[stream] = (stream, len(self.told), event), event
        return True

    def join(self) -> None:
        """Let the caller wait for all that was launched; values live until then."""
        self.streams.join(list(self.last.values()), list(self.values.values()))

    def result(self) -> Any:
        """Return the model's output, once it was joined.

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
        if latest or stream in self.last or self.start is None:
            return [event for _, event in latest.values()]
        return [self.start]  # the stream has neither waited nor come behind what waited for inputs


class SegmentTask:
    """A segment of a query, as a task that raises nothing.

    Args:
        query: Whose it is.
        place: Of the segment.
    """

    def __init__(self, query: QueryInFlight, place: int) -> None:
        self.query, self.place = query, place

    def __call__(self) -> None:
        """Run, unless what it needs failed."""
        query = self.query
        if query.errors:
            return
        model = query.model
        group = model.scheduler.groups[self.place]
        before = told_here()
        shown_here(query.shown)
        try:
            with model.one_teller[group] if group >= 0 else nullcontext():
                model.program.segments[self.place].run(query.module, query.values)
        except BaseException as error:  # the caller's: the stream goes on
            query.errors.append(error)
        finally:
            shown_here(before)


def streams_for(
    model: nn.Module, num_streams: int, device: torch.device, callers: int
) -> SharedStreams:
    """Return streams to share for a model, unless it is one that cannot share them.

    Args:
        model: What ``convert`` returned, or a scheduled GraphModule.
        num_streams: Streams.
        device: Of the model.
        callers: Streams that queries come from.

    Raises:
        NotSupported: its operators are not scheduled, or the device has not so many streams.
    """
    check_scheduled(scheduled_module(model))
    return SharedStreams(num_streams, device, callers)


def serving(model: nn.Module, shared: SharedStreams) -> Callable[[Sequence[Any]], Any]:
    """Return what answers batches by a model over shared streams; it is compiled now, once.

    Args:
        model: What ``convert`` returned, or a scheduled GraphModule.
        shared: The streams.

    Raises:
        NotSupported: the model's operators are not scheduled over streams.
    """
    module = scheduled_module(model)
    segmented = SegmentedModel(shared, segment_program(module, shared.hand_over_us))
    if isinstance(model, Served):
        return lambda batch: model.run_by(segmented.run, *batch)
    return lambda batch: segmented.run(module, *batch)


def caches_of(model: nn.Module) -> frozenset[str]:
    """Return the names of what a model's operators change: each is to stay on one stream.

    Args:
        model: What ``convert`` returned, or a scheduled GraphModule.

    Raises:
        NotSupported: the model's operators are not scheduled.
    """
    lowered = check_scheduled(scheduled_module(model)).lowered
    assert lowered is not None
    return frozenset(resources(lowered))


def _what_helps(model: Served) -> str:
    """Return what would schedule the operators of a served model, and ", or "; else nothing."""
    scheduled = model.scheduled
    if scheduled is None:
        return "convert it with target='module', or "
    if model.conversion.streams == 1:
        return "convert it with streams=2 or more, or "
    if scheduled.schedule is None:
        return "change its forward so that torch.fx traces it and convert it again, or "
    return ""  # it was searched, and one stream is as fast


def scheduled_module(model: nn.Module) -> nn.Module:
    """Return the module inside a served model; any other is returned as it is.

    Raises:
        NotSupported: the served model's operators are not scheduled; says why and what to do.
    """
    if not isinstance(model, Served):
        return model
    scheduled = model.scheduled
    if scheduled is None or not scheduled.modified:
        reason = "its target is torchscript" if scheduled is None else scheduled.reason
        raise NotSupported(
            f"shared streams: the operators of this model are not scheduled ({reason}); "
            f"{_what_helps(model)}leave the engine's streams out"
        )
    return model.slots.contents[0].module
