"""What Prometheus scrapes is what the engine, the plan and the drift say."""

import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.serve.metrics import BUCKETS_S, EngineMetrics, Now
from grace_torchrec.serve.prometheus import GraceCollector, flat, serve_metrics
from grace_torchrec.serve.shadow import ShadowCounts
from grace_torchrec.serve.shared_streams import StreamLoad
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate


@dataclass
class Shadow:
    compared: int = 5
    worst: None = None


@dataclass
class State:
    """A state as an engine has it."""

    accepted: int = 10
    answered: int = 7
    rejected: int = 2
    batches: int = 4
    queued: int = 3
    p50_ms: float = 1.5
    p99_ms: float = 20.0
    outlook_error_us: float = 40.0
    model: str = "ours"
    shadow: Shadow = field(default_factory=Shadow)
    streams: dict[int, StreamLoad] = field(default_factory=dict)


class Metrics:
    def __init__(self):
        self.state = State()

    def snapshot(self):
        return self.state


@pytest.fixture(scope="module")
def plan():
    specs = [TableSpec("m", "t_item", 900, 32, "fp32", "sum", ("item",), False)]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("item",))})
    return make_plan(specs, profile, MemoryModel.named("a40"), PlanOptions(methods=("subsets",)))


def scraped(text):
    """Sample name and labels -> value."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return scraped(generate_latest(registry).decode())


def test_counts_gauges_and_latencies_have_their_units():
    found = scrape(GraceCollector(Metrics()))
    assert found["grace_requests_total", ("outcome", "answered")] == 7
    assert found["grace_requests_total", ("outcome", "rejected")] == 2
    assert found["grace_batches_total",] == 4
    assert found["grace_queued",] == 3
    assert found["grace_latency_seconds", ("quantile", "0.5")] == pytest.approx(0.0015)
    assert found["grace_latency_seconds", ("quantile", "0.99")] == pytest.approx(0.02)
    assert found["grace_outlook_error_seconds",] == pytest.approx(40e-6)
    assert found["grace_shadow_compared_total",] == 5
    assert found["grace_model_info", ("model", "ours")] == 1


def test_each_stream_is_a_label_and_what_it_launched_is_a_count():
    metrics = Metrics()
    assert not [key for key in scrape(GraceCollector(metrics)) if "stream" in key[0]]
    metrics.state.streams = {0: StreamLoad(250.0, 5), 1: StreamLoad(0.0, 7)}
    found = scrape(GraceCollector(metrics))
    streams = {key: value for key, value in found.items() if key[0].startswith("grace_streams")}
    assert streams == {
        ("grace_streams_backlog_seconds", ("stream", "0")): pytest.approx(250e-6),
        ("grace_streams_backlog_seconds", ("stream", "1")): 0,
        ("grace_streams_launched_total", ("stream", "0")): 5,
        ("grace_streams_launched_total", ("stream", "1")): 7,
    }


def test_latencies_of_replicas_add_up():
    replicas = [EngineMetrics(now), EngineMetrics(now)]
    for metrics, latencies_s in zip(
        replicas, ([1e-4, 1e-3, 0.04], [0.04, 99.0, 0.02]), strict=True
    ):
        metrics.answered(latencies_s[:1])
        metrics.answered(latencies_s[1:])
    found = Counter()
    for metrics in replicas:
        found.update(scrape(GraceCollector(metrics)))
    name = "grace_request_duration_seconds"
    below = {key[1][1]: found[key] for key in found if key[0] == f"{name}_bucket"}
    assert [float(bound) for bound in below] == [*BUCKETS_S, float("inf")]
    assert list(below.values()) == [1, 2, 2, 2, 2, 3, 5, 5, 5, 5, 5, 5, 5, 5, 6]
    assert found[f"{name}_count",] == 6
    assert found[f"{name}_sum",] == pytest.approx(99.1011)


def now():
    return Now(0, 0, "ours", 0, 0.0, 0.0, ShadowCounts(), {})


def test_every_scrape_sees_the_state_of_its_moment():
    metrics = Metrics()
    collector = GraceCollector(metrics)
    before = scrape(collector)
    metrics.state = State(answered=8)
    assert scrape(collector)["grace_requests_total", ("outcome", "answered")] == 8
    assert before["grace_requests_total", ("outcome", "answered")] == 7


def test_a_plan_and_its_drift_are_told_table_by_table(plan):
    found = scrape(GraceCollector(plan=plan, drift=lambda: {"m.t_item": 0.03}))
    table = ("table", "m.t_item")
    assert found["grace_plan_predicted_cut", table] == plan.tables["m.t_item"].predicted.cut > 0
    assert found["grace_plan_extra_bytes", table] == plan.tables["m.t_item"].predicted.extra_bytes
    assert found["grace_drift", table] == 0.03
    (info,) = [key for key in found if key[0] == "grace_plan_info"]
    assert ("plan", plan_fingerprint(plan)) in info


def test_a_plan_that_is_flipped_is_told_as_of_the_scrape(plan):
    served = [None, plan]
    collector = GraceCollector(plan=lambda: served[0])
    assert scrape(collector) == {}  # the stock model: no plan
    served.reverse()
    assert scrape(collector) == scrape(GraceCollector(plan=plan)) != {}


def test_a_scraper_gets_it_over_http_until_it_is_closed(plan):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    close = serve_metrics(GraceCollector(Metrics(), plan=plan), port)
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = scraped(answer.read().decode())
    close()
    assert found["grace_requests_total", ("outcome", "accepted")] == 10
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_states_may_be_mappings_and_hold_parts():
    assert flat({"a": 1, "b": {"c": 2.0, "d": None}, "e": [1]}) == {"a": 1, "b_c": 2.0}


def test_without_prometheus_client_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for name in [name for name in sys.modules if name.startswith("prometheus_client.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(NotSupported, match=r"pip install 'grace-torchrec\[serve\]'"):
        GraceCollector(Metrics())


@pytest.mark.parametrize("port", ["9464", -1, 65536, None])
def test_a_port_is_a_number_of_one(port) -> None:
    with pytest.raises(GraceError, match="serve_metrics: port must be an integer"):
        serve_metrics(GraceCollector(), port)
