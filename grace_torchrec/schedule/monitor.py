"""Workload monitor: what each stream still has to do, estimated from statistics alone.

Flow: launches and completions -> *WorkloadMonitor* -> expected completion, occupancy -> stream choice.
Source: RecOS, IJCAI'25, section 3.3.  Derived, for the equations are not in the text: expected
completion is the sum of the times of the operators in a stream's queue, less what the first has
run; occupancy is the sum of the blocks of the running ones over the processors.
"""

from collections import deque

from grace_torchrec.errors import GraceError


class WorkloadMonitor:
    """Queues of what was launched and is not known to be done.

    Args:
        num_streams: Streams.
        processors: Streaming multiprocessors of the GPU.

    Attributes:
        backlog_us: Time that each stream's queue takes.
        queued: Operators in each queue.

    Raises:
        GraceError: a number is below one.
    """

    def __init__(self, num_streams: int, processors: int = 56) -> None:
        if num_streams < 1 or processors < 1:
            raise GraceError(
                f"monitor: {num_streams} streams, {processors} processors; give one or more"
            )
        self.processors = processors
        self.backlog_us = [0.0] * num_streams
        self.queued = [0] * num_streams
        self._queues: list[deque[tuple[float, int, tuple[str, ...], float]]] = [
            deque() for _ in range(num_streams)
        ]
        self._begin_us = [0.0] * num_streams
        self._owner: dict[str, list[int]] = {}
        self._error_us = self._done = 0.0

    def launch(
        self, stream: int, time_us: float, grid: int, resources: tuple[str, ...], now_us: float
    ) -> float:
        """Note an operator; return when it is expected to be done.

        Args:
            stream: Where it was launched.
            time_us: Its time.
            grid: Its blocks.
            resources: Caches it writes.
            now_us: Now.
        """
        if not self.queued[stream]:
            self._begin_us[stream] = now_us
        self.backlog_us[stream] += time_us
        self.queued[stream] += 1
        done_us = self._begin_us[stream] + self.backlog_us[stream]
        self._queues[stream].append((time_us, grid, resources, done_us))
        for name in resources:
            self._owner.setdefault(name, [0] * len(self.queued))[stream] += 1
        return done_us

    def complete(self, stream: int, now_us: float) -> None:
        """Note that the first operator of a stream is done.

        Raises:
            GraceError: the stream has none.
        """
        self._error_us += abs(now_us - self.withdraw(stream, now_us))
        self._done += 1

    def withdraw(self, stream: int, now_us: float) -> float:
        """Take the first operator of a stream away, done or not; return when it was to be done.

        Raises:
            GraceError: the stream has none.
        """
        if not self.queued[stream]:
            raise GraceError(f"monitor: stream {stream} has nothing to complete; launch it first")
        time_us, _, resources, done_us = self._queues[stream].popleft()
        self.queued[stream] -= 1
        self.backlog_us[stream] = self.backlog_us[stream] - time_us if self.queued[stream] else 0.0
        self._begin_us[stream] = now_us
        for name in resources:
            self._owner[name][stream] -= 1
        return done_us

    def expected_completion_us(self, stream: int, now_us: float) -> float:
        """Return the time until a stream has done all it was given."""
        if not self.queued[stream]:
            return 0.0
        first_us = self._queues[stream][0][0]
        ran_us = min(max(now_us - self._begin_us[stream], 0.0), first_us)
        return self.backlog_us[stream] - ran_us

    def occupancy(self) -> float:
        """Return the blocks of the first operators of all streams, in whole GPUs."""
        return self.occupancy_with(0, -1)

    def occupancy_with(self, grid: int, instead_of: int) -> float:
        """Return the occupancy if a stream's first operator were one of ``grid`` blocks."""
        blocks = grid
        for stream, queue in enumerate(self._queues):
            if queue and stream != instead_of:
                blocks += min(queue[0][1], self.processors)
        return blocks / self.processors

    def owner_of(self, resources: tuple[str, ...]) -> int:
        """Return the least loaded stream that has work on one of the caches; -1 if none has."""
        best = -1
        for name in resources:
            for stream, count in enumerate(self._owner.get(name, ())):
                if count and (best < 0 or self.backlog_us[stream] < self.backlog_us[best]):
                    best = stream
        return best

    @property
    def mean_error_us(self) -> float:
        """Mean difference of expected and real completion so far."""
        return self._error_us / self._done if self._done else 0.0
