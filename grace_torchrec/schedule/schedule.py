"""Schedule: the streams, the order and the waits of a graph, as a value.

Flow: OpGraph + OpStats + Machine -> :mod:`search` -> *Schedule* -> proof, lowering, views.
Shapes: n operators, S streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.issue_order import Waits, count_switches
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats

LEAST_PARALLEL_SHARE = 0.1


@dataclass(frozen=True)
class Machine:
    """What a schedule is made for.

    Attributes:
        streams: Streams at most.
        wait_us: Time until another stream sees that an operator is done.
        capacity: Blocks that run at once; 0 is no limit (the simulator shares processors instead).

    Raises:
        GraceError: no stream, or a negative number.
    """

    streams: int = 4
    wait_us: float = 1.0
    capacity: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.streams < 1 or not self.wait_us >= 0 or self.capacity < 0:
            raise GraceError(
                f"machine: {self.streams} streams, wait {self.wait_us} us, capacity "
                f"{self.capacity}; give one stream or more and no negative number"
            )


@dataclass(frozen=True)
class Schedule:
    """A schedule of one graph.

    Attributes:
        graph: The operators.
        machine: What it was made for.
        stream_n: Stream of each operator; the last operator's is stream 0.
        order_n: Operators in the order in which the host issues them.
        waits_n: Operators on other streams that each one waits for.
        begin_us: Predicted start of each.
        times_us: Time of each.
        reason: Why it is a single stream, where nothing could be gained.
    """

    graph: OpGraph
    machine: Machine
    stream_n: tuple[int, ...]
    order_n: tuple[int, ...]
    waits_n: Waits
    begin_us: tuple[float, ...]
    times_us: tuple[float, ...]
    reason: str | None = field(default=None)

    @property
    def num_streams(self) -> int:
        """Streams in use."""
        return max(self.stream_n, default=0) + 1

    @property
    def makespan_us(self) -> float:
        """Predicted time from the first start to the last end."""
        ends = (b + t for b, t in zip(self.begin_us, self.times_us, strict=True))
        return max(ends, default=0.0)

    @property
    def bound_us(self) -> float:
        """No schedule is shorter: critical path, or all work spread over the streams."""
        return lower_bound(self.graph, self.times_us, self.machine.streams)

    @property
    def num_waits(self) -> int:
        """Waits between operators."""
        return sum(map(len, self.waits_n))

    @property
    def num_events(self) -> int:
        """Operators that others wait for: one event each."""
        return len({need for needs in self.waits_n for need in needs})

    @property
    def num_switches(self) -> int:
        """Changes of the host's current stream."""
        return count_switches(self.stream_n, self.order_n)


def lower_bound(graph: OpGraph, times_us: Sequence[float], streams: int) -> float:
    """Return max(critical path, work / streams), in microseconds."""
    return max(graph.critical_path(times_us), sum(times_us) / streams)


def single_stream(graph: OpGraph, stats: OpStats, machine: Machine, reason: str) -> Schedule:
    """Return the model's own order on one stream, and why."""
    times = tuple(stats.times_us)
    begin = tuple(float(end - time) for end, time in zip(np.cumsum(times), times, strict=True))
    places = tuple(range(len(graph.ops)))
    nothing = ((),) * len(places)
    return Schedule(graph, machine, (0,) * len(places), places, nothing, begin, times, reason)


def why_single_stream(graph: OpGraph, streams: int) -> str | None:
    """Return why more streams cannot help, or None."""
    if streams == 1:
        return "one stream was asked for"
    share = graph.parallel_share()
    if share < LEAST_PARALLEL_SHARE:
        return (
            f"{share:.2f} of the operators can run beside another one, "
            f"under {LEAST_PARALLEL_SHARE}: more streams would only add waits"
        )
    return None


def predicted_starts(
    graph: OpGraph,
    times_us: Sequence[float],
    stream_n: Sequence[int],
    order_n: Sequence[int],
    machine: Machine,
) -> list[float]:
    """Return when each operator starts if every stream runs its operators in order.

    Blocks are not limited here: with a capacity, operators may wait for each other beyond this.
    """
    free = [0.0] * machine.streams
    begin, end = [0.0] * len(times_us), [0.0] * len(times_us)
    for op in order_n:
        start = free[stream_n[op]]
        for need in graph.ops[op].needs:
            start = max(start, end[need] + machine.wait_us * (stream_n[need] != stream_n[op]))
        begin[op], end[op] = start, start + times_us[op]
        free[stream_n[op]] = end[op]
    return begin
