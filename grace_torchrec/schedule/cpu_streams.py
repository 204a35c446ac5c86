"""CPU streams: worker threads that behave as CUDA streams do.

Flow: tasks told by the host -> *StreamThreads*, each a queue in order; events are waited for inside
the queue.  To test what a GPU would run, *CpuStreams* add random delays, and one query's calls go to
them by *Query* (a stream backend); what runs on them: :mod:`grace_torchrec.schedule.worker_program`.
"""

import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Self

import torch

from grace_torchrec.errors import GraceError

Task = Callable[[], None] | None
PATIENCE_S = 60.0


class StreamThreads:
    """Worker threads, one a stream, each with a queue in order; close them, or use ``with``.

    Args:
        num_streams: Streams.
    """

    def __init__(self, num_streams: int) -> None:
        self.queues: list[SimpleQueue[Task]] = [SimpleQueue() for _ in range(num_streams)]
        self.threads = [
            threading.Thread(target=self._work, args=(s,), name=f"grace-stream-{s}", daemon=True)
            for s in range(num_streams)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, stream: int, task: Callable[[], None]) -> None:
        """Add a task to a stream; it must not raise."""
        self.queues[stream].put(task)

    def close(self) -> None:
        """End the threads once their queues are empty."""
        for queue in self.queues:
            queue.put(None)
        for thread in self.threads:
            thread.join()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _work(self, stream: int) -> None:
        """Run a stream's tasks in order."""
        with torch.no_grad():
            while (task := self.queues[stream].get()) is not None:
                task()
                del task  # it holds a query's values


class CpuStreams(StreamThreads):
    """Streams that may pause at random, to test what runs on them.

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

    def pause(self, stream: int) -> None:
        """Sleep at random, on a stream's own thread."""
        if self.delay_us[stream]:
            time.sleep(self.random[stream].random() * self.delay_us[stream] * 1e-6)


class Query:
    """One run of a lowered GraphModule on CPU streams, told to them by the calling thread.

    Also a stream backend: what the graph's calls say goes to the worker threads.

    Args:
        streams: Where it runs.
    """

    def __init__(self, streams: CpuStreams) -> None:
        self.streams, self.current = streams, 0
        self.events: dict[int, threading.Event] = {}
        self.failed: list[BaseException] = []
        self.finished = threading.Event()

    def begin(self) -> None:
        """A query starts on stream 0."""
        self.current = 0

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

    def retire(self, *values: Any) -> None:
        """Keep the values until the query is finished."""

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
