"""memory: the tensor pool's cost and bounds, the peak of a static schedule, figure 8's thresholds.

Flow: tensors of a served model are retired on streams whose events are done some operators later ->
time for each, bytes held over the budget; lifetimes of the committed schedules -> peak bytes over
those of one stream; the same serving with 16, 32, 64 and 128 MB.
Figure 8's U-shape in latency cannot be derived: sealed epochs get cheaper with the threshold.
"""

import time
from typing import Any

from bench.scheduling.bound import cells
from bench.scheduling.costs import load_costs
from grace_torchrec.schedule.lifetimes import peak_over_single_stream
from grace_torchrec.schedule.lower import lower
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
    peaks = {
        name: peak_over_single_stream(lower(schedule), load_costs(name.partition("/")[0]).stats)
        for name, schedule in cells().items()
    }
    return {
        "retire_us_per_tensor": _retire_us(),
        "held_over_budget_bytes": max(row["held_over_budget_bytes"] for row in rows),
        "one_tensor_bytes": TENSOR_BYTES,
        "static_peak_ratio": max(peaks.values()),
        "static_peaks": peaks,
        "thresholds": rows,
        "printed": PRINTED,
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


def _retire_us(rounds: int = 7) -> float:
    """Return the host's time for each retired tensor, the shortest of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        pool = EpochPool(lambda stream: 0, lambda event: True, 64 * MB, STREAMS)
        values, retire = [object()] * TENSORS, pool.retire
        start = time.thread_time()
        for value in values:
            retire(value, TENSOR_BYTES, 1)
        best = min(best, (time.thread_time() - start) / TENSORS * 1e6)
    return best
