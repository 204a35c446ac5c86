"""Tracing: views stay with their memory, in-place operators are ordered, failures name a line."""

import pytest
import torch
from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import op_graph, trace


class Branches(nn.Module):
    def forward(self, x):
        a = torch.relu(x)
        b = a.view(-1).unsqueeze(0)
        return torch.tanh(b) + torch.sigmoid(a).view(1, -1)


def test_views_belong_to_the_operator_whose_memory_they_show():
    graph = op_graph(trace(Branches()))
    assert [op.nodes for op in graph.ops] == [
        ("relu", "view", "unsqueeze"),
        ("tanh",),
        ("sigmoid", "view_1"),
        ("add",),
    ]
    assert graph.needs == ((), (0,), (0,), (1, 2))


@pytest.mark.parametrize("name", MODELS)
def test_every_computing_node_of_a_model_is_in_one_operator(name):
    gm = trace(bundled(name, batch=2).model)
    graph = op_graph(gm)
    nodes = [node for op in graph.ops for node in op.nodes]
    assert len(nodes) == len(set(nodes))
    assert {"output", "placeholder", "get_attr"}.isdisjoint(op.kind for op in graph.ops)
    assert sum(op.kind == "embedding" for op in graph.ops) >= 14
    assert graph.parallel_share() > 0.7


class InPlace(nn.Module):
    def forward(self, x):
        a = x + 1
        b = a * 2
        a.add_(b)
        return torch.sin(a), torch.cos(b)


def test_an_in_place_operator_follows_earlier_readers_and_precedes_later_ones():
    graph = op_graph(trace(InPlace()))
    names = [op.name for op in graph.ops]
    assert names == ["add", "mul", "add_", "sin", "cos"]
    assert graph.ops[2].needs == (0, 1)
    assert graph.ops[2].in_place_of == 0
    assert graph.ops[3].needs == (2,)
    assert graph.ops[4].needs == (1,)


class Late(nn.Module):
    def forward(self, x):
        a = x + 1
        c = torch.sin(a)
        a.mul_(2)
        return torch.cos(a), c


def test_an_in_place_operator_waits_for_readers_whose_result_it_does_not_need():
    graph = op_graph(trace(Late()))
    assert [op.name for op in graph.ops] == ["add", "sin", "mul_", "cos"]
    assert graph.ops[2].needs == (0, 1)


class Hidden(nn.Module):
    """An operator that hands its input on: only a run can tell."""

    def forward(self, x):
        return torch.dropout(torch.relu(x), 0.5, False) + 1


def test_hidden_aliases_are_found_by_running():
    gm = trace(Hidden().eval())
    found = touched(gm, (torch.ones(3),))
    assert found["dropout"].shows == {"relu"}
    assert [op.nodes for op in op_graph(gm, touched=found).ops] == [("relu", "dropout"), ("add",)]


class Depends(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the line that is named
            return x
        return -x


def test_a_model_that_cannot_be_traced_is_refused_with_file_and_line():
    line = Depends.forward.__code__.co_firstlineno + 1
    with pytest.raises(NotSupported, match=rf"test_tracing\.py:{line}: .*single stream"):
        trace(Depends())


class Cached(nn.Module):
    mutable_resources = ("cache:items",)

    def forward(self, ids):
        return ids * 2


def test_a_module_names_the_resources_it_writes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Cached(), Cached()

        def forward(self, ids):
            return self.first(ids), self.second(ids)

    graph = op_graph(trace(Model()))
    assert [op.writes for op in graph.ops] == [("cache:items",)] * 2
    assert graph.ops[1].needs == (0,)
