"""torch.compile sees the streams of an annotated graph, and the graph computes the same."""

import itertools

import pytest
import torch
from torch._dynamo import reset

from grace_torchrec.models.bundled import bundled
from grace_torchrec.schedule.compiling import stream_backend, synchronised
from grace_torchrec.schedule.graph_module import annotate
from grace_torchrec.schedule.program import Launch, Program, Record, Wait
from grace_torchrec.schedule.race_check import find_races
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.tracing import op_graph


@pytest.fixture
def annotated():
    """A traced model with streams, its schedule and a batch."""
    example = bundled("bst", batch=4)
    # functions only: Dynamo drops what a call of a module is annotated with
    gm = torch.export.export(example.model, example.batches[0]).module()
    graph = op_graph(gm)
    schedule = make_schedule(graph, roofline(gm, graph, example.batches[0]), Machine(3))
    annotate(gm, schedule)
    yield gm, schedule, example.batches[0]
    reset()


def test_a_compiler_backend_receives_every_stream_and_computes_the_same(annotated):
    gm, schedule, batch = annotated
    seen = set()

    def backend(graph_module, example_inputs):
        seen.update(n.meta.get("custom", {}).get("stream") for n in graph_module.graph.nodes)
        return graph_module.forward

    compiled = torch.compile(gm, backend=backend)
    with torch.inference_mode():
        assert torch.equal(compiled(*batch), gm(*batch))
    assert set(range(schedule.num_streams)) <= seen


def test_inductor_runs_an_annotated_graph_on_the_cpu(annotated):
    gm, _, batch = annotated
    compiled = torch.compile(gm, backend=stream_backend)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*batch), gm(*batch))


def program_of(gm):
    """What a GPU is told by a graph: launches, records and waits, for the race check."""
    told = [Launch("the caller", 0, (), tuple(n for n in gm.graph.nodes if n.op == "placeholder"))]
    for node in gm.graph.nodes:
        stream = node.meta.get("custom", {}).get("stream", 0)
        if node.target is torch.ops.streams.record_event.default:
            told.append(Record(*node.args))
        elif node.target is torch.ops.streams.wait_event.default:
            told.append(Wait(*node.args))
        elif node.op == "output":
            told.append(Launch("the caller", 0, tuple(node.all_input_nodes), ()))
        elif node.op not in ("placeholder", "get_attr"):
            reads = tuple(n for n in node.all_input_nodes if n.op != "get_attr")
            told.append(Launch(node.name, stream, reads, (node,)))
    return Program(tuple(told), {})


def test_what_a_gpu_is_told_is_free_of_races_and_every_wait_but_of_inputs_is_needed(annotated):
    gm, schedule, _ = annotated
    numbers = itertools.count(1)
    synchronised(gm, lambda: next(numbers) + 100, lambda: next(numbers))
    program = program_of(gm)
    assert program.num_streams > 100
    assert find_races(program) == []
    racing = [bool(find_races(program.without(place), most=1)) for place in program.waits()]
    assert sum(racing) >= len(racing) / 2
    used = {
        n.meta["custom"]["stream"] for n in gm.graph.nodes if n.meta.get("custom", {}).get("stream")
    }
    assert len(used) == schedule.num_streams - 1


def test_without_streams_nothing_is_written():
    gm = torch.fx.symbolic_trace(torch.nn.ReLU())
    synchronised(gm, pytest.fail, pytest.fail)
    assert len(gm.graph.nodes) == 3
