"""A kept schedule is the schedule that was found, step by step, and is believed in nothing."""

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
from grace_torchrec.schedule.stream_pass import schedule_
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import op_graph, trace


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
    model, batch, found = scheduled(next(iter(MODELS)))
    gm, kept = trace(model), KeptSchedule.of(found)
    backwards = replace(kept, order_n=kept.order_n[::-1])
    renamed = replace(kept, names=(*kept.names[:-1], "odd"))
    for other, machine in ((backwards, Machine(4)), (renamed, Machine(4)), (kept, Machine(1))):
        with pytest.raises(GraceError, match="kept schedule of"):
            schedule_again(gm, batch, machine, found.stats, other)
    with pytest.raises(GraceError, match="are not those of its operators"):
        replace(kept, stream_n=kept.stream_n[:-1])
