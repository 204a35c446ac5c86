"""A refresh converts as what is served was converted, and knows what an engine answers with."""

import copy

import pytest
import torch
from refresh_world import (
    APART,
    DIM,
    OPTIONS,
    WORLDS,
    Engine,
    converted,
    model_of,
    observe,
    refresher_of,
)
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve.refresh_conversion import conversion_of

DELTA = {"t_item": (torch.tensor([3]), torch.full((1, DIM), 5.0))}
UNUSUAL = {"row_dtype": "int8", "streams": 1, "slots": 1, "strict": True}


def served_as(first, **how) -> tuple[torch.nn.Module, grace.Served]:
    """A model of one's own, and what serves it."""
    model = model_of()
    return model, grace.convert(model, first[1], example=(WORLDS[0][0],), **how)


def test_the_next_model_is_converted_as_the_one_before(first) -> None:
    model, served = served_as(first, **UNUSUAL)
    refresher, recorder = refresher_of(model, served, options=None)
    observe(recorder, WORLDS[1])
    assert refresher.refresh_now().outcome == "flipped"
    assert refresher.served is not served
    assert refresher.served.conversion == served.conversion


@pytest.mark.parametrize(("row_dtype", "deltas"), [(None, True), ("fp16", False), ("int4", True)])
def test_how_a_model_was_converted_is_told_from_it(first, row_dtype, deltas) -> None:
    model, served = served_as(first, row_dtype=row_dtype, deltas=deltas, slots=1)
    again = grace.convert(
        model, first[1], example=(WORLDS[0][0],), **conversion_of(served, {}, None)
    )
    assert again.conversion == served.conversion
    assert (again.masters is None) == (served.masters is None) == (not deltas)


class Untraceable(torch.nn.Module):
    """What it computes depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = model_of().sparse
        self.eval()

    def forward(self, bags: KeyedJaggedTensor) -> torch.Tensor:
        pooled = self.sparse(bags).values()
        return -pooled if pooled.sum() > 1e9 else pooled


@pytest.mark.parametrize("how", [{}, {"streams": 4}, {"streams": 2}], ids=str)
def test_a_refresh_does_not_warn_of_streams_that_nobody_asked_for(first, how, caplog) -> None:
    example, model = (WORLDS[0][0],), Untraceable()
    served = grace.convert(model, first[1], example=example, **how)
    asked = "streams" in caplog.text
    assert asked == bool(how)
    caplog.clear()
    again = grace.convert(model, first[1], example=example, **conversion_of(served, {}, None))
    assert ("streams" in caplog.text) == (how == {"streams": 2})
    assert again.conversion == served.conversion


def test_the_caller_is_right_key_by_key(first) -> None:
    _, served = served_as(first, **UNUSUAL)
    wanted = {"target": "module", "deltas": True, **UNUSUAL}
    assert conversion_of(served, {}, None) == wanted
    assert conversion_of(served, {"streams": 3}, None) == {**wanted, "streams": 3}
    assert conversion_of(served, {}, OPTIONS)["row_dtype"] == "int8"
    other = conversion_of(served, {}, grace.PlanOptions(row_dtype="fp16"))
    assert "row_dtype" not in other  # the plan's own
    assert conversion_of(None, {"streams": 3}, None) == {"streams": 3}


def test_a_scripted_model_is_followed_by_no_other_kind_unasked(first) -> None:
    _, served = served_as(first, target="torchscript")
    with pytest.raises(grace.NotSupported, match="scripted"):
        conversion_of(served, {}, None)
    assert conversion_of(served, {"target": "module"}, None)["target"] == "module"


def test_an_engine_says_what_it_answers_with(first) -> None:
    model, served = served_as(first, slots=1)
    batch = WORLDS[0][0]
    with grace.Engine(served, stock=model) as engine:
        assert engine.served is served
        refresher, recorder = refresher_of(model, engine, options=None)
        assert refresher.served is served
        observe(recorder, WORLDS[1])
        assert refresher.drift() is not None
        before = engine.submit(batch).result(60)
        with torch.no_grad():
            model.sparse.embedding_bags["t_item"].weight[3] = 5.0
        assert refresher.publish_delta(DELTA) == served.version == 1
        after = engine.submit(batch).result(60)
        torch.testing.assert_close(after, model(batch), atol=1e-4, rtol=1e-4)
        assert not torch.equal(before, after)
        assert refresher.refresh_now().outcome == "flipped"
        assert engine.served is refresher.served is not served
        assert refresher.plan.options == served.plan.options


def engine_answers(engine: grace.Engine, model: torch.nn.Module) -> bool:
    """Whether an engine answers with the rows that the model has now."""
    batch = WORLDS[0][0]
    with torch.no_grad():
        return torch.allclose(engine.submit(batch).result(60), model(batch), atol=1e-4)


@pytest.mark.parametrize("is_named", [False, True])
def test_trained_rows_reach_what_is_served_while_stock_answers(first, is_named) -> None:
    model, served = served_as(first, slots=1)
    with grace.Engine(served, stock=model) as engine:
        engine.use_stock(True)
        assert engine.served is served
        refresher, recorder = refresher_of(model, engine, served=served if is_named else None)
        assert refresher.plan is served.plan
        with torch.no_grad():
            model.sparse.embedding_bags["t_item"].weight[3] = 5.0
        assert refresher.publish_delta(DELTA) == served.version == 1
        observe(recorder, WORLDS[1])
        assert refresher.refresh_now().outcome == "flipped"
        assert engine.metrics.snapshot().model == "stock"  # theirs to end who asked for it
        engine.use_stock(False)
        assert engine.served is refresher.served is not served
        assert engine_answers(engine, model)


def test_trained_rows_reach_what_a_refresher_let_fall_back(first) -> None:
    model, served = served_as(first, slots=1)
    with grace.Engine(served, stock=model) as engine:
        refresher, recorder = refresher_of(model, engine)
        observe(recorder, APART)
        assert refresher.refresh_now().outcome == "stock"
        assert (refresher.plan, refresher.served, engine.served) == (None, model, served)
        with torch.no_grad():
            model.sparse.embedding_bags["t_item"].weight[3] = 5.0
        assert refresher.publish_delta(DELTA) == served.version == 1
        engine.use_stock(False)
        assert engine_answers(engine, model)
        engine.use_stock(True)
        del refresher
        other, recorder = refresher_of(model, engine)  # goes on where the other fell back
        assert other.plan is None
        observe(recorder, WORLDS[1])
        assert other.refresh_now().outcome == "flipped"
        assert engine.metrics.snapshot().model == "ours"


def test_what_an_engine_answers_with_must_take_rows(first) -> None:
    model, served = converted(first)
    other = served_as(first)[1]
    with grace.Engine(copy.deepcopy(model), stock=model) as engine:
        with pytest.raises(grace.GraceError, match="a Model, which is no Served and holds other"):
            refresher_of(model, engine)
        with pytest.raises(grace.GraceError, match="served is not what the engine answers with"):
            refresher_of(model, engine, served=served)
        engine.replace(torch.nn.Sequential(model).eval())  # around the rows themselves
        refresher, recorder = refresher_of(model, engine)
        assert refresher.publish_delta(DELTA) == 0
        engine.replace(other)
        observe(recorder, WORLDS[1])
        assert "past this Refresher" in refresher.refresh_now().error
        with pytest.raises(grace.GraceError, match="past this Refresher"):
            refresher.publish_delta(DELTA)


def test_an_engine_of_somebodys_own_need_not_say(first) -> None:
    model, served = converted(first)
    assert refresher_of(model, Engine(served, model), served=served)[0].served is served
    assert refresher_of(model, Engine(model, model))[0].served is model
