"""Queries that share streams get what the model answers to each alone, in whatever order streams run."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from delayed_streams import DelayedStreams
from torch import nn

import grace_torchrec as grace
from bench.scheduling.random_programs import random_lowered
from grace_torchrec.errors import NotSupported
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule import stream_pass
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.segment_program import program_of
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.stream_sets import CpuStreamSet
from grace_torchrec.schedule.tracing import op_graph, trace
from grace_torchrec.serve.segmented_model import SegmentedModel, serving
from grace_torchrec.serve.shared_streams import SharedStreams

CPU = torch.device("cpu")


class Delayed(CpuStreamSet):
    """Streams that pause before a segment, at random."""

    def __init__(self, num_streams: int, delay_us: float, seed: int = 0, slow: int = -1) -> None:
        self.threads: DelayedStreams = DelayedStreams(num_streams, delay_us, seed, slow)

    def launch(self, stream: int, task: Any, after: Any) -> threading.Event:
        def run() -> None:
            self.threads.pause(stream)
            task()

        return super().launch(stream, run, after)


class Forgetful(CpuStreamSet):
    """Streams on which nothing waits for segment ``need``, which runs behind ``user``."""

    def __init__(self, num_streams: int, need: int, user: int) -> None:
        super().__init__(num_streams)
        self.need, self.user = need, user
        self.event: threading.Event | None = None
        self.user_ran, self.left_out = threading.Event(), False

    def launch(self, stream: int, task: Any, after: Any) -> threading.Event:
        place = getattr(task, "place", -1)

        def run() -> None:
            if place == self.need:
                self.user_ran.wait(0.6)  # unless that is queued behind this
            task()
            if place == self.user:
                self.user_ran.set()

        self.left_out |= self.event in after
        event = super().launch(stream, run, [one for one in after if one is not self.event])
        if place == self.need:
            self.event = event
        return event


@pytest.fixture(scope="module")
def bundled_case() -> Callable[[str], Any]:
    """Return a function from a name to (lowered module, program, batches, answers)."""
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in made:
            example = bundled(name, batch=4, batches=3)
            gm = trace(example.model)
            graph = op_graph(gm)
            stats = roofline(gm, graph, example.batches[0])
            lowered = random_lowered(random.Random(0), graph, 4)
            module = to_graph_module(gm, lowered)
            with torch.no_grad():
                wanted = [module(*batch) for batch in example.batches]
            made[name] = module, program_of(module, lowered, stats), example.batches, wanted
        return made[name]

    return make


def shared_of(streams: CpuStreamSet, num_streams: int) -> SharedStreams:
    return SharedStreams(num_streams, CPU, streams=streams)


def answers(run: Callable[[Any], Any], batches: Any, times: int = 1) -> list[list[Any]]:
    """Ask for all batches at once, each from a thread of its own; errors stand for answers."""

    def answer(batch: Any) -> Any:
        try:
            return run(batch)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(batches)) as threads:
        asked = [threads.submit(lambda b=b: [answer(b) for _ in range(times)]) for b in batches]
        return [future.result() for future in asked]


@pytest.mark.parametrize(
    "num_streams", [2, *(pytest.param(k, marks=pytest.mark.soak) for k in (1, 3, 5, 8))]
)
@pytest.mark.parametrize("name", MODELS)
def test_queries_in_flight_are_answered_bit_for_bit(
    bundled_case: Any, name: str, num_streams: int
) -> None:
    module, program, batches, wanted = bundled_case(name)
    shared = shared_of(Delayed(num_streams, 10, num_streams, num_streams - 1), num_streams)
    model = SegmentedModel(shared, program)
    for found, right in zip(
        answers(lambda batch: model.run(module, *batch), batches, 2), wanted, strict=True
    ):
        assert all(torch.equal(one, right) for one in found)
    loads = shared.loads().values()
    assert sum(load.launched for load in loads) == len(program.segments) * len(batches) * 2
    assert not any(load.backlog_us for load in loads)
    shared.close()


@pytest.mark.parametrize("num_streams", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_stream_is_chosen_by_what_streams_still_have_to_do(
    bundled_case: Any, name: str, num_streams: int
) -> None:
    """Nothing ends here, so each stream has to be used; where all ends at once, one may do it all."""
    _, program, _, _ = bundled_case(name)
    shared = shared_of(CpuStreamSet(num_streams), num_streams)
    scheduler = SegmentedModel(shared, program).scheduler
    used = []
    for _ in range(num_streams):
        decisions = shared.begin(scheduler)
        while (decided := shared.decide(decisions, scheduler)) is not None:
            used.append(decided[1])
    assert len(used) == len(program.segments) * num_streams
    assert set(used) == set(range(num_streams))
    assert all(load.launched and load.backlog_us > 0 for load in shared.loads().values())
    shared.close()


@pytest.mark.parametrize("name", MODELS)
def test_without_a_wait_a_query_is_seen_to_fail(bundled_case: Any, name: str) -> None:
    module, program, batches, _ = bundled_case(name)
    needs, before = program.graph.needs, program.graph.ancestors()
    direct = [
        (need, user)
        for user in range(len(needs))
        for need in needs[user]
        if not any(before[other] >> need & 1 for other in needs[user])
    ]
    left_out = seen = 0
    for need, user in direct[:: max(1, len(direct) // 5)]:
        streams = Forgetful(len(needs), need, user)
        model = SegmentedModel(shared_of(streams, len(needs)), program)
        (found,) = answers(lambda batch, m=model: m.run(module, *batch), batches[:1])
        streams.close()
        left_out += streams.left_out
        seen += streams.left_out and isinstance(found[0], KeyError)
    assert seen >= 0.5 * left_out > 0


@pytest.fixture(autouse=True)
def even_costs(monkeypatch) -> None:
    """Costs are given: what a busy machine measures may leave no schedule."""

    def costs(gm: Any, graph: OpGraph, example: Any) -> OpStats:
        times = [400.0 if "sparse" in op.name else 80.0 for op in graph.ops]
        return OpStats.of(graph, [OpStat(us) for us in times], "cpu", "given")

    monkeypatch.setattr(stream_pass, "profile_cpu", costs)


@pytest.fixture
def streams() -> Iterator[SharedStreams]:
    shared = shared_of(Delayed(3, 20), 3)
    yield shared
    shared.close()


class Failing(nn.Module):
    """An arm that raises where its input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.rank = nn.Linear(8, 8), nn.Linear(8, 8), Refusing()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.rank(self.left(x)) + torch.relu(self.right(y))


class Refusing(nn.Module):
    """A leaf that raises on what is not a number."""

    mutable_resources = ("cache",)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.isnan().any()):
            raise ValueError("not a number")
        if bool((x.abs() > 1e6).any()):
            raise SystemExit("a worker ends")
        return x * 2


def test_a_segment_that_raises_fails_its_query_and_no_other(streams: SharedStreams) -> None:
    model = Failing().eval()
    good = torch.rand(2, 8), torch.rand(2, 8)
    result = schedule_(model, good, 2)
    assert result.modified, result.reason
    run = serving(result.module, streams)
    bad = torch.full((2, 8), float("nan")), good[1]
    worse = torch.full((2, 8), 1e9), good[1]
    found = answers(run, [good, bad, good, worse, good], 5)
    wanted = model(*good)
    for place, answered in enumerate(found):
        for one in answered:
            if place in (1, 3):
                assert isinstance(one, ValueError if place == 1 else SystemExit)
            else:
                assert torch.equal(one, wanted)
    assert not any(load.backlog_us for load in streams.loads().values())
    assert torch.equal(run(good), wanted)


def test_a_segment_that_no_stream_takes_is_no_load(streams: SharedStreams) -> None:
    model = Failing().eval()
    good = torch.rand(2, 8), torch.rand(2, 8)
    result = schedule_(model, good, 2)
    assert result.modified, result.reason
    run = serving(result.module, streams)
    launch, refused = streams.streams.launch, []

    def refuse(*told: Any) -> Any:
        """Take all but one segment."""
        if refused:
            return launch(*told)
        refused.append(told)
        raise MemoryError("no room")

    streams.streams.launch = refuse
    with pytest.raises(MemoryError):
        run(good)
    for _ in range(3):
        assert torch.equal(run(good), model(*good))
    assert not any(load.backlog_us for load in streams.loads().values())


def test_a_model_without_a_schedule_is_refused(streams: SharedStreams, model_of, served_of) -> None:
    with pytest.raises(NotSupported, match="not scheduled over streams"):
        serving(nn.Linear(1, 1), streams)
    served = served_of(model_of(), streams=1)
    with pytest.raises(NotSupported, match=r"streams=2 or more"):
        serving(served, streams)


def test_a_served_model_takes_deltas_between_queries(
    streams: SharedStreams, model_of, served_of, batch
) -> None:
    model = model_of()
    model.dense = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 9), nn.Linear(9, 4)).eval()
    served = served_of(model, row_dtype="fp32")
    assert served.scheduled.modified, served.scheduled.reason
    run = serving(served, streams)
    before = run(batch)
    assert torch.equal(before, served(*batch))
    grace.publish_delta(served, {"t_item": (torch.arange(20), torch.ones(20, 4))})
    after = run(batch)
    assert torch.equal(after, served(*batch))
    assert not torch.equal(after, before)
