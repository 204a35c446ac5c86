"""Backends: who carries out what a lowered model tells its streams.

Flow: lowered GraphModule -> calls of *StreamBackend* -> CUDA streams, a log, or nothing.
Stream 0 is the caller's.
"""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from grace_torchrec.errors import NotSupported
from grace_torchrec.schedule.tensor_pool import EpochPool

MOST_CUDA_STREAMS = 32  # PyTorch's pool hands the same streams out again after so many


class StreamBackend(Protocol):
    """What a lowered model may ask for."""

    def begin(self) -> None:
        """A query starts: the caller's stream is stream 0."""

    def use(self, stream: int) -> None:
        """Operators go to ``stream`` from here on."""

    def record(self, event: int) -> None:
        """Record an event on the current stream."""

    def wait(self, event: int) -> None:
        """Let the current stream wait for an event of this query."""

    def retire(self, *values: Any) -> None:
        """Keep values until the current stream got this far, then let go of them."""

    def end(self) -> None:
        """A query was told whole, or failed: the caller's stream is current again."""


class NullBackend:
    """Does nothing: the model runs as it stands, on the caller's stream."""

    def begin(self) -> None:
        """Do nothing."""

    def use(self, stream: int) -> None:
        """Do nothing."""

    def record(self, event: int) -> None:
        """Do nothing."""

    def wait(self, event: int) -> None:
        """Do nothing."""

    def retire(self, *values: Any) -> None:
        """Let go of the values."""

    def end(self) -> None:
        """Do nothing."""


class RecordingBackend:
    """Keeps what it was told, in order.

    Attributes:
        log: (what, number) of every call; values that were retired are counted.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def begin(self) -> None:
        """Keep the call."""
        self.log.append(("begin", 0))

    def use(self, stream: int) -> None:
        """Keep the call."""
        self.log.append(("use", stream))

    def record(self, event: int) -> None:
        """Keep the call."""
        self.log.append(("record", event))

    def wait(self, event: int) -> None:
        """Keep the call."""
        self.log.append(("wait", event))

    def retire(self, *values: Any) -> None:
        """Keep the call."""
        self.log.append(("retire", len(values)))

    def end(self) -> None:
        """Keep the call."""
        self.log.append(("end", 0))


class CudaBackend:
    """CUDA streams and events without timing; each host thread has its own events.

    Args:
        num_streams: Streams, the caller's included.
        shared: Use a stream 0 of its own for all callers (queries of several host threads share
            caches); the caller's stream waits for it at the end.
        record_streams: Fall back to ``record_stream`` instead of the tensor pool, for values
            that others may let go of.
        pool_bytes: Budget of the tensor pool, all streams together (of each host thread, if not
            shared).

    Raises:
        NotSupported: there is no GPU, or PyTorch has not so many different streams.
    """

    def __init__(
        self,
        num_streams: int,
        *,
        shared: bool = False,
        record_streams: bool = False,
        pool_bytes: int = 64 << 20,
    ) -> None:
        if not torch.cuda.is_available():
            raise NotSupported("CudaBackend: no GPU here; use NullBackend")
        if not 1 <= num_streams <= MOST_CUDA_STREAMS:
            raise NotSupported(
                f"CudaBackend: {num_streams} streams; PyTorch has {MOST_CUDA_STREAMS} different "
                "ones, give 1 to that many"
            )
        self.streams = [_new_stream() for _ in range(num_streams)]
        self.shared, self.record_streams = shared, record_streams
        self.pool_bytes = pool_bytes
        self.lock = threading.Lock()
        self.local = _Local()
        self.shared_pool = self._new_pool()

    def begin(self) -> None:
        """Keep the caller's stream; a shared stream 0 waits for it."""
        self.local.current = 0
        self.local.caller = torch.cuda.current_stream()
        if self.shared:
            self.streams[0].wait_stream(self.local.caller)
            torch.cuda.set_stream(self.streams[0])

    def use(self, stream: int) -> None:
        """Change the current stream."""
        own = stream or self.shared
        self.local.current = stream
        torch.cuda.set_stream(self.streams[stream] if own else self.local.caller)

    def record(self, event: int) -> None:
        """Record an event, making it at its first use."""
        events = self.local.events
        found = events.get(event)
        if found is None:
            found = events[event] = _new_event()
        found.record()

    def wait(self, event: int) -> None:
        """Let the current stream wait."""
        self.local.events[event].wait()

    def retire(self, *values: Any) -> None:
        """Hand the tensors in ``values`` to the pool, or mark them for every stream."""
        if torch.cuda.is_current_stream_capturing():
            self.local.captured += values  # a graph's own pool: no event can be asked there
            return
        if self.record_streams:
            for tensor in tensors_in(values):
                for stream in (*self.streams, torch.cuda.current_stream()):
                    tensor.record_stream(stream)
            return
        if self.shared:
            with self.lock:
                hand_over(self.shared_pool, values, self.local.current)
            return
        if self.local.pool is None:  # each caller has a stream 0 of its own
            self.local.pool = self._new_pool()
        hand_over(self.local.pool, values, self.local.current)

    def _new_pool(self) -> EpochPool:
        """Return an empty tensor pool."""
        return EpochPool(
            self._record_on, lambda event: bool(event.query()), self.pool_bytes, len(self.streams),
            synchronize=lambda event: event.synchronize(),
        )  # fmt: skip

    def _record_on(self, stream: int) -> Any:
        """Return an event recorded now on a stream, for the tensor pool."""
        own = stream or self.shared or self.local.caller is None
        event = _new_event()
        event.record(self.streams[stream] if own else self.local.caller)
        return event

    def end(self) -> None:
        """Give the caller its stream back."""
        caller = self.local.caller
        if caller is None:
            return
        self.local.caller = None
        self.local.captured.clear()
        if self.shared:
            caller.wait_stream(self.streams[0])
        torch.cuda.set_stream(caller)


def hand_over(pool: EpochPool, values: Sequence[Any], stream: int) -> None:
    """Hand what one operator was the last to read to a pool, all at once.

    Args:
        pool: Keeps the values.
        values: Tensors, or what holds tensors.
        stream: The stream whose progress sets them free.
    """
    num_bytes = 0
    for value in values:
        if type(value) is Tensor:
            num_bytes += value.nbytes
        else:
            num_bytes += sum(tensor.nbytes for tensor in tensors_in(value))
    pool.retire(values, num_bytes, stream)


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested values."""
    return [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]


class _Local(threading.local):
    """What each host thread has for itself."""

    def __init__(self) -> None:
        self.caller: Any = None
        self.current = 0
        self.pool: EpochPool | None = None
        self.captured: list[Any] = []
        self.events: dict[int, Any] = {}


def _new_stream() -> Any:
    """Return a CUDA stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _new_event() -> Any:
    """Return a CUDA event without timing."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
