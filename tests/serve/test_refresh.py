"""A refresh follows the bags, is proven, flips between batches, and never harms what runs."""

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve import refresh as refresh_module
from grace_torchrec.serve import refresh_proof
from grace_torchrec.serve.refresh import Refresher
from grace_torchrec.serve.refresh_record import Refresh
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

ROWS, DIM, BATCH = 300, 64, 100
OPTIONS = grace.PlanOptions(methods=("grace_floor",), lookup="fused")


class Model(nn.Module):
    """A collection and a dense part."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="t_item", num_embeddings=ROWS, embedding_dim=DIM, feature_names=["item"]
        )
        self.sparse = EmbeddingBagCollection(tables=[table])
        self.over = nn.Linear(DIM, 1)

    def forward(self, bags: KeyedJaggedTensor) -> torch.Tensor:
        return self.over(self.sparse(bags).values())


class Engine:
    """Serves the way an engine does: between batches something else may answer."""

    def __init__(self, served: nn.Module, stock: nn.Module) -> None:
        self.model, self.stock, self.calls = served, stock, []
        self.is_stock = False

    def replace(self, served: nn.Module) -> None:
        self.model = served
        self.calls.append("replace")

    def use_stock(self, on: bool) -> None:
        self.is_stock = on
        self.calls.append(f"use_stock {on}")

    @property
    def answering(self) -> nn.Module:
        return self.stock if self.is_stock else self.model


def world(seed: int) -> Trace:
    return generate(ROWS, 700, seed, pooling=(5, 20), community_size=5)


def batches(trace: Trace) -> list[KeyedJaggedTensor]:
    parts = [trace.take(np.arange(k, k + BATCH)) for k in range(0, trace.num_bags, BATCH)]
    return [
        KeyedJaggedTensor(
            keys=["item"],
            values=torch.from_numpy(part.ids_L).long(),
            lengths=torch.from_numpy(part.offsets_B1).diff(),
        )
        for part in parts
    ]


WORLDS = {number: batches(world(number)) for number in (0, 1)}
RANDOM = np.random.default_rng(0)
APART = batches(
    Trace.from_bags([RANDOM.choice(ROWS, 3, replace=False).tolist() for _ in range(2000)], ROWS)
)


def model_of() -> Model:
    torch.manual_seed(0)
    model = Model().eval()
    nn.init.normal_(model.sparse.embedding_bags["t_item"].weight)
    return model


@pytest.fixture(scope="module")
def first() -> tuple[Model, grace.Plan]:
    model = model_of()
    profile = grace.profile(WORLDS[0], model)
    return model, grace.plan(model, profile, grace.MemoryModel.named("h200"), OPTIONS)


class Clock:
    """Time passes with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def refresher_of(model, target, clock=None, **options) -> tuple[Refresher, TraceRecorder]:
    clock = clock or Clock()
    recorder = TraceRecorder(
        model, max_bags=600, half_life_bags=200.0, max_overhead=None, clock=clock
    )
    refresher = Refresher(
        model, target, recorder, grace.MemoryModel.named("h200"),
        example=(WORLDS[0][0],), clock=clock, **{"options": OPTIONS, **options},
    )  # fmt: skip
    return refresher, recorder


def converted(first) -> tuple[Model, grace.Served]:
    model, plan = first
    return model, grace.convert(model, plan, example=(WORLDS[0][0],))


def observe(recorder: TraceRecorder, bags: list[KeyedJaggedTensor]) -> None:
    for batch in bags:
        recorder.observe(batch)


def assert_answers(served: nn.Module, model: nn.Module, bags: list[KeyedJaggedTensor]) -> None:
    with torch.no_grad():
        for batch in bags:
            torch.testing.assert_close(served(batch), model(batch), atol=1e-4, rtol=1e-4)


def test_a_refresh_follows_the_bags_and_the_answers_stay(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    assert refresher.served is served
    observe(recorder, WORLDS[0])
    assert refresher.drift().verdict == "fine"
    observe(recorder, WORLDS[1] * 2)
    found = refresher.drift()
    assert found.verdict in ("stale", "worse than none")
    record = refresher.refresh_now()
    assert (record.outcome, record.error, record.number) == ("flipped", "", 1)
    assert record.drift == found.verdict
    assert 0 < record.worst <= 1
    assert refresher.served is not served
    assert refresher.plan.profile_fingerprint != served.plan.profile_fingerprint
    assert_answers(refresher.served, model, WORLDS[1])
    assert record.predicted_cuts["sparse.t_item"] > record.live_cuts["sparse.t_item"] + 0.05
    assert list(record.seconds) == ["took the sample", "planned", "converted", "proved", "flipped"]
    assert record.as_dict()["bags"] == 600
    assert refresher.drift().verdict == "too few bags"  # those of the plan do not judge it
    observe(recorder, WORLDS[1])
    assert refresher.drift().verdict == "fine"
    assert refresher.history == (record,)


def test_ids_of_one_bag_count_in_the_drift(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    apart = [KeyedJaggedTensor(["item"], torch.arange(ROWS), lengths=torch.full((60,), 5))]
    observe(recorder, apart)
    live = refresher.drift().tables["sparse.t_item"].live
    assert (live.bags, live.ids) == (60, ROWS)  # each id is in one bag


def test_a_recorder_that_is_attached_to_what_is_served_follows(first) -> None:
    model, served = converted(first)
    clock = Clock()
    recorder = TraceRecorder(served, max_bags=600, max_overhead=None, clock=clock)
    refresher = Refresher(
        model, served, recorder, grace.MemoryModel.named("h200"), OPTIONS,
        example=(WORLDS[0][0],), clock=clock,
    )  # fmt: skip
    for batch in WORLDS[1]:
        served(batch)
    assert refresher.refresh_now().reason.startswith("0 bags")  # it is not attached yet
    recorder.attach()
    for batch in WORLDS[1]:
        served(batch)
    assert refresher.refresh_now().outcome == "flipped"
    seen = recorder.stats.bags_seen
    assert seen == 100 * len(WORLDS[1])
    served(WORLDS[1][0])  # nobody's request any more
    assert recorder.stats.bags_seen == seen
    refresher.served(WORLDS[1][0])
    assert recorder.stats.bags_seen == seen + 100


def test_an_engine_is_told(first) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, WORLDS[1])
    assert refresher.refresh_now().outcome == "flipped"
    assert engine.calls == ["replace"]
    assert engine.answering is refresher.served is not served


def test_without_structure_requests_go_to_the_stock_model_and_come_back(first) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, APART)
    record = refresher.refresh_now()
    assert (record.outcome, record.drift) == ("stock", "worse than none")
    assert "no table gains" in record.reason
    assert engine.answering is refresher.served is model
    assert refresher.plan is None
    assert refresher.drift() is None
    observe(recorder, WORLDS[0] * 3)
    assert refresher.refresh_now().outcome == "flipped"
    assert engine.calls == ["use_stock True", "replace", "use_stock False"]
    assert_answers(engine.answering, model, WORLDS[0])


def test_a_turn_leaves_what_is_fine_and_falls_back_at_once(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[0])
    refresher._turn("drift")
    assert refresher.history == ()
    observe(recorder, APART)
    refresher._turn("drift")
    assert [record.outcome for record in refresher.history] == ["stock", "stock"]
    assert "worse than none on live bags" in refresher.history[0].reason
    assert refresher.served is model


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


def test_few_bags_refresh_nothing(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served, least_bags=150)
    observe(recorder, WORLDS[1][:1])
    record = refresher.refresh_now()
    assert (record.outcome, record.bags) == ("skipped", 100)
    assert refresher.served is served


@pytest.mark.parametrize("step", ["make_plan", "convert", "prove"])
def test_a_failure_is_told_and_leaves_what_runs(first, monkeypatch, step: str) -> None:
    model, served = converted(first)
    engine = Engine(served, model)
    refresher, recorder = refresher_of(model, engine, served=served)
    observe(recorder, WORLDS[1])

    def fail(*arguments, **named):
        raise MemoryError("no room")

    monkeypatch.setattr(refresh_module, step, fail)
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


@pytest.mark.parametrize("row_dtype", ["fp16", "int8", "int4"])
def test_packed_rows_are_proven_too(first, row_dtype: str) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served, conversion={"row_dtype": row_dtype})
    observe(recorder, WORLDS[1])
    record = refresher.refresh_now()
    assert record.outcome == "flipped", record.error
    assert 0.05 < record.worst <= 1  # what is allowed is not far from what packing does


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


def test_there_is_one_refresh_at_a_time(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    inside, go = threading.Event(), threading.Event()
    make_plan = refresh_module.make_plan

    def slow(*arguments, **named):
        inside.set()
        assert go.wait(60)
        return make_plan(*arguments, **named)

    monkeypatch.setattr(refresh_module, "make_plan", slow)
    done: list[Refresh] = []
    running = threading.Thread(target=lambda: done.append(refresher.refresh_now()))
    running.start()
    assert inside.wait(60)
    with pytest.raises(grace.GraceError, match="runs already"):
        refresher.refresh_now()
    refresher._turn("always")  # a turn does not wait either
    assert_answers(refresher.served, model, WORLDS[1][:1])  # what runs answers meanwhile
    go.set()
    running.join()
    assert [record.outcome for record in done] == ["flipped"]
    assert len(refresher.history) == 1


def test_a_refresh_that_is_waited_for_no_more_is_still_the_only_one(first, monkeypatch) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1])
    inside, go = threading.Event(), threading.Event()
    make_plan, join = refresh_module.make_plan, threading.Thread.join

    def slow(*arguments, **named):
        inside.set()
        assert go.wait(60)
        return make_plan(*arguments, **named)

    def interrupted(thread, *arguments):
        """Ctrl-C while a refresh is waited for."""
        if thread.name == "grace-refresh" and not inside.is_set():
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


def test_it_looks_by_itself_until_it_is_stopped(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served)
    observe(recorder, WORLDS[1] * 2)
    refresher.start(0.01)
    with pytest.raises(grace.GraceError, match="started already"):
        refresher.start(1.0)
    deadline = time.monotonic() + 60
    while refresher.served in (served, model) and time.monotonic() < deadline:
        time.sleep(0.01)
    refresher.stop()
    refresher.stop()
    assert refresher.history[-1].outcome == "flipped"
    assert_answers(refresher.served, model, WORLDS[1])


def test_wrong_calls_are_refused(first) -> None:
    model, served = converted(first)
    with pytest.raises(grace.GraceError, match="interval_s"):
        refresher_of(model, served)[0].start(0)
    with pytest.raises(grace.GraceError, match="when must be"):
        refresher_of(model, served)[0].start(1, "sometimes")
    with pytest.raises(grace.GraceError, match="target is a int"):
        refresher_of(model, 3)
    with pytest.raises(grace.NotSupported, match="scripted"):
        refresher_of(model, served, conversion={"target": "torchscript"})
