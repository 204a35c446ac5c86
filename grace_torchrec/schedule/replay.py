"""Replay: how long a fixed schedule takes where running operators share the processors.

Flow: Schedule + grids -> *microseconds*.  Streams run in order, an operator waits for what it
needs, and all that run get on at min(1, processors / blocks), as in the simulator.  Host costs
are not counted: it is what a CUDA graph of the schedule should take.
"""

from collections.abc import Sequence

from grace_torchrec.schedule.schedule import Schedule


def replay_us(
    schedule: Schedule, grids: Sequence[int], processors: int, interference: float = 0.0
) -> float:
    """Return the makespan of a schedule on a GPU.

    Args:
        schedule: Streams, order and times.
        grids: Blocks of each operator.
        processors: Streaming multiprocessors.
        interference: Slow-down for each other running operator.
    """
    queues = [
        [op for op in reversed(schedule.order_n) if schedule.stream_n[op] == stream]
        for stream in range(schedule.num_streams)
    ]
    left: dict[int, float] = {}  # running operators and what they still need
    done: dict[int, float] = {}
    now = 0.0
    while len(done) < len(schedule.graph.ops):
        starts = [
            (_ready_us(schedule, queue[-1], done), queue)
            for queue in queues
            if queue and queue[-1] not in left
        ]
        for at, queue in starts:
            if at <= now + 1e-9:
                left[queue[-1]] = schedule.times_us[queue[-1]]
        blocks = sum(min(grids[op], processors) for op in left)
        speed = min(1.0, processors / blocks) if blocks else 1.0
        speed /= 1 + interference * max(len(left) - 1, 0)
        ends = min((need / speed for need in left.values()), default=float("inf"))
        later = min((at - now for at, _ in starts if at > now + 1e-9), default=float("inf"))
        step = min(ends, later)
        now += step
        for op in list(left):
            left[op] -= step * speed
            if left[op] <= 1e-9:
                del left[op]
                done[op] = now
                queues[schedule.stream_n[op]].pop()
    return now


def _ready_us(schedule: Schedule, op: int, done: dict[int, float]) -> float:
    """Return when an operator may start as far as what it needs goes; inf if not known yet."""
    at = 0.0
    for need in schedule.graph.ops[op].needs:
        if need not in done:
            return float("inf")
        foreign = schedule.stream_n[need] != schedule.stream_n[op]
        at = max(at, done[need] + schedule.machine.wait_us * foreign)
    return at
