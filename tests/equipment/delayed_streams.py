"""Delayed streams: CPU streams that pause at random, and one query's calls to them.

What a schedule leaves to chance happens on them sooner or later.
"""

import random
import threading
import time
from collections.abc import Callable

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.cpu_streams import StreamThreads

PATIENCE_S = 60.0


class DelayedStreams(StreamThreads):
    """Streams that may pause at random.

    Args:
        num_streams: Streams.
        delay_us: Longest random pause before an operator; 0 adds none.
        seed: Of the pauses.
        slow: A stream that pauses for 20 times as long; -1 is none.
    """

    def __init__(
        self, num_streams: int, delay_us: float = 0.0, seed: int = 0, slow: int = -1
    ) -> None:
        self.delay_us = [delay_us * (20 if s == slow else 1) for s in range(num_streams)]
        self.random = [random.Random(f"{seed} {stream}") for stream in range(num_streams)]
        super().__init__(num_streams)

    def __enter__(self) -> "DelayedStreams":
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def pause(self, stream: int) -> None:
        """Sleep at random, on a stream's own thread."""
        if self.delay_us[stream]:
            time.sleep(self.random[stream].random() * self.delay_us[stream] * 1e-6)


class Query:
    """One run of a lowered GraphModule on CPU streams, told to them by the calling thread.

    Args:
        streams: Where it runs.
    """

    def __init__(self, streams: DelayedStreams) -> None:
        self.streams, self.current = streams, 0
        self.events: dict[int, threading.Event] = {}
        self.failed: list[BaseException] = []
        self.finished = threading.Event()

    def use(self, stream: int) -> None:
        """Operators go to ``stream`` from here on."""
        self.current = stream

    def record(self, event: int) -> None:
        """Record an event on the current stream."""
        done = self.events[event] = threading.Event()
        self.streams.put(self.current, done.set)

    def wait(self, event: int) -> None:
        """Let the current stream wait for an event."""
        done = self.events[event]
        self.streams.put(self.current, lambda: self._wait(done))

    def end(self) -> None:
        """Stream 0 says when it is done."""
        self.streams.put(0, self.finished.set)

    def launch(self, function: Callable[[], None]) -> None:
        """Run a function on the current stream; keep the first error."""
        stream = self.current

        def task() -> None:
            """Pause, then run."""
            self.streams.pause(stream)
            try:
                function()
            except BaseException as error:
                self.failed.append(error)

        self.streams.put(stream, task)

    def _wait(self, done: threading.Event) -> None:
        """Wait on a worker's thread, not for ever."""
        if not done.wait(PATIENCE_S):
            self.failed.append(GraceError(f"a stream waited {PATIENCE_S:.0f} s for an event"))
