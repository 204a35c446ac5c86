"""RewrittenBatch: a batch for the plan it was made for and no other, wherever it travels."""

import io
import pickle

import pytest
import torch
from torch import nn

import grace_torchrec as grace
from grace_torchrec.errors import PlanMismatch
from grace_torchrec.modules.rewritten_batch import RewrittenBatch

BAGS = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9, -1], [0]], "c": [[2], [1, 1, 2, 2]]}


def rewritten(batch, model):
    (out,) = grace.rewrite([batch], model, prefetch=0)
    return out


def test_a_batch_of_another_plan_is_refused(three, swap_three, swap_of, batch_of):
    batch, module = batch_of(BAGS), swap_three()
    others = [
        swap_three(clusters=((1, 3), (2, 4, 5))),
        swap_three(clusters=((3, 4, 5), (1, 2))),  # the same groups in other rows
        swap_three("stock", "ahead", "ahead"),
        swap_three(bad_ids="drop"),
    ]
    for other in others:
        with pytest.raises(PlanMismatch, match=r"module '': .* with codes \w+, .*; rewrite it"):
            module(rewritten(batch, other))
    # Where rows lie is no part of it: a twin with all its sums in host memory takes the batch.
    twin = swap_three(num_hbm_sums=0, hot_items=())
    assert torch.equal(twin(rewritten(batch, module)).values(), twin(batch).values())


def test_a_batch_that_lacks_the_module_is_refused(swap_three, batch_of):
    module = swap_three()
    given = rewritten(batch_of(BAGS), module)
    with pytest.raises(PlanMismatch, match=r"module '': .* was rewritten for \['other'\]; rewrite"):
        module(RewrittenBatch(given.bags, {"other": given.modules[""]}))


def test_a_rewritten_batch_stands_for_its_bags(three, swap_three, batch_of):
    """Collections that were left stock, and the code around, take it like the original."""
    batch = batch_of({**BAGS, "b": [[3], [0]]})
    given = rewritten(batch, swap_three())
    assert torch.equal(three(given).values(), three(batch).values())
    assert given.keys() == batch.keys()
    assert given.stride() == 2
    with pytest.raises(AttributeError, match="no_such_thing"):
        given.no_such_thing  # noqa: B018


def test_a_batch_survives_pickles_moves_and_a_second_rewriting(swap_three, batch_of):
    module, batch = swap_three(), batch_of(BAGS)
    given = rewritten(batch, module)
    want = module(given).values()
    saved = io.BytesIO()
    torch.save(given, saved)
    saved.seek(0)
    copies = [
        pickle.loads(pickle.dumps(given)),
        torch.load(saved, weights_only=False),
        given.to("cpu"),
        given.to(torch.device("cpu"), non_blocking=True),
        rewritten(given, module),
    ]
    for copy in copies:
        assert isinstance(copy, RewrittenBatch)
        assert torch.equal(module(copy).values(), want)
    assert given.to("meta").modules[""].rows.is_meta
    assert given.to("meta").bags.values().is_meta


def test_a_batch_changed_on_its_way_is_an_error_never_a_read(swap_three, batch_of):
    module = swap_three()
    for name, index, value in (("rows", 0, 10**9), ("rows", 0, -5), ("offsets", -1, 10**9)):
        given = rewritten(batch_of(BAGS), module)
        getattr(given.modules[""], name)[index] = value
        with pytest.raises(ValueError, match="rewrite the batch again"):
            module(given)


def test_modules_of_a_swapped_model_are_told_apart_by_path(
    table_of, collection_of, model_plan, batch_of
):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = collection_of([table_of("t_left")])
            self.right = collection_of([table_of("t_right", dim=3)])

        def forward(self, dense, features):
            return torch.cat([self.left(features).values(), self.right(features).values()], 1)

    model = Two().eval()
    batch = (torch.zeros(1), batch_of({"item": [[1, 2, 7], [3, 4, 5]]}))
    want = model(*batch)
    plan = model_plan(model, {"right.t_right": {"clusters": ((1, 2, 7),)}}, lookup="ahead")
    grace.accelerate_(model, plan)
    (given,) = grace.rewrite([batch], model)
    assert isinstance(given, tuple)
    assert given[0] is batch[0]
    assert sorted(given[1].modules) == ["left", "right"]
    assert torch.equal(model(*given), want)
    assert grace.verify(model, [given]).equal
