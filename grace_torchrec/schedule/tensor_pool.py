"""Tensor pool: values that other streams may still read are kept in epochs, not one by one.

Flow: lowered model's last values, or a server's -> *EpochPool* -> memory goes back once the event of
their epoch is done.  Source: RecOS, IJCAI'25, section 3.5 (a pool for each stream, released at a
threshold).  Derived: the threshold is a budget for all streams together, and an epoch is sealed
with one event; the text does not say whether its 64 MB are for each stream.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from grace_torchrec.errors import GraceError


class EpochPool:
    """Keeps values of each stream until an event recorded after them is done.

    A stream's epoch is sealed when it holds its share of the budget; when the budget is full, every
    open epoch is sealed and the oldest are waited for, so no more than the budget and the value
    that filled it are ever held.

    Args:
        record: Returns an event recorded now on a stream.
        is_done: Returns whether an event is done, without waiting.
        budget_bytes: Bytes held at most, all streams together.
        num_streams: Streams that share the budget.
        synchronize: Waits for an event; default: ask until it is done.

    Attributes:
        held_bytes: Bytes held now.
        peak_bytes: Most bytes held so far.
        events: Events recorded so far.

    Raises:
        GraceError: the budget or the number of streams is below one.
    """

    def __init__(
        self,
        record: Callable[[int], Any],
        is_done: Callable[[Any], bool],
        budget_bytes: int = 64 << 20,
        num_streams: int = 1,
        synchronize: Callable[[Any], None] | None = None,
    ) -> None:
        if budget_bytes < 1 or num_streams < 1:
            raise GraceError(
                f"tensor pool: {budget_bytes} bytes for {num_streams} streams; give one or more"
            )
        self.record, self.is_done, self.synchronize = record, is_done, synchronize
        self.budget_bytes = budget_bytes
        self.epoch_bytes = max(1, budget_bytes // (2 * num_streams))  # half open, half sealed
        self.open: dict[int, list[Hashable]] = {}
        self.bytes_of: dict[int, int] = {}
        self.sealed: deque[tuple[Any, list[Hashable], int]] = deque()
        self.held_bytes = self.peak_bytes = self.events = 0

    def retire(self, value: Any, num_bytes: int, stream: int) -> None:
        """Keep a value that the operators told so far to ``stream`` may read.

        Args:
            value: What is kept.
            num_bytes: Its size.
            stream: The stream whose progress sets it free.
        """
        values = self.open.get(stream)
        if values is None:
            values = self.open[stream] = []
            self.bytes_of[stream] = 0
        values.append(value)
        here = self.bytes_of[stream] = self.bytes_of[stream] + num_bytes
        held = self.held_bytes = self.held_bytes + num_bytes
        if held > self.peak_bytes:
            self.peak_bytes = held
        if here >= self.epoch_bytes or held >= self.budget_bytes:
            self._seal(stream)
            self.poll()
            if self.held_bytes > self.budget_bytes:
                self._make_room()

    def poll(self) -> int:
        """Let go of the epochs that are done; return how many values went."""
        gone = 0
        left: deque[tuple[Any, list[Hashable], int]] = deque()
        for event, values, num_bytes in self.sealed:
            if self.is_done(event):
                gone += len(values)
                self.held_bytes -= num_bytes
            else:
                left.append((event, values, num_bytes))
        self.sealed = left
        return gone

    def drain(self) -> None:
        """Seal all epochs, wait for all and let go of everything."""
        for stream in list(self.open):
            self._seal(stream)
        while self.sealed:
            self._finish_oldest()

    def _seal(self, stream: int) -> None:
        """Close a stream's epoch with one event."""
        values = self.open[stream]
        if values:
            self.sealed.append((self.record(stream), values, self.bytes_of[stream]))
            self.events += 1
            self.open[stream], self.bytes_of[stream] = [], 0

    def _make_room(self) -> None:
        """Wait for the oldest epochs until the budget holds."""
        while self.held_bytes > self.budget_bytes:
            if not self.sealed:
                for stream in list(self.open):
                    self._seal(stream)
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Wait for the oldest epoch and let go of it."""
        event, _, num_bytes = self.sealed.popleft()
        if self.synchronize is not None:
            self.synchronize(event)
        while not self.is_done(event):
            pass
        self.held_bytes -= num_bytes
