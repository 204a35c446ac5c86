"""A kept schedule is the schedule that was found, step by step, and holds for what a run shows."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.models.bundled import MODELS, bundled
from grace_torchrec.schedule.kept import KeptSchedule, schedule_again
from grace_torchrec.schedule.roofline import roofline
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import carried_out, schedule_
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import code_hash, op_graph, trace


def scheduled(name, streams=4):
    """Return a bundled model, one batch, and what became of it."""
    model = bundled(name, batch=4, batches=1)
    gm, batch = trace(model.model), model.batches[0]
    costs = roofline(gm, op_graph(gm, touched=touched(gm, batch)), batch)
    return model.model, batch, schedule_(model.model, batch, streams, stats=costs)


def waits_sorted(schedule):
    """Return a schedule whose operators name what they wait for in rising order."""
    return replace(schedule, waits_n=tuple(tuple(sorted(waits)) for waits in schedule.waits_n))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_schedule_comes_back_from_json(name):
    model, batch, found = scheduled(name)
    assert found.modified
    document = json.loads(json.dumps(asdict(KeptSchedule.of(found))))
    kept = KeptSchedule(**{k: tuple(v) if isinstance(v, list) else v for k, v in document.items()})
    again = schedule_again(trace(model), batch, Machine(4), found.stats, kept)
    assert waits_sorted(again.schedule) == waits_sorted(found.schedule)
    assert again.lowered.figures == found.lowered.figures
    assert (again.modified, again.code, again.proof.races) == (True, found.code, ())
    with torch.no_grad():
        assert torch.equal(again.module(*batch), found.module(*batch))


def test_one_stream_stays_one_for_the_same_reason():
    model, batch, found = scheduled("dlrm" if "dlrm" in MODELS else next(iter(MODELS)), streams=1)
    again = schedule_again(trace(model), batch, Machine(1), found.stats, KeptSchedule.of(found))
    assert (again.modified, again.reason) == (False, "one stream was asked for")
    assert again.schedule == found.schedule


class Scaled(nn.Module):
    """Two arms and a number in the code."""

    def __init__(self, factor):
        super().__init__()
        self.left, self.right, self.factor = nn.Linear(3, 3), nn.Linear(3, 3), factor

    def forward(self, dense):
        return self.left(dense) + self.right(dense) * self.factor


def test_a_model_with_another_number_in_its_code_is_refused():
    batch = (torch.rand(2, 3),)
    found = schedule_(Scaled(2.0).eval(), batch)
    kept = KeptSchedule.of(found)
    schedule_again(trace(Scaled(2.0).eval()), batch, Machine(4), found.stats, kept)
    with pytest.raises(PlanMismatch, match="made for another model than this Scaled"):
        schedule_again(trace(Scaled(3.0).eval()), batch, Machine(4), found.stats, kept)


def test_what_is_no_schedule_of_the_model_is_refused():
    _, _, found = scheduled(next(iter(MODELS)))
    graph, kept = found.schedule.graph, KeptSchedule.of(found)
    backwards = replace(kept, order_n=kept.order_n[::-1])
    for other, machine in ((backwards, Machine(4)), (kept, Machine(1))):
        with pytest.raises(GraceError, match="kept schedule of"):
            other.schedule(graph, found.stats, machine)
    with pytest.raises(GraceError, match="are not those of its operators"):
        replace(kept, stream_n=kept.stream_n[:-1])


class Turned(nn.Module):
    """Two arms, then a layer that takes rows second: its copy is a view of one row."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.top = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, dense):
        both = torch.stack([self.left(dense).relu(), self.right(dense).relu()], 1)
        return self.top(torch.relu(both.permute(1, 0, 2).contiguous()))


def turned(rows, names=None):
    """Return the model, a batch, and what became of it with only some nodes as operators."""
    torch.manual_seed(0)
    model, batch = Turned().eval(), (torch.randn(rows, 8),)
    gm = trace(model)
    graph = op_graph(gm, touched=touched(gm, batch), names=names)
    costs = roofline(gm, graph, batch)
    return model, batch, carried_out(gm, make_schedule(graph, costs, Machine(2)), costs, batch)


@pytest.mark.parametrize(("before", "now"), [(64, 1), (1, 64)])
def test_a_schedule_holds_for_an_example_of_another_batch_size(before, now, caplog):
    model, _, found = turned(before)
    assert ("contiguous" in KeptSchedule.of(found).names) == (before == 64)
    batch = (torch.randn(now, 8),)
    again = schedule_again(trace(model), batch, Machine(2), found.stats, KeptSchedule.of(found))
    assert again.modified
    assert not caplog.records
    assert KeptSchedule.of(again) == KeptSchedule.of(found)
    with torch.no_grad():
        for rows in ((torch.randn(64, 8),), batch):
            assert torch.equal(again.module(*rows), model(*rows))


@pytest.mark.parametrize("streams", [1, 2])
def test_a_copy_that_was_a_view_by_its_name_stays_one(streams, caplog):
    names = {"left", "relu", "right", "relu_1", "stack", "relu_2", "top"}
    model, batch, found = turned(64, names)
    kept = KeptSchedule.of(found)
    assert set(kept.names) == names
    if streams == 1:
        kept = replace(kept, reason="one stream was asked for")
    again = schedule_again(trace(model), batch, Machine(streams), found.stats, kept)
    assert (again.modified, again.reason) == (streams == 2, kept.reason)
    assert not caplog.records
    with torch.no_grad():
        assert torch.equal(again.module(*batch), model(*batch))


class Overwritten(nn.Module):
    """An arm reads what the code writes later."""

    def __init__(self):
        super().__init__()
        self.base, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, dense):
        base = self.base(dense)
        left = self.left(base)
        return left + self.right(base.add_(1))


@pytest.mark.parametrize("change", ["order", "name", "view", "streams"])
def test_a_schedule_that_does_not_hold_is_searched_again(change, caplog):
    model, batch = Overwritten().eval(), (torch.randn(4, 8),)
    gm = trace(model)
    costs = roofline(gm, op_graph(gm, touched=touched(gm, batch)), batch)
    names = ("base", "left", "add_", "right", "add")
    kept = KeptSchedule(names, (0, 0, 1, 1, 0), (0, 1, 2, 3, 4), code_hash(gm), None)
    wrong = {
        "order": replace(kept, order_n=(0, 2, 1, 3, 4)),  # as if nothing wrote in place
        "name": replace(kept, names=(*names[:-1], "odd")),
        "view": KeptSchedule(names[:2] + names[3:], (0, 0, 1, 0), (0, 1, 2, 3), kept.code, None),
        "streams": replace(kept, stream_n=(0, 0, 2, 1, 0)),
    }
    again = schedule_again(trace(model), batch, Machine(2), costs, kept)
    assert again.modified
    assert not caplog.records
    again = schedule_again(trace(model), batch, Machine(2), costs, wrong[change])
    assert "does not hold, it is searched again" in caplog.text
    assert tuple(op.name for op in again.schedule.graph.ops) == names
    with torch.no_grad():
        assert torch.equal(again.module(*batch), model(*batch))
