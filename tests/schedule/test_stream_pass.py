"""The pass and what it writes: equal results on any streams, proofs, refusals."""

import copy
import pickle

import pytest
import torch
from delayed_streams import DelayedStreams
from torch import fx, nn
from worker_program import WorkerProgram

from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.backends import NullBackend, RecordingBackend
from grace_torchrec.schedule.graph_module import (
    META_STREAM,
    annotate,
    attach,
    read_steps,
    to_graph_module,
    wait_event,
)
from grace_torchrec.schedule.lower import Await, Mark, Use, lower
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.resources import resource_pins
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.tracing import op_graph, trace


@pytest.fixture(scope="module")
def lowered_model():
    """Return a function from (name, streams) to (lowered module, example, results)."""
    made = {}

    def make(name, streams):
        if (name, streams) not in made:
            example = bundled(name, batch=4, batches=3)
            gm = trace(example.model)
            graph = op_graph(gm)
            stats = roofline(gm, graph, example.batches[0])
            schedule = make_schedule(graph, stats, Machine(streams), starts=4, steps=4)
            module = to_graph_module(gm, lower(schedule))
            with torch.inference_mode():
                wanted = [example.model(*batch) for batch in example.batches]
            made[name, streams] = (module, schedule, example, wanted)
        return made[name, streams]

    return make


@pytest.mark.parametrize("streams", range(1, 9))
@pytest.mark.parametrize("name", MODELS)
def test_results_are_bit_equal_on_worker_streams_with_queries_in_flight(
    lowered_model, name, streams
):
    module, schedule, example, wanted = lowered_model(name, streams)
    with torch.inference_mode():
        assert torch.equal(module(*example.batches[0]), wanted[0])
    program = WorkerProgram(module)
    with DelayedStreams(schedule.num_streams, delay_us=100, seed=streams) as workers:
        for queries in (1, 2, 3):
            started = [program.start(workers, *batch) for batch in example.batches[:queries]]
            for result, right in zip(started, wanted, strict=False):
                assert torch.equal(result(), right)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_results_are_bit_equal_many_times(lowered_model, name):
    for streams in range(2, 9):
        module, schedule, example, wanted = lowered_model(name, streams)
        program = WorkerProgram(module)
        for seed in range(20):
            slow = seed % schedule.num_streams
            with DelayedStreams(schedule.num_streams, 50, seed, slow) as workers:
                started = [program.start(workers, *batch) for batch in example.batches]
                results = [result() for result in started]
            assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_without_a_wait_a_run_is_seen_to_fail(lowered_model, name):
    module, schedule, example, wanted = lowered_model(name, 4)
    steps = lower(schedule).steps
    waits = [step.event for step in steps if isinstance(step, Await)]
    between = [place for place, event in enumerate(waits) if event >= 0]  # inputs are always there
    seen = sum(fails(module, schedule, example, wanted, place, waits[place]) for place in between)
    assert seen >= 0.8 * len(between) > 0


def fails(module, schedule, example, wanted, place, event):
    """Whether some run goes wrong without one wait, its producer's stream being slow."""
    program = WorkerProgram(module, leave_out=place)
    for seed in range(4):
        slow = schedule.stream_n[event]
        delay_us = 100 * 2**seed  # on a busy machine all streams are slow
        with DelayedStreams(schedule.num_streams, delay_us, seed, slow) as workers:
            try:
                if not torch.equal(program.run(workers, *example.batches[0]), wanted[0]):
                    return True
            except (KeyError, TypeError):  # the value was not there yet
                return True
    return False


def test_the_graph_says_what_the_steps_say(lowered_model):
    module, schedule, example, _ = lowered_model("din", 4)
    lowered = lower(schedule)
    assert read_steps(module, schedule).steps == lowered.steps
    backend = RecordingBackend()
    attach(module, backend)
    module(*example.batches[0])
    attach(module, NullBackend())
    wanted = [("begin", 0)]
    names = {Use: ("use", "stream"), Mark: ("record", "event"), Await: ("wait", "event")}
    for step in lowered.steps:
        if type(step) in names:
            word, field = names[type(step)]
            wanted.append((word, getattr(step, field)))
    log = [entry for entry in backend.log if entry[0] != "retire"]
    assert log == [*wanted, ("end", 0)]
    streams = {n.meta[META_STREAM] for n in module.graph.nodes if META_STREAM in n.meta}
    assert streams == set(range(schedule.num_streams))


def test_the_callers_stream_comes_back_after_an_error(lowered_model):
    module, _, example, _ = lowered_model("bst", 2)
    backend = RecordingBackend()
    attach(module, backend)
    history, features = example.batches[0]
    outside = {
        name: (ids + 9999 * (name == "f7"), offsets) for name, (ids, offsets) in features.items()
    }
    with pytest.raises((RuntimeError, IndexError)):
        module(history, outside)
    attach(module, NullBackend())
    assert backend.log[-1] == ("end", 0)


def test_copies_start_without_a_backend_and_keep_the_calls(lowered_model):
    module, _, example, wanted = lowered_model("dlrm", 4)
    attach(module, RecordingBackend())
    again = copy.deepcopy(module)
    assert isinstance(again.streams.backend, NullBackend)
    with torch.inference_mode():
        assert torch.equal(again(*example.batches[0]), wanted[0])
    attach(module, NullBackend())
    backend = RecordingBackend()
    attach(again, backend)
    again(*example.batches[0])
    assert {word for word, _ in backend.log} == {"begin", "use", "record", "wait", "retire", "end"}


def test_a_pickle_would_lose_the_calls_and_is_refused(lowered_model):
    with pytest.raises(NotSupported, match="schedule it again"):
        pickle.dumps(lowered_model("dlrm", 4)[0])


def test_dead_code_elimination_keeps_the_calls(lowered_model):
    module = copy.deepcopy(lowered_model("dlrm", 4)[0])
    before = sum(node.target is wait_event for node in module.graph.nodes)
    module.graph.eliminate_dead_code()
    assert sum(node.target is wait_event for node in module.graph.nodes) == before > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_pass_schedules_a_model_once_and_proves_it(name):
    example = bundled(name, batch=4)
    batch = example.batches[0]
    result = schedule_(example.model, batch, streams=4)
    with torch.inference_mode():
        assert torch.equal(result.module(*batch), example.model(*batch))
    assert result.modified
    assert result.proof.races == ()
    assert result.proof.programs == 11
    again = schedule_(result.module, batch, streams=2)
    assert (again.modified, again.reason) == (False, "it is scheduled already")
    assert again.module is result.module


def test_a_graph_module_is_changed_in_place():
    example = bundled("dlrm", batch=4)
    gm = trace(example.model)
    wanted = gm(*example.batches[0])
    result = schedule_(gm, example.batches[0])
    assert result.module is gm
    assert torch.equal(gm(*example.batches[0]), wanted)
    assert any(node.target is wait_event for node in gm.graph.nodes)
    assert not schedule_(gm, example.batches[0]).modified


class Chain(nn.Module):
    def forward(self, x):
        return torch.sin(torch.cos(torch.tan(x)))


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Guesses(nn.Module):
    """Traces to something else: the branch depends on Python state that forward changes."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Chain(), "more streams would only add waits"),
        (Depends(), r"cannot be traced at .*test_stream_pass\.py:\d+"),
        (Guesses(), "its trace computes other values"),
    ],
)
def test_a_model_that_cannot_gain_is_left_alone_with_a_reason(model, reason):
    result = schedule_(model.eval(), (torch.ones(3),))
    assert not result.modified
    assert result.module is model
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(result.reason)


def test_wrong_calls_are_refused_before_anything_changes():
    example = bundled("bst", batch=2)
    batch = example.batches[0]
    with pytest.raises(NotSupported, match="training mode"):
        schedule_(bundled("bst").model.train(), batch)
    with pytest.raises(GraceError, match="streams must be an integer of 1 or more, got 0"):
        schedule_(example.model, batch, streams=0)
    with pytest.raises(GraceError, match="no operator 'nothing'"):
        schedule_(example.model, batch, writes={"nothing": ["cache"]})
    other = bundled("dlrm", batch=2)
    gm = trace(other.model)
    stats = roofline(gm, op_graph(gm), other.batches[0])
    with pytest.raises(PlanMismatch):
        schedule_(example.model, batch, stats=stats)
    assert not isinstance(example.model, fx.GraphModule)


def test_users_of_one_resource_share_a_stream():
    example = bundled("dlrm", batch=2)
    gm = trace(example.model)
    graph = op_graph(gm)
    tables = [op.name for op in graph.ops if op.kind == "embedding"][:6]
    writes = {name: [f"cache {k % 3}"] for k, name in enumerate(tables)}
    graph = graph.with_resources({}, writes)
    stats = OpStats.of(graph, roofline(gm, op_graph(gm), example.batches[0]).stats, "json", "")
    pins = resource_pins(graph, stats, 4)
    assert set(pins) == set(tables)
    assert all(pins[tables[k]] == pins[tables[k + 3]] for k in range(3))
    assert len(set(pins.values())) == 3
    result = schedule_(example.model, example.batches[0], writes=writes)
    assert result.proof.races == ()
    with torch.inference_mode():
        assert torch.equal(result.module(*example.batches[0]), example.model(*example.batches[0]))


def test_streams_are_written_where_torch_compile_looks_for_them():
    example = bundled("dlrm", batch=4)
    gm = trace(example.model)
    graph = op_graph(gm)
    stats = roofline(gm, graph, example.batches[0])
    schedule = make_schedule(graph, stats, Machine(4), starts=2, steps=0)
    assert annotate(gm, schedule) == sum(len(op.nodes) for op in graph.ops)
    assert annotate(gm, schedule) == 0
    marked = {n.meta["custom"]["stream"] for n in gm.graph.nodes if "custom" in n.meta}
    assert marked == set(range(schedule.num_streams))
