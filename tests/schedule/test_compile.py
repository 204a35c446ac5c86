"""torch.compile sees the streams of an annotated graph, and the graph computes the same."""

import pytest
import torch
from torch._dynamo import reset

from grace_torchrec.models.bundled import bundled
from grace_torchrec.schedule.graph_module import annotate
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


@pytest.mark.soak
@pytest.mark.xfail(raises=NameError, reason="torch 2.13's inductor writes no streams for the CPU")
def test_inductor_on_the_cpu(annotated):
    gm, _, batch = annotated
    compiled = torch.compile(gm, backend="inductor")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*batch), gm(*batch))
