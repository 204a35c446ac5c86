"""A refresh follows the bags, is proven, and flips between batches."""

import gc
import threading
import time
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from refresh_world import (
    APART,
    OPTIONS,
    ROWS,
    WORLDS,
    Clock,
    Engine,
    assert_answers,
    batches,
    converted,
    model_of,
    observe,
    refresher_of,
    world,
)
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve import refresh as refresh_module
from grace_torchrec.serve.drift import drift
from grace_torchrec.serve.refresh import Refresher
from grace_torchrec.serve.refresh_record import Refresh
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.trace import Trace


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


def test_few_bags_refresh_nothing(first) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served, least_bags=150)
    observe(recorder, WORLDS[1][:1])
    record = refresher.refresh_now()
    assert (record.outcome, record.bags) == ("skipped", 100)
    assert refresher.served is served


@pytest.mark.parametrize("row_dtype", ["fp16", "int8", "int4"])
def test_packed_rows_are_proven_too(first, row_dtype: str) -> None:
    model, served = converted(first)
    refresher, recorder = refresher_of(model, served, conversion={"row_dtype": row_dtype})
    observe(recorder, WORLDS[1])
    record = refresher.refresh_now()
    assert record.outcome == "flipped", record.error
    assert 0.05 < record.worst <= 1  # what is allowed is not far from what packing does


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


@pytest.mark.parametrize("way", ["dropped", "left"])
def test_a_refresher_that_is_let_go_of_looks_no_more(first, way, caplog) -> None:
    before = set(threading.enumerate())
    refresher, _ = refresher_of(first[0], None)
    with refresher.start(3600) if way == "left" else nullcontext():
        if way == "dropped":
            refresher.start(3600)
        (thread,) = set(threading.enumerate()) - before
    gone = weakref.ref(refresher)
    del refresher
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert gone() is None
    assert ("nobody holds it any more" in caplog.text) == (way == "dropped")


def started_in(engine: grace.Engine, model) -> tuple[threading.Thread, "weakref.ref[Refresher]"]:
    """The thread of a refresher that nobody but its engine may hold."""
    before = set(threading.enumerate())
    gone = weakref.ref(refresher_of(model, engine)[0].start(3600))
    gc.collect()
    (thread,) = set(threading.enumerate()) - before
    return thread, gone


def test_a_started_refresher_ends_with_its_engine_and_not_before(first, caplog) -> None:
    model, served = converted(first)
    engine = grace.Engine(served, stock=model)
    thread, gone = started_in(engine, model)
    assert thread.is_alive()
    assert gone().plan is served.plan
    ends = weakref.ref(engine)
    del engine
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert gone() is ends() is None
    assert caplog.text == ""


def test_an_engine_holds_no_refresher_that_is_stopped(first) -> None:
    model, served = converted(first)
    with grace.Engine(served, stock=model) as engine:
        _, gone = started_in(engine, model)
        _, other = started_in(engine, model)  # takes it over
        gc.collect()
        assert gone() is None
        other().stop()
        gc.collect()
        assert other() is None


TAIL = 30_000  # rows that only rare ids name


def with_tail(seed: int, rare: int, first: int) -> list[KeyedJaggedTensor]:
    """Bags of a world, each with so many ids that no other bag has, from row ROWS + first on."""
    bags, ends = world(seed), world(seed).offsets_B1
    tail = iter(np.arange(ROWS + first, ROWS + TAIL).tolist())
    pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    mixed = [[*bags.ids_L[a:b].tolist(), *(next(tail) for _ in range(rare))] for a, b in pairs]
    return batches(Trace.from_bags(mixed, ROWS + TAIL))


def test_rare_ids_do_not_make_a_plan_stale_and_other_bags_do() -> None:
    model = model_of(ROWS + TAIL)
    refresher, recorder = refresher_of(model, None)
    observe(recorder, with_tail(0, 8, 0) * 2)  # twice, for no bag of them is alone yet
    assert refresher.refresh_now().outcome == "flipped"
    planned_at = recorder.clock()
    observe(recorder, with_tail(0, 8, 6000))
    every_id = recorder.profile(min_support=1, since_s=planned_at)
    assert drift(refresher.plan, every_id).verdict == "stale"  # it would be made anew for ever
    found = refresher.drift()
    table = found.tables["sparse.t_item"]
    assert found.verdict == "fine"
    assert table.like.high > table.predicted - 0.02 > table.live.high
    observe(recorder, with_tail(0, 16, 12_000))  # rarer still
    assert refresher.drift().verdict == "fine"
    observe(recorder, with_tail(1, 8, 24_000) * 2)
    assert refresher.drift().verdict in ("stale", "worse than none")
    assert refresher.refresh_now().outcome == "flipped"


def test_a_plan_that_rare_ids_make_worse_than_none_is_not_served() -> None:
    model = model_of(ROWS + TAIL)
    options = grace.PlanOptions(methods=("grace_floor",), lookup="fused", min_gain=0.1)
    refresher, recorder = refresher_of(model, None, options=options)
    observe(recorder, with_tail(0, 40, 0))  # a cut of the other ids, and of few of all ids
    record = refresher.refresh_now()
    assert record.outcome == "stock"
    assert "with their rare ids" in record.reason
    assert record.predicted_cuts["sparse.t_item"] > 0.1
    assert refresher.served is model
