"""The code of a lowered graph: direct calls, what users swap is used, errors give the stream back."""

import copy

import pytest
import torch
from torch import nn

from grace_torchrec.schedule.backends import NullBackend, RecordingBackend
from grace_torchrec.schedule.graph_module import attach
from grace_torchrec.schedule.stream_pass import schedule_


class Names(nn.Module):
    """Arguments and modules whose names are those that the code would like to use."""

    def __init__(self):
        super().__init__()
        self.wait = nn.Linear(4, 4)
        self.use = nn.ModuleDict({"record": nn.Linear(4, 4), "0": nn.Linear(4, 4)})
        self.streams_of = nn.Linear(4, 4)

    def forward(self, use, record):
        left = self.wait(use) + self.use["record"](record)
        right = self.streams_of(use) + self.use["0"](record)
        return torch.cat([left, right], 1)


@pytest.fixture
def scheduled():
    torch.manual_seed(0)
    model, batch = Names().eval(), (torch.rand(3, 4), torch.rand(3, 4))
    result = schedule_(model, batch, 3)
    assert result.modified, result.reason
    return model, result.module, batch


def test_names_of_the_model_do_not_clash_with_those_of_the_code(scheduled):
    model, module, batch = scheduled
    backend = RecordingBackend()
    attach(module, backend)
    assert torch.equal(module(*batch), model(*batch))
    assert {word for word, _ in backend.log} >= {"begin", "use", "record", "wait", "end"}


def test_a_module_that_is_swapped_later_is_the_one_that_is_called(scheduled):
    model, module, batch = scheduled
    before = module(*batch)
    other = nn.Linear(4, 4)
    module.get_submodule("use").add_module("0", other)
    model.use["0"] = other
    after = module(*batch)
    assert torch.equal(after, model(*batch))
    assert not torch.equal(after, before)


def test_hooks_of_modules_inside_run(scheduled):
    _, module, batch = scheduled
    seen = []
    module.get_submodule("use.record").register_forward_hook(lambda *_: seen.append(1))
    module(*batch)
    assert seen == [1]


def test_modules_and_stream_calls_are_reached_without_a_search(scheduled):
    code = scheduled[1].code
    assert "self._modules['use']._modules['0']" in code
    assert "getattr(" not in code
    assert "wait_event(" not in code


def test_copies_and_recompiled_graphs_compute_the_same(scheduled):
    model, module, batch = scheduled
    again = copy.deepcopy(module)
    again.recompile()
    backend = RecordingBackend()
    attach(again, backend)
    assert torch.equal(again(*batch), model(*batch))
    assert len(backend.log) > 4
    assert isinstance(module.streams.backend, NullBackend)


def test_a_transformer_of_the_users_sees_the_lines(scheduled):
    _, module, batch = scheduled
    wanted, seen = module(*batch), []
    module.graph.on_generate_code(lambda old: lambda body: seen.extend(body) or body)
    module.recompile()
    assert any("_modules" in line for line in seen)
    assert torch.equal(module(*batch), wanted)
