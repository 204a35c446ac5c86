"""Prometheus: an engine, its plan and its drift as metrics to scrape.

Flow: ``engine.metrics`` (or anything with ``snapshot()``) + Plan + drift -> *GraceCollector* -> a
registry of prometheus_client -> ``/metrics``.  A scrape reads one snapshot and keeps nothing.
Names follow Prometheus: counts end in ``_total``, times are seconds.  prometheus_client is an extra of
the installation, imported when a collector is made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from grace_torchrec.arguments import expect_number
from grace_torchrec.errors import NotSupported
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.plan import Plan

if TYPE_CHECKING:
    from grace_torchrec.serve.metrics import Latencies
    from grace_torchrec.serve.shared_streams import StreamLoad

OUTCOMES = ("accepted", "answered", "failed", "rejected", "expired", "cancelled")
COUNTS = (  # never go back; every other number may
    "batches", "rows", "retried", "restarts", "observer_errors", "replaced",
    "shadow_compared", "shadow_different", "shadow_failed", "shadow_left_out",
)  # fmt: skip
QUANTILES = {"p50_ms": "0.5", "p95_ms": "0.95", "p99_ms": "0.99"}
UNITS = {"_ms": 1e-3, "_us": 1e-6}


class HasSnapshot(Protocol):
    """What has a state at a moment: names and numbers."""

    def snapshot(self) -> Any:
        """Return a mapping of names to numbers, or a dataclass of them."""


class GraceCollector:
    """A collector: ``prometheus_client.REGISTRY.register(GraceCollector(engine.metrics))``.

    Args:
        metrics: Of an engine; None: nothing is served here.
        plan: What is served, or what returns that at every scrape, as a refresher puts other plans in
            its place: ``plan=lambda: refresher.plan``.  None: no plan is told.
        drift: Returns predicted less live cut of each table, as of the last time it was measured: it
            is called at every scrape.

    Raises:
        NotSupported: prometheus_client is not installed.
    """

    def __init__(
        self,
        metrics: HasSnapshot | None = None,
        *,
        plan: Plan | Callable[[], Plan | None] | None = None,
        drift: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self._metrics, self.plan, self._drift = metrics, plan, drift
        self._core = _prometheus("core")

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of this moment."""
        if self._metrics is not None:
            snapshot = self._metrics.snapshot()
            streams, latencies = _part(snapshot, "streams"), _part(snapshot, "latencies")
            yield from self._of_engine(flat(snapshot, without=("streams", "latencies")))
            if streams:
                yield from self._of_streams(streams)
            if latencies is not None:
                yield self._of_latencies(latencies)
        plan = self.plan() if callable(self.plan) else self.plan
        if plan is not None:
            yield from self._of_plan(plan)
        if self._drift is not None:
            told = "Predicted cut less the cut of live bags."
            yield self._by("grace_drift", told, "table", self._drift())

    def _of_engine(self, state: Mapping[str, Any]) -> Iterator[Any]:
        """Yield what a snapshot says."""
        outcomes = {name: state[name] for name in OUTCOMES if name in state}
        requests = self._core.CounterMetricFamily(
            "grace_requests", "Requests by what became of them.", labels=["outcome"]
        )
        for name, number in outcomes.items():
            requests.add_metric([name], number)
        yield requests
        latency = {QUANTILES[name]: state[name] * 1e-3 for name in QUANTILES if name in state}
        told = "Latency of the last requests, from submit to answer."
        yield self._by("grace_latency_seconds", told, "quantile", latency)
        for name, value in state.items():
            if name in outcomes or name in QUANTILES:
                continue
            if isinstance(value, str):
                yield self._by(f"grace_{name}_info", f"{name} now.", name, {value: 1.0})
            elif name in COUNTS:
                yield self._core.CounterMetricFamily(f"grace_{name}", f"{name} so far.", value)
            else:
                name, scale = _in_seconds(name)
                yield self._core.GaugeMetricFamily(f"grace_{name}", f"{name} now.", value * scale)

    def _of_streams(self, streams: Mapping[int, "StreamLoad"]) -> Iterator[Any]:
        """Yield the load of each shared stream."""
        told = "Expected time until a stream is done."
        backlog = {str(number): load.backlog_us * 1e-6 for number, load in streams.items()}
        yield self._by("grace_streams_backlog_seconds", told, "stream", backlog)
        launched = self._core.CounterMetricFamily(
            "grace_streams_launched", "Segments launched on a stream.", labels=["stream"]
        )
        for number, load in streams.items():
            launched.add_metric([str(number)], load.launched)
        yield launched

    def _of_latencies(self, latencies: "Latencies") -> Any:
        """Return all latencies as a histogram, whose buckets hold those below them too."""
        bounds = [*map(str, latencies.bounds_s), "+Inf"]
        below = list(zip(bounds, accumulate(latencies.counts), strict=True))
        told = "Latencies of all requests, from submit to answer."
        return self._core.HistogramMetricFamily(
            "grace_request_duration_seconds", told, buckets=below, sum_value=latencies.sum_s
        )

    def _of_plan(self, plan: Plan) -> Iterator[Any]:
        """Yield what the plan says of itself and of its tables."""
        info = self._core.InfoMetricFamily("grace_plan", "The plan that is served.")
        told = {"plan": plan_fingerprint(plan), "profile": plan.profile_fingerprint}
        info.add_metric([], {**told, "machine": plan.memory.machine})
        yield info
        tables = plan.tables.items()
        for name, told_of, values in (
            ("predicted_cut", "Share of row reads saved", {k: t.predicted.cut for k, t in tables}),
            ("extra_rows", "Stored rows", {k: t.predicted.extra_rows for k, t in tables}),
            (
                "extra_bytes",
                "Bytes over the stock",
                {k: t.predicted.extra_bytes for k, t in tables},
            ),
        ):
            yield self._by(f"grace_plan_{name}", f"{told_of}, by the plan.", "table", values)

    def _by(self, name: str, told: str, label: str, values: Mapping[str, float]) -> Any:
        """Return a gauge with one value for each value of a label."""
        family = self._core.GaugeMetricFamily(name, told, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        return family


def serve_metrics(
    collector: GraceCollector, port: int = 9464, addr: str = "127.0.0.1"
) -> Callable[[], None]:
    """Serve ``/metrics`` on a thread of its own; return the function that ends it.

    Args:
        collector: What is told.
        port: Of the server; 0 takes one that is free.
        addr: Of the interface to listen on; ``0.0.0.0`` for all.

    Raises:
        GraceError: ``port`` is no number of a port.
        NotSupported: prometheus_client is not installed.
        OSError: the port is taken.
    """
    expect_number("serve_metrics", "port", port, 0, 65535, whole=True)
    registry = _prometheus("registry").CollectorRegistry(auto_describe=False)
    registry.register(collector)
    server, thread = _prometheus("exposition").start_http_server(port, addr, registry)

    def close() -> None:
        """End the server and its thread."""
        server.shutdown()
        server.server_close()
        thread.join()

    return close


def flat(state: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return numbers and texts of a snapshot by name, those of its parts as ``part_name``.

    Args:
        state: A mapping of names to values, or a dataclass of them.
        without: Names that are left out.
    """
    if is_dataclass(state):
        state = {field.name: getattr(state, field.name) for field in fields(state)}
    found: dict[str, Any] = {}
    for name, value in state.items():
        if name in without:
            continue
        if is_dataclass(value) or isinstance(value, Mapping):
            found |= {f"{name}_{inner}": number for inner, number in flat(value).items()}
        elif isinstance(value, bool | int | float | str):
            found[name] = value
    return found


def _part(state: Any, name: str) -> Any:
    """Return a part of a snapshot, None where it has none."""
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)


def _in_seconds(name: str) -> tuple[str, float]:
    """Return the name of a time in seconds, and what its value is multiplied by."""
    for unit, scale in UNITS.items():
        if name.endswith(unit):
            return f"{name.removesuffix(unit)}_seconds", scale
    return name, 1.0


def _prometheus(module: str) -> Any:
    """Import a module of prometheus_client.

    Raises:
        NotSupported: it is not installed.
    """
    try:
        return import_module(f"prometheus_client.{module}")
    except ModuleNotFoundError as error:
        raise NotSupported(
            "metrics: prometheus_client is not installed; pip install 'grace-torchrec[serve]'"
        ) from error
