"""memory: the tensor pool's cost and bounds, the peak of a static schedule, figure 8's thresholds.

Flow: tensors of a served model are retired on streams whose events are done some operators later ->
time for each, bytes held over the budget; lifetimes of the committed schedules -> bytes allocated
at most over those of one stream, and bytes that a pool for each stream would reserve; the same
serving with 16, 32, 64 and 128 MB.
Figure 8's U-shape in latency cannot be derived: sealed epochs get cheaper with the threshold.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from bench.scheduling.cells import cells
from bench.scheduling.costs import load_costs
from grace_torchrec.schedule.backends import hand_over
from grace_torchrec.schedule.lifetimes import peak_over_single_stream, pools_over_single_stream
from grace_torchrec.schedule.lower import Lowered, Retire, lower
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.tensor_pool import EpochPool

MB = 1 << 20
THRESHOLDS_MB = (16, 32, 64, 128)
STREAMS, TENSORS, TENSOR_BYTES = 4, 20_000, 256 << 10
BEHIND = 64  # tensors that are retired before an event is done
PRINTED = {"best_threshold_mb": 64, "more_memory_at_128_mb": 100}


class FakeStreams:
    """Events of streams that are a fixed number of tensors behind the host."""

    def __init__(self) -> None:
        self.now = 0

    def record(self, stream: int) -> list[int]:
        """Return an event: when it is done."""
        return [self.now + BEHIND]

    def is_done(self, event: list[int]) -> bool:
        """Return whether the streams got there."""
        return self.now >= event[0]

    def synchronize(self, event: list[int]) -> None:
        """Wait: the streams catch up."""
        self.now = max(self.now, event[0])


def memory() -> dict[str, Any]:
    """Return cost, bounds, peaks and thresholds."""
    rows = [_serve(threshold) for threshold in THRESHOLDS_MB]
    peaks = static_peaks()
    return {
        "retire_us_per_tensor": retire_us(),
        "retire_us_one_at_a_time": _pool_us(),
        "held_over_budget_bytes": max(row["held_over_budget_bytes"] for row in rows),
        "one_tensor_bytes": TENSOR_BYTES,
        "static_peak_ratio": max(peaks.values()),
        "static_peaks": peaks,
        "static_pools": _of_cells(pools_over_single_stream),
        "thresholds": rows,
        "printed": PRINTED,
    }


def static_peaks() -> dict[str, float]:
    """Return the bytes that each committed schedule holds, over those of one stream."""
    return _of_cells(peak_over_single_stream)


def _of_cells(judge: Callable[[Lowered, OpStats], float]) -> dict[str, float]:
    """Judge every committed schedule."""
    return {
        name: judge(lower(schedule), load_costs(name.partition("/")[0]).stats)
        for name, schedule in cells().items()
    }


def _serve(threshold_mb: int) -> dict[str, Any]:
    """Retire many tensors of one size under one budget."""
    streams = FakeStreams()
    pool = EpochPool(
        streams.record, streams.is_done, threshold_mb * MB, STREAMS, streams.synchronize
    )
    for number in range(TENSORS):
        streams.now = max(streams.now, number)
        pool.retire(None, TENSOR_BYTES, number % STREAMS)
    return {
        "threshold_mb": threshold_mb,
        "peak_mb": pool.peak_bytes / MB,
        "held_over_budget_bytes": max(0, pool.peak_bytes - threshold_mb * MB),
        "events_per_1000_tensors": 1000 * pool.events / TENSORS,
    }


def retire_us(rounds: int = 15) -> float:
    """Return the host's time for each tensor that the committed schedules retire, the shortest.

    Their retiring steps are told to a pool as the CUDA backend tells them: bytes added up, all
    tensors of a step kept at once.
    """
    steps = [
        tuple(torch.empty(64, 16) for _ in step.ops)
        for schedule in cells().values()
        for step in lower(schedule).steps
        if isinstance(step, Retire)
    ]
    count = sum(map(len, steps))
    best = float("inf")
    for _ in range(rounds):
        pool = _free_pool()
        start = time.thread_time()
        for values in steps:
            hand_over(pool, values, 1)
        best = min(best, (time.thread_time() - start) / count * 1e6)
    return best


def _pool_us(rounds: int = 15) -> float:
    """Return the time of the pool alone for tensors that are retired one by one, the shortest."""
    best = float("inf")
    for _ in range(rounds):
        values, retire = [object()] * TENSORS, _free_pool().retire
        start = time.thread_time()
        for value in values:
            retire(value, TENSOR_BYTES, 1)
        best = min(best, (time.thread_time() - start) / TENSORS * 1e6)
    return best


def _free_pool() -> EpochPool:
    """Return a pool whose events are done at once."""
    return EpochPool(lambda stream: 0, lambda event: True, 64 * MB, STREAMS)
