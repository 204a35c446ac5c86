"""Tensor pool: values that other streams may still read are kept in epochs, not one by one.

Flow: lowered model's last values, or a server's -> *EpochPool* -> memory goes back once the event of
their epoch is done.  Source: RecOS, IJCAI'25, section 3.5 (a pool for each stream, released at a
threshold).  Derived: the threshold is a budget for all streams together, and an epoch is sealed
with one event; the text does not say whether its 64 MB are for each stream.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from grace_torchrec.errors import GraceError


class EpochPool:
    """Keeps values of each stream until an event recorded after them is done.

    Half of the budget is shared out as open epochs, one a stream; an epoch that fills its share is
    sealed with one event.  The other half holds sealed epochs; where they need more, the oldest
    are waited for.  So no more than the budget and the value that filled an epoch is ever held.
    A value may be all that one operator was the last to read: its cost is then theirs together.

    Args:
        record: Returns an event recorded now on a stream.
        is_done: Returns whether an event is done, without waiting.
        budget_bytes: Bytes held at most, all streams together.
        num_streams: Streams that share the budget.
        synchronize: Waits for an event; default: ask until it is done.

    Attributes:
        peak_bytes: Most bytes held so far, taken when epochs are sealed.
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
        self.sealed_most = budget_bytes // 2
        self.epoch_bytes = max(1, budget_bytes // (2 * num_streams))
        self.values: list[list[Any]] = [[] for _ in range(num_streams)]
        self.bytes = [0] * num_streams
        self.sealed: deque[tuple[Any, list[Any], int]] = deque()
        self.sealed_bytes = self.peak_bytes = self.events = 0

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self.sealed_bytes + sum(self.bytes)

    def retire(self, value: Any, num_bytes: int, stream: int) -> None:
        """Keep a value that the operators told so far to ``stream`` may read.

        Args:
            value: What is kept: a tensor, or several.
            num_bytes: Its size.
            stream: The stream whose progress sets it free, below the pool's number of streams.
        """
        self.values[stream].append(value)
        self.bytes[stream] = held = self.bytes[stream] + num_bytes
        if held >= self.epoch_bytes:
            self._seal(stream)

    def poll(self) -> int:
        """Let go of the epochs that are done; return how many values went."""
        gone = 0
        left: deque[tuple[Any, list[Any], int]] = deque()
        for epoch in self.sealed:
            event, values, num_bytes = epoch
            if self.is_done(event):
                gone += len(values)
                self.sealed_bytes -= num_bytes
            else:
                left.append(epoch)
        self.sealed = left
        return gone

    def drain(self) -> None:
        """Seal all epochs, wait for all and let go of everything."""
        for stream, values in enumerate(self.values):
            if values:
                self._seal(stream)
        while self.sealed:
            self._finish_oldest()

    def _seal(self, stream: int) -> None:
        """Close a stream's epoch with one event; keep the sealed ones within their half."""
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.poll()
        self.sealed.append((self.record(stream), self.values[stream], self.bytes[stream]))
        self.events += 1
        self.sealed_bytes += self.bytes[stream]
        self.values[stream], self.bytes[stream] = [], 0
        while self.sealed_bytes > self.sealed_most:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Wait for the oldest epoch and let go of it."""
        event, _, num_bytes = self.sealed.popleft()
        if self.synchronize is not None:
            self.synchronize(event)
        while not self.is_done(event):
            pass
        self.sealed_bytes -= num_bytes
