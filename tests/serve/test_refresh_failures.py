"""Whatever goes wrong in a refresh is told, and harms nothing that runs."""

import gc
import re
import threading

import pytest
import torch
from refresh_world import (
    APART,
    DIM,
    ROWS,
    WORLDS,
    Engine,
    Model,
    assert_answers,
    converted,
    model_of,
    observe,
    refresher_of,
)

import grace_torchrec as grace
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.serve import refresh as refresh_module
from grace_torchrec.serve import refresh_proof
from grace_torchrec.serve.refresh_deltas import DeltaLog


def test_an_engine_that_refuses_is_told_and_looked_at_again(first) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    engine.use_stock = lambda on: (_ for _ in ()).throw(grace.NotSupported("no stock model"))
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, APART)
    refresher._turn("drift")
    assert [record.outcome for record in refresher.history] == ["failed", "failed"]
    assert all("no stock model" in record.error for record in refresher.history)
    assert refresher.served is served
    observe(recorder, WORLDS[1] * 3)
    assert refresher.refresh_now().outcome == "flipped"


@pytest.mark.parametrize("step", ["make_plan", "convert", "prove"])
def test_a_failure_is_told_and_leaves_what_runs(first, monkeypatch, step: str) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, WORLDS[1])

    def fail(*arguments, **named):
        raise MemoryError("no room")

    module = refresh_proof if step == "prove" else refresh_module
    monkeypatch.setattr(module, step, fail)
    record = refresher.refresh_now()
    assert (record.outcome, record.error) == ("failed", "MemoryError: no room")
    assert engine.calls == []
    assert refresher.served is served
    assert_answers(served, model, WORLDS[1])
    monkeypatch.undo()
    assert refresher.refresh_now().outcome == "flipped"
    assert [record.number for record in refresher.history] == [1, 2]


def test_a_model_that_computes_something_else_is_not_served(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    convert = refresh_module.convert

    def wrong(*arguments, **named):
        """One stored sum is off, as a bug or a broken memory would have it."""
        made = convert(*arguments, **named)
        collection = made.collections["sparse"]
        name = max(collection.sets)
        piece = collection.pieces()[name][0]
        rows = torch.arange(collection.sets[name][1].numel() - 1)
        width = DIM * 4
        piece.update(rows, torch.ones(rows.numel(), DIM).view(torch.uint8).view(-1, width))
        return made

    monkeypatch.setattr(refresh_module, "convert", wrong)
    monkeypatch.setattr(refresh_proof, "WAIT_S", 0.0)
    record = refresher.refresh_now()
    assert record.outcome == "failed"
    assert "times as far from the stock model" in record.error
    assert record.worst > 1
    assert refresher.served is served


def test_a_model_that_answers_no_batch_as_an_engine_asks_it_is_not_served(
    first, monkeypatch
) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])

    def prepare(live, batch):
        """Bags are rewritten for other collections than those that want them."""
        return (RewrittenBatch(batch[0], {}),)

    monkeypatch.setattr(refresh_proof.LiveModel, "prepare", prepare)
    record = refresher.refresh_now()
    assert (record.outcome, record.reason) == ("failed", "while it proved")
    assert "PlanMismatch" in record.error
    assert refresher.served is served


def test_rows_published_during_a_rebuild_are_in_the_new_model(first, monkeypatch) -> None:
    model = model_of()
    served = grace.convert(model, first[1], example=(WORLDS[0][0],))
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    convert, weight = refresh_module.convert, model.sparse.embedding_bags["t_item"].weight

    def trained(*arguments, **named):
        """Rows are trained once the rebuild has read them."""
        made = convert(*arguments, **named)
        ids, rows = torch.arange(50), torch.randn(50, DIM)
        with torch.no_grad():
            weight[ids] = rows
        assert refresher.publish_delta({"t_item": (ids, rows)}) == 1
        return made

    monkeypatch.setattr(refresh_module, "convert", trained)
    record = refresher.refresh_now()
    assert (record.outcome, record.reason) == ("flipped", "caught up with 1 deltas")
    assert_answers(refresher.served, model, WORLDS[1])
    assert_answers(served, model, WORLDS[1])


def test_rows_published_as_a_rebuild_begins_do_not_make_it_fail(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    begin = DeltaLog.begin

    def late(*arguments) -> None:
        """A delta is published just before the rebuild begins to keep them."""
        row = model.sparse.embedding_bags["t_item"].weight[:1].detach().clone()
        refresher.publish_delta({"t_item": (torch.arange(1), row)})
        begin(*arguments)

    monkeypatch.setattr(DeltaLog, "begin", late)
    record = refresher.refresh_now()
    assert (record.outcome, record.reason) == ("flipped", ""), record.error


def write_rows(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Train all rows; return the delta that tells them."""
    ids, rows = torch.arange(ROWS), torch.randn(ROWS, DIM)
    with torch.no_grad():
        model.sparse.embedding_bags["t_item"].weight[ids] = rows
    return ids, rows


def test_a_proof_between_the_rows_and_their_delta_is_taken_again(first, monkeypatch) -> None:
    model = model_of()
    served = grace.convert(model, first[1], example=(WORLDS[0][0],))
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    prove, told, deltas = refresh_proof.prove, [], []

    def between(*arguments):
        """Rows are written before the first proof, and published after the second."""
        if not told:
            deltas.append(write_rows(model))
        proof = prove(*arguments)
        told.append(bool(proof))
        if len(told) == 2:
            refresher.publish_delta({"t_item": deltas[0]})
        return proof

    monkeypatch.setattr(refresh_proof, "prove", between)
    monkeypatch.setattr(refresh_proof, "WAIT_S", 0.0)
    record = refresher.refresh_now()
    assert (record.outcome, record.reason) == ("flipped", "caught up with 1 deltas"), record.error
    assert told == [False, False, True]
    assert_answers(refresher.served, model, WORLDS[1])


def test_deltas_that_come_faster_than_proofs_end_in_a_failure(first, monkeypatch) -> None:
    model = model_of()
    served = grace.convert(model, first[1], example=(WORLDS[0][0],))
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    prove, proofs = refresh_proof.prove, []

    def trained(*arguments):
        """Rows are written and published during every proof."""
        assert len(proofs) < 20, "it goes on for ever"
        delta = write_rows(model)
        proofs.append(prove(*arguments))
        refresher.publish_delta({"t_item": delta})
        return proofs[-1]

    monkeypatch.setattr(refresh_proof, "prove", trained)
    record = refresher.refresh_now()
    assert record.outcome == "failed"
    assert "deltas come faster than proofs" in record.error
    assert len(proofs) == refresh_proof.PROOFS
    assert refresher.served is served


def test_rows_published_beside_the_refresher_are_not_lost(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    convert = refresh_module.convert

    def beside(*arguments, **named):
        made = convert(*arguments, **named)
        grace.publish_delta(served, {"t_item": (torch.arange(2), torch.ones(2, DIM))})
        return made

    monkeypatch.setattr(refresh_module, "convert", beside)
    record = refresher.refresh_now()
    assert record.outcome == "failed"
    assert "Refresher.publish_delta" in record.error
    assert refresher.served is served


def test_a_refresh_that_is_waited_for_no_more_is_still_the_only_one(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    inside, go = threading.Event(), threading.Event()
    make_plan, join, pressed = refresh_module.make_plan, threading.Thread.join, []

    def slow(*arguments, **named):
        inside.set()
        assert go.wait(60)
        return make_plan(*arguments, **named)

    def interrupted(thread, *arguments):
        """Ctrl-C while a refresh is waited for."""
        if thread.name == "grace-refresh" and not pressed:
            pressed.append(True)
            assert inside.wait(60)
            raise KeyboardInterrupt
        join(thread, *arguments)

    monkeypatch.setattr(refresh_module, "make_plan", slow)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        refresher.refresh_now()
    is_held = refresher._one_refresh.locked()
    go.set()
    assert is_held
    with refresher._one_refresh:  # until it has ended
        assert [record.outcome for record in refresher.history] == ["flipped"]
    assert refresher.refresh_now().number == 2


def test_wrong_calls_are_refused(first) -> None:
    model, served = converted(first)
    with pytest.raises(grace.GraceError, match="interval_s"):
        refresher_of(model, served)[0].start(0)
    with pytest.raises(grace.GraceError, match="interval_s"):
        refresher_of(model, served)[0].start(float("inf"))
    for wrong in (
        {"keep": 2.5},
        {"least_bags": True},
        {"tolerance": float("nan")},
        {"tolerance": 2},
    ):
        with pytest.raises(grace.GraceError, match=f"Refresher: {next(iter(wrong))} must be"):
            refresher_of(model, served, **wrong)
    with pytest.raises(grace.GraceError, match="when must be"):
        refresher_of(model, served)[0].start(1, "sometimes")
    with pytest.raises(grace.GraceError, match="target is an int"):
        refresher_of(model, 3)
    with pytest.raises(grace.GraceError, match="options is a str"):
        refresher_of(model, served, options="fused")
    with pytest.raises(grace.GraceError, match="example is a KeyedJaggedTensor"):
        refresher_of(model, served, example=WORLDS[0][0])
    with pytest.raises(grace.NotSupported, match="scripted"):
        refresher_of(model, served, conversion={"target": "torchscript"})


def test_the_buffers_of_a_delta_may_be_filled_again(first, monkeypatch) -> None:
    model = model_of()
    served = grace.convert(model, first[1], example=(WORLDS[0][0],))
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    convert = refresh_module.convert

    def trained(*arguments, **named):
        """A trainer publishes, and writes its next rows into the same tensor."""
        made = convert(*arguments, **named)
        ids, rows = write_rows(model)
        refresher.publish_delta({"t_item": (ids, rows)})
        rows.zero_()
        return made

    monkeypatch.setattr(refresh_module, "convert", trained)
    assert refresher.refresh_now().outcome == "flipped"
    assert_answers(refresher.served, model, WORLDS[1])


def test_a_second_refresher_takes_the_engine_over(first) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    old, recorder = refresher_of(model, engine, served=served)
    new, other = refresher_of(model, engine, served=served)
    observe(recorder, WORLDS[1])
    observe(other, WORLDS[1])
    record = old.refresh_now()
    assert record.outcome == "failed"
    assert "another Refresher" in record.error
    with pytest.raises(grace.GraceError, match="another Refresher"):
        old.publish_delta({"t_item": (torch.arange(2), torch.ones(2, DIM))})
    assert engine.calls == []
    assert new.refresh_now().outcome == "flipped"
    assert engine.answering is new.served
    del new, other
    gc.collect()
    assert old.refresh_now().outcome == "failed"  # it does not know what is served


def test_an_engine_that_is_closed_meanwhile_ends_the_refresh_and_no_more(
    first, monkeypatch
) -> None:
    model, served = converted(first)
    engine = grace.Engine(served, stock=model)
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, WORLDS[1])
    convert = refresh_module.convert

    def closed(*arguments, **named):
        """Everybody goes home in the middle of a rebuild."""
        engine.close()
        return convert(*arguments, **named)

    monkeypatch.setattr(refresh_module, "convert", closed)
    running = threading.Thread(target=refresher.refresh_now)
    running.start()
    running.join(60)
    assert not running.is_alive()  # nothing waits for the engine
    assert len(refresher.history) == 1
    assert_answers(refresher.served, model, WORLDS[1][:1])
    engine.close()


def test_an_empty_recorder_changes_nothing(first) -> None:
    model, served = converted(first)
    refresher, _ = refresher_of(model, served)
    assert refresher.drift().verdict == "too few bags"
    refresher._turn("drift")
    assert refresher.history == ()
    assert refresher.refresh_now().reason.startswith("0 bags")
    assert refresher.served is served


@pytest.mark.parametrize(
    ("delta", "told"),
    [
        ({"t_nope": (torch.arange(2), torch.ones(2, DIM))}, "no table 't_nope'"),
        ({"t_item": (torch.tensor([10**6]), torch.ones(1, DIM))}, "no row 1000000"),
        ({"t_item": (torch.arange(1), torch.ones(1, DIM + 1))}, "rows of shape"),
        ({"t_item": 5}, "needs (ids, rows)"),
        ([], "give {table: (ids, rows)}"),
    ],
)
def test_a_delta_is_checked_also_while_the_stock_model_answers(delta, told: str) -> None:
    refresher, _ = refresher_of(model_of(), None)
    with pytest.raises(GraceError, match=re.escape(told)):
        refresher.publish_delta(delta)
    assert refresher.publish_delta({"t_item": (torch.arange(1), torch.ones(1, DIM))}) == 0
