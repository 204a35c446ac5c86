"""CPU streams: worker threads that behave as CUDA streams do.

Flow: tasks told by the host -> *StreamThreads*, each a queue in order; a task that waits for an event
holds its queue up.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

Task = Callable[[], None] | None


class StreamThreads:
    """Worker threads, one a stream, each with a queue in order; close them.

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

    def _work(self, stream: int) -> None:
        """Run a stream's tasks in order."""
        with torch.no_grad():
            while (task := self.queues[stream].get()) is not None:
                task()
                del task  # it holds a query's values
