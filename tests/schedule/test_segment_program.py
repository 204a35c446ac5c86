"""A model in segments computes what the model does, by functions that any twin of it may use."""

import copy
import random

import pytest
import torch
from torch import nn

from bench.scheduling.random_programs import random_lowered
from grace_torchrec.errors import NotSupported
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.graph_module import to_graph_module
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.segment_program import program_of, segment_program
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.tracing import op_graph, trace


class Branches(nn.Module):
    """Two arms, an output of several parts, an optional argument and one that is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.top = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x, y, z=None):
        left = torch.relu_(self.left(x)) * self.scale
        right = torch.relu_(self.right(y)).reshape(-1, 8)
        return {"sum": self.top(left + right), "parts": (left, right.t(), x), "number": 3}


def run(program, module, batch):
    values = program.begin(module, batch)
    for segment in program.segments:
        segment.run(module, values)
    return program.end(module, values)


def same(found, wanted):
    found, wanted = (torch.utils._pytree.tree_leaves(value) for value in (found, wanted))
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.fixture(scope="module")
def branches():
    torch.manual_seed(0)
    model = Branches().eval()
    batch = torch.rand(4, 8), torch.rand(4, 8)
    result = schedule_(model, batch, 2)
    assert result.modified, result.reason
    return model, result.module, batch


@pytest.mark.parametrize(
    ("name", "least_us"), [*((name, 0.0) for name in MODELS), ("din", 40.0), ("bst", 1e9)]
)
def test_a_bundled_model_in_segments_is_bit_equal(name, least_us):
    example = bundled(name, batch=4)
    gm = trace(example.model)
    graph = op_graph(gm)
    stats = roofline(gm, graph, example.batches[0])
    lowered = random_lowered(random.Random(0), graph, 4)
    program = program_of(to_graph_module(gm, lowered), lowered, stats, least_us)
    with torch.no_grad():
        assert torch.equal(run(program, gm, example.batches[0]), example.model(*example.batches[0]))
    assert (len(program.segments) == 1) == (least_us == 1e9)
    assert sum(program.stats.times_us) == pytest.approx(sum(stats.times_us))
    assert max(program.stats.grids) == max(stats.grids)
    maker = {name: place for place, part in enumerate(program.segments) for name in part.outputs}
    for place, part in enumerate(program.segments):  # what is read is waited for
        read = {maker[name] for name in part.inputs if name in maker}
        assert read <= set(program.graph.ops[place].needs)


def test_outputs_of_any_shape_and_arguments_that_are_left_out(branches):
    model, module, batch = branches
    program = segment_program(module)
    with torch.no_grad():
        assert same(run(program, module, batch), model(*batch))
        assert same(run(program, module, (*batch, None)), model(*batch))
        with pytest.raises(TypeError):
            run(program, module, batch[:1])


def test_a_twin_with_other_weights_runs_by_the_same_functions(branches):
    model, module, batch = branches
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
        assert same(run(segment_program(module), other, batch), other(*batch))


def test_a_module_that_is_not_scheduled_is_refused(branches):
    for module in (branches[0], trace(branches[0])):
        with pytest.raises(NotSupported, match="not scheduled over streams"):
            segment_program(module)
