"""Stream sets: streams that queries in flight share, on a CPU or a GPU.

Flow: SharedStreams' decisions -> *StreamSet*: segments launched, events, values kept until nobody
reads them.
Source: RecOS, IJCAI'25, section 3.5 (asynchronous memory of several streams).  Derived: a query's
values are kept whole until its caller's stream has waited for all that read them.
On a CPU a stream is a thread, and memory goes back with the last reference.  On a GPU the thread of
a query tells the streams itself; nothing there waits for the device.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.backends import MOST_CUDA_STREAMS, hand_over, tensors_in
from grace_torchrec.schedule.cpu_streams import StreamThreads
from grace_torchrec.schedule.tensor_pool import EpochPool


class StreamSet(Protocol):
    """What queries that share streams ask of them."""

    def begin(self) -> Any:
        """Return an event for all that the caller's stream was told: inputs; None: they are there."""

    def launch(self, stream: int, task: Callable[[], None], after: Sequence[Any]) -> Any:
        """Give a task that raises nothing to a stream, after events; return the event of its end."""

    def is_done(self, event: Any) -> bool:
        """Return whether an event is done, without waiting."""

    def wait(self, event: Any) -> None:
        """Let the host wait for an event."""

    def join(self, events: Sequence[Any], values: Sequence[Any]) -> None:
        """Let the caller's stream wait for all readers of values; keep these until it got there."""

    def give(self, result: Any) -> None:
        """Hand a result, whose memory is a stream's of the set, to the caller."""

    def has(self, thread: threading.Thread) -> bool:
        """Tell whether a thread is a stream of the set: it must not wait for one."""

    def close(self) -> None:
        """End; all that was launched has been joined."""


class CpuStreamSet:
    """Streams that are threads.

    Args:
        num_streams: Streams.
    """

    def __init__(self, num_streams: int) -> None:
        self.threads = StreamThreads(num_streams)

    def begin(self) -> None:
        """Inputs are there."""

    def launch(
        self, stream: int, task: Callable[[], None], after: Sequence[threading.Event]
    ) -> threading.Event:
        """Put a task into a stream's queue."""
        done = threading.Event()

        def run() -> None:
            """Wait, run, tell; the thread takes the next one."""
            for event in after:
                event.wait()
            task()
            done.set()

        self.threads.put(stream, run)
        return done

    def is_done(self, event: threading.Event) -> bool:
        """Ask an event."""
        return event.is_set()

    def wait(self, event: threading.Event) -> None:
        """Wait for an event."""
        event.wait()

    def join(self, events: Sequence[threading.Event], values: Sequence[Any]) -> None:
        """Wait for events."""
        for event in events:
            event.wait()

    def give(self, result: Any) -> None:
        """Do nothing: memory goes back with the last reference."""

    def has(self, thread: threading.Thread) -> bool:
        """Ask the threads."""
        return thread in self.threads.threads

    def close(self) -> None:
        """End the threads."""
        self.threads.close()


class CudaStreamSet:
    """CUDA streams, told by the threads of the queries.

    Args:
        num_streams: Streams.
        device: Of the model.
        callers: Streams that queries come from; they share the budget.
        pool_bytes: Budget of the tensor pools, all callers together.

    Raises:
        NotSupported: there is no GPU, or PyTorch has not so many different streams.
    """

    def __init__(
        self, num_streams: int, device: torch.device, callers: int = 1, pool_bytes: int = 64 << 20
    ) -> None:
        if not torch.cuda.is_available():
            raise NotSupported("CudaStreamSet: no GPU here; a CPU's streams are CpuStreamSet")
        if not 1 <= num_streams + callers <= MOST_CUDA_STREAMS:
            raise NotSupported(
                f"CudaStreamSet: {num_streams} shared streams and {callers} of callers; PyTorch "
                f"has {MOST_CUDA_STREAMS} different ones, give no more together"
            )
        self.device = device
        self.streams: list[Any] = [torch.cuda.Stream(device) for _ in range(num_streams)]  # type: ignore[no-untyped-call]
        self.pool_bytes = max(1, pool_bytes // callers)
        self.pools: dict[int, EpochPool] = {}  # by the caller's stream: one query at a time has it

    def begin(self) -> Any:
        """Record on the caller's stream."""
        return torch.cuda.current_stream(self.device).record_event()

    def launch(self, stream: int, task: Callable[[], None], after: Sequence[Any]) -> Any:
        """Tell a stream: wait, run, record."""
        own = self.streams[stream]
        with torch.cuda.stream(own):
            for event in after:
                own.wait_event(event)
            task()
            return own.record_event()

    def is_done(self, event: Any) -> bool:
        """Ask an event."""
        return bool(event.query())

    def wait(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()

    def join(self, events: Sequence[Any], values: Sequence[Any]) -> None:
        """Let the caller's stream wait; its pool keeps the values until it got here."""
        caller = torch.cuda.current_stream(self.device)
        for event in events:
            caller.wait_event(event)
        pool = self.pools.get(caller.cuda_stream)
        if pool is None:
            pool = self.pools[caller.cuda_stream] = EpochPool(
                lambda _: caller.record_event(), self.is_done, self.pool_bytes,
                synchronize=self.wait,
            )  # fmt: skip
        hand_over(pool, values, 0)

    def give(self, result: Any) -> None:
        """Keep a result's memory until the caller's stream has used it."""
        caller = torch.cuda.current_stream(self.device)
        for tensor in tensors_in(result):
            tensor.record_stream(caller)

    def has(self, thread: threading.Thread) -> bool:
        """None is: the thread of a query tells the streams."""
        return False

    def close(self) -> None:
        """Let go of what the pools hold."""
        for pool in self.pools.values():
            pool.drain()


def stream_set(num_streams: int, device: torch.device, callers: int = 1) -> StreamSet:
    """Return the streams of a device.

    Args:
        num_streams: Streams.
        device: Of the model.
        callers: Streams that queries come from.
    """
    if device.type == "cuda":
        return CudaStreamSet(num_streams, device, callers)
    return CpuStreamSet(num_streams)
