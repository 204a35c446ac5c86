"""Metrics: what became of the requests of an engine, and how long the last ones took.

Flow: engine -> *EngineMetrics* -> ``snapshot()`` -> logs, dashboards, tests.  Counts never go back;
quantiles are those of a window, so memory stays bounded, and buckets of all latencies can be added up
over replicas.
"""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grace_torchrec.serve.shadow import ShadowCounts
from grace_torchrec.serve.shared_streams import StreamLoad

WINDOW = 8192  # latencies kept
BUCKETS_S = (5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Latencies:
    """All latencies so far, from submit to answer.

    Attributes:
        counts: Those of up to each bound that are above the one before; last, the rest.
        sum_s: Their sum.
        bounds_s: Of the buckets.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0
    bounds_s: tuple[float, ...] = BUCKETS_S

    def with_more(self, latencies_s: Iterable[float]) -> "Latencies":
        """Return these and more."""
        counts, sum_s = list(self.counts), self.sum_s
        for latency_s in latencies_s:
            counts[bisect_left(self.bounds_s, latency_s)] += 1
            sum_s += latency_s
        return replace(self, counts=tuple(counts), sum_s=sum_s)


@dataclass(frozen=True)
class Snapshot:
    """The state of an engine at one moment.

    Every accepted request is answered, failed, expired, cancelled, waiting or under way.

    Attributes:
        accepted: Requests that the queue took.
        answered: Requests with an answer.
        failed: Requests whose own computation raised.
        rejected: Requests that were not accepted.
        expired: Requests that were too late to be computed.
        cancelled: Requests that were cancelled before they started.
        batches: Batches computed.
        rows: Rows in them.
        retried: Batches that failed together and were computed in parts.
        restarts: Workers that ended and were replaced.
        observer_errors: Errors of the recorder, which no request sees.
        queued: Requests that wait now.
        running: Batches under way now.
        p50_ms: Median latency of the window, from submit to answer; 0 before the first.
        p95_ms: Its 95th percentile.
        p99_ms: Its 99th percentile.
        latencies: All of them, in buckets.
        model: ``ours`` or ``stock``: what answers now.
        replaced: How often the model was replaced.
        expected_start_ms: When a request that comes now is expected to start.
        outlook_error_us: Mean difference of expected and real ends of batches.
        shadow: What comparing with the stock model found.
        streams: Load of each shared stream, by its number; none where batches keep to their own.
    """

    accepted: int
    answered: int
    failed: int
    rejected: int
    expired: int
    cancelled: int
    batches: int
    rows: int
    retried: int
    restarts: int
    observer_errors: int
    queued: int
    running: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    latencies: Latencies
    model: str
    replaced: int
    expected_start_ms: float
    outlook_error_us: float
    shadow: ShadowCounts
    streams: Mapping[int, StreamLoad]


@dataclass(frozen=True)
class Now:
    """What only the engine knows; see :class:`Snapshot`."""

    queued: int
    running: int
    model: str
    replaced: int
    expected_start_ms: float
    outlook_error_us: float
    shadow: ShadowCounts
    streams: Mapping[int, StreamLoad]


class EngineMetrics:
    """Counts and latencies of an engine.

    Args:
        now: Returns the rest of a snapshot.
    """

    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            (
                "accepted", "answered", "failed", "rejected", "expired", "cancelled", "batches",
                "rows", "retried", "restarts", "observer_errors",
            ),
            0,
        )  # fmt: skip
        self._latencies_s: deque[float] = deque(maxlen=WINDOW)
        self._all = Latencies()

    def count(self, **more: int) -> None:
        """Add to counts by their name in :class:`Snapshot`."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def answered(self, latencies_s: Iterable[float]) -> None:
        """Note the latencies of answered requests."""
        latencies = list(latencies_s)
        with self._lock:
            self._counts["answered"] += len(latencies)
            self._latencies_s.extend(latencies)
            self._all = self._all.with_more(latencies)

    def snapshot(self) -> Snapshot:
        """Return counts, latencies and the state of the queue, now."""
        with self._lock:
            counts, latencies, so_far = dict(self._counts), list(self._latencies_s), self._all
        quantiles = np.percentile(latencies, [50, 95, 99]) * 1e3 if latencies else np.zeros(3)
        p50, p95, p99 = quantiles.tolist()
        told: dict[str, Any] = {**counts, **vars(self._now()), "latencies": so_far}
        return Snapshot(**told, p50_ms=p50, p95_ms=p95, p99_ms=p99)
