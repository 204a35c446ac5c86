"""torch.compile takes an annotated graph and computes the same, on the CPU's inductor."""

import pytest
import torch

from grace_torchrec.models.bundled import bundled
from grace_torchrec.schedule.graph_module import annotate
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.tracing import op_graph, trace


@pytest.mark.soak
def test_an_annotated_graph_compiles_and_computes_the_same():
    example = bundled("bst", batch=4)
    gm = trace(example.model)
    graph = op_graph(gm)
    schedule = make_schedule(graph, roofline(gm, graph, example.batches[0]), Machine(3))
    annotate(gm, schedule)
    compiled = torch.compile(gm, backend="inductor")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*example.batches[0]), gm(*example.batches[0]))
