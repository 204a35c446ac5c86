"""An engine answers every request it accepted, with what the model answers to that request alone."""

import asyncio
import threading
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve import outlook
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import DeadlineExceeded, Rejected

PATIENCE_S = 60


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def results(futures: list["Future[Tensor]"]) -> list[list[float]]:
    return [future.result(PATIENCE_S).tolist() for future in futures]


def test_requests_that_come_while_the_worker_is_busy_are_computed_together(double) -> None:
    model = double()
    with Engine(model, max_batch=4) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows(*range(k))) for k in (1, 0, 2, 3, 5)]
        model.free.set()
        assert results([first]) == [[200]]
        assert results(futures) == [[2 * x for x in range(k)] for k in (1, 0, 2, 3, 5)]
    # a batch ends where the next request would not fit; a request beyond the limit runs alone
    assert [len(batch) for batch in model.batches] == [1, 3, 3, 5]


def test_a_batch_of_empty_requests_never_reaches_the_model_without_rows(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows()), engine.submit(rows())]
        model.free.set()
        assert results([first, *futures]) == [[200], [], []]
    assert model.batches == [[100], [0], [0, 0]]  # the last says where the rows of an output are


def test_a_free_worker_serves_at_once_even_if_batches_may_grow(double) -> None:
    model = double()
    with Engine(model, max_wait_ms=3_600_000) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]


def test_a_batch_grows_while_another_computes_and_starts_when_that_is_done(double) -> None:
    model = double()
    with Engine(model, max_inflight=2, max_wait_ms=float("inf"), max_batch=3) as engine:
        first = model.held_by(engine)
        waits = [engine.submit(rows(1)), engine.submit(rows(2))]
        assert not model.entered.acquire(timeout=0.05)
        engine.submit(rows(3))  # now the batch is full
        assert model.entered.acquire(timeout=PATIENCE_S)
        late = engine.submit(rows(4))
        model.free.set()
        assert results([first, *waits, late]) == [[200], [2], [4], [8]]
    # a batch of 1 twice: none was answered alone yet when the joined one was to be split
    assert {len(batch) for batch in model.batches} == {1, 3}
    assert [1, 2, 3] in model.batches
    assert [4] in model.batches


def test_a_batch_does_not_grow_past_a_deadline(double) -> None:
    model = double()
    with Engine(model, max_inflight=2, max_wait_ms=3_600_000, max_batch=3) as engine:
        first = model.held_by(engine)
        waits, hurried = engine.submit(rows(1)), engine.submit(rows(2), deadline_s=600)
        assert model.entered.acquire(timeout=PATIENCE_S)
        assert not first.done()
        model.free.set()
        assert results([first, waits, hurried]) == [[200], [2], [4]]


def test_only_the_request_that_cannot_be_answered_fails(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows(k)) for k in (0, 1, -1, 3, 4, -1, 6)]
        model.free.set()
        for k, future in zip((0, 1, -1, 3, 4, -1, 6), futures, strict=True):
            if k < 0:
                with pytest.raises(ValueError, match="a bad row"):
                    future.result(PATIENCE_S)
            else:
                assert future.result(PATIENCE_S).tolist() == [2 * k]
        assert first.result(PATIENCE_S).tolist() == [200]
    told = engine.metrics.snapshot()
    assert (told.accepted, told.answered, told.failed) == (8, 6, 2)


def test_an_exception_that_ends_a_worker_ends_neither_the_engine_nor_other_requests(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows(k)) for k in (1, -2, 3)]
        model.free.set()
        assert results([first, futures[0], futures[2]]) == [[200], [2], [6]]
        with pytest.raises(grace.GraceError, match="workers ended"):
            futures[1].result(PATIENCE_S)
        assert results([engine.submit(rows(5))]) == [[10]]
    assert engine.metrics.snapshot().restarts == 3


def test_a_request_of_another_kind_meets_no_other(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows(1)), engine.submit("text"), engine.submit(rows(2)[None])]
        model.free.set()
        wait([first, *futures], PATIENCE_S)
        assert futures[0].result().tolist() == [2]
        assert isinstance(futures[1].exception(), AttributeError)
        assert futures[2].result().tolist() == [[4]]


def test_a_full_queue_rejects_and_makes_room_for_requests_that_are_wanted(double) -> None:
    model = double()
    with Engine(model, max_queue=2) as engine:
        first = model.held_by(engine)
        waiting = [engine.submit(rows(1)), engine.submit(rows(2))]
        with pytest.raises(Rejected, match="2 requests wait already"):
            engine.submit(rows(3))
        assert waiting[0].cancel()
        last = engine.submit(rows(4))
        model.free.set()
        assert results([first, waiting[1], last]) == [[200], [4], [8]]
        with pytest.raises(CancelledError):
            waiting[0].result()
    told = engine.metrics.snapshot()
    assert (told.rejected, told.cancelled, told.answered, told.accepted) == (1, 1, 3, 4)
    assert [1.0] not in model.batches


def test_a_request_that_is_too_late_is_never_computed(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        late, fine = engine.submit(rows(1), deadline_s=0), engine.submit(rows(2), deadline_s=1e6)
        model.free.set()
        with pytest.raises(DeadlineExceeded, match="deadline passed"):
            late.result(PATIENCE_S)
        assert results([first, fine]) == [[200], [4]]
    assert model.batches == [[100], [2]]
    assert engine.metrics.snapshot().expired == 1


def test_a_deadline_that_cannot_be_met_is_refused_at_the_door(double, monkeypatch) -> None:
    model, now = double(), [0.0]
    monkeypatch.setattr(outlook, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with Engine(model) as engine:
        slow = model.held_by(engine)
        now[0] = 10.0  # what a batch takes is learnt from this one
        model.free.set()
        slow.result(PATIENCE_S)
        busy = model.held_by(engine)
        with pytest.raises(Rejected, match=r"expected to start in 10000\.0 ms"):
            engine.submit(rows(1), deadline_s=9.5)
        fine = engine.submit(rows(2), deadline_s=3600)
        model.free.set()
        assert results([busy, fine]) == [[200], [4]]


def test_a_batch_that_fails_at_once_makes_none_look_fast(double, monkeypatch) -> None:
    model, now = double(), [0.0]
    monkeypatch.setattr(outlook, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with Engine(model) as engine:
        slow = model.held_by(engine)
        now[0] = 10.0
        model.free.set()
        slow.result(PATIENCE_S)
        for _ in range(20):
            assert isinstance(engine.submit(rows(-1)).exception(PATIENCE_S), ValueError)
            assert model.entered.acquire(timeout=PATIENCE_S)
        busy = model.held_by(engine)
        assert engine.metrics.snapshot().expected_start_ms == 10_000
        model.free.set()
        busy.result(PATIENCE_S)


@pytest.mark.parametrize("deadline_s", [float("nan"), "x", True, [1]])
def test_a_deadline_that_is_no_number_is_refused(deadline_s, double) -> None:
    with Engine(double()) as engine, pytest.raises(grace.GraceError, match="give seconds, or None"):
        engine.submit(rows(1), deadline_s=deadline_s)
    assert engine.metrics.snapshot().rejected == 1


def test_a_request_without_arguments_is_refused_unless_the_model_takes_none(double) -> None:
    class Still(nn.Module):
        def forward(self, *args: Any, scale: float = 1.0) -> Tensor:
            return torch.full((1,), scale)

    with Engine(double(), stock=Still().eval()) as engine:
        with pytest.raises(grace.GraceError, match=r"no argument has rows.* Double takes \(x: "):
            engine.submit()
        assert engine.metrics.snapshot().rejected == 1
        engine.use_stock()
        assert engine.submit().result(PATIENCE_S).tolist() == [1]


def test_a_request_of_another_form_fails_with_what_the_model_raises(double) -> None:
    with Engine(double()) as engine:
        assert isinstance(engine.submit(3).exception(PATIENCE_S), AttributeError)
        assert isinstance(engine.submit(rows(1), 3).exception(PATIENCE_S), TypeError)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("use_stock", {"on": "no"}),
        ("use_stock", {"on": 0}),
        ("drain", {"timeout_s": "1"}),
        ("drain", {"timeout_s": float("nan")}),
        ("close", {"cancel": "no"}),
        ("close", {"timeout_s": True}),
    ],
)
def test_arguments_of_another_type_change_nothing(call, arguments, double) -> None:
    with Engine(double(), stock=double(3)) as engine:
        with pytest.raises(grace.GraceError, match=f"Engine.{call}: {next(iter(arguments))} is"):
            getattr(engine, call)(**arguments)
        assert engine.submit(rows(1)).result(PATIENCE_S).tolist() == [2]


@pytest.mark.parametrize("call", ["drain", "close"])
def test_an_engine_may_be_given_all_the_time_there_is(call, double) -> None:
    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    threading.Timer(0.01, model.free.set).start()
    getattr(engine, call)(timeout_s=float("inf"))
    assert first.done()
    engine.close()


def test_what_cannot_be_looked_at_counts_as_rejected(double) -> None:
    endless: list[object] = []
    endless.append(endless)
    with Engine(double()) as engine, pytest.raises(RecursionError):
        engine.submit(endless)
    assert engine.metrics.snapshot().rejected == 1


def test_a_cancelled_request_is_never_computed_and_a_started_one_cannot_be_cancelled(
    double,
) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        second = engine.submit(rows(1))
        assert not first.cancel()
        assert second.cancel()
        model.free.set()
        assert results([first]) == [[200]]
    assert model.batches == [[100]]


def test_a_model_whose_output_has_no_rows_serves_request_by_request(double) -> None:
    class Total(double):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    model = Total()
    with Engine(model) as engine:
        first = model.held_by(engine)
        futures = [engine.submit(rows(k, k)) for k in range(4)]
        model.free.set()
        assert results([first, *futures]) == [200, 0, 4, 8, 12]


class Named(dict):
    """A dict that knows more than its items."""

    factor = 1


class Scaled(nn.Module):
    """Returns a mapping of what it is given, scaled by what the mapping knows of other keys."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.free = threading.Event()

    def forward(self, named: Mapping[str, Tensor], y: Tensor) -> Any:
        assert self.free.wait(PATIENCE_S)
        self.batches.append(len(y))
        factor = named["else"] if isinstance(named, defaultdict) else getattr(named, "factor", 1)
        sums = {"sum": (named["x"] + y) * factor}
        return UserDict(sums) if isinstance(named, UserDict) else defaultdict(int, sums)


def one() -> int:
    return 1


@pytest.mark.parametrize("make", [dict, OrderedDict, partial(defaultdict, one)])
def test_mappings_of_known_types_are_joined(make) -> None:
    model = Scaled()
    with Engine(model.eval()) as engine:
        futures = [engine.submit(make(x=rows(*range(k))), rows(*range(k))) for k in (0, 2, 3)]
        model.free.set()
        found = [future.result(PATIENCE_S) for future in futures]
    assert [answer["sum"].tolist() for answer in found] == [[], [0, 2], [0, 2, 4]]
    assert {type(answer) for answer in found} == {defaultdict}
    assert 0 not in model.batches
    assert engine.metrics.snapshot().retried == 0


def test_mappings_that_may_know_more_are_computed_alone_as_they_are() -> None:
    model, batches = Scaled(), []
    for factor, count in enumerate((2, 0, 3)):
        named = Named(x=rows(*range(count)))
        named.factor = factor
        lazy = defaultdict(lambda factor=factor: factor, named)
        frozen, wrapped = MappingProxyType({"x": named["x"]}), UserDict(named)
        batches += [(kind, rows(*range(count))) for kind in (named, lazy, frozen, wrapped)]
    batches.sort(key=lambda batch: type(batch[0]).__name__)  # those alike one after the other
    with Engine(model.eval()) as engine:
        futures = [engine.submit(*batch) for batch in batches]
        model.free.set()
        found = [future.result(PATIENCE_S) for future in futures]
    for answer, batch in zip(found, batches, strict=True):
        wanted = model(*batch)
        assert type(answer) is type(wanted)
        assert torch.equal(answer["sum"], wanted["sum"])
    # only where all is known, a blank row stands in for none; two say where the rows are
    lazy = [isinstance(named, defaultdict) for named, _ in batches]
    served = [len(y) or known for known, (_, y) in zip(lazy, batches, strict=True)]
    asked_again = [2 for known, (_, y) in zip(lazy, batches, strict=True) if known and not len(y)]
    assert sorted(model.batches) == sorted(served + asked_again + [len(y) for _, y in batches])


def test_an_empty_request_to_a_model_without_rows_fails_and_says_why(double) -> None:
    class Total(double):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    with Engine(Total()) as engine:
        for _ in range(2):
            with pytest.raises(grace.GraceError, match="an empty request has no answer"):
                engine.submit(rows()).result(PATIENCE_S)
        assert results([engine.submit(rows(1, 2))]) == [6]
    assert engine.metrics.snapshot().failed == 2


class Notes:
    """A recorder that keeps what it is shown and, if asked to, fails."""

    def __init__(self, fails: bool = False) -> None:
        self.seen: list[KeyedJaggedTensor] = []
        self.fails = fails

    def observe(self, bags: KeyedJaggedTensor) -> None:
        self.seen.append(bags)
        if self.fails:
            raise RuntimeError("no space left")


@pytest.mark.parametrize("fails", [False, True])
def test_the_recorder_sees_the_bags_of_every_batch_and_its_faults_stay_its_own(fails) -> None:
    class Lengths(nn.Module):
        def forward(self, bags: KeyedJaggedTensor) -> Tensor:
            return bags["a"].lengths().float()

    notes = Notes(fails)
    model = Lengths().eval()
    with Engine(model, recorder=notes) as engine:
        futures = [
            engine.submit(KeyedJaggedTensor(["a"], torch.arange(k), lengths=torch.tensor([k])))
            for k in range(5)
        ]
        assert results(futures) == [[k] for k in range(5)]
    assert sum(bags.stride() for bags in notes.seen) == 5
    assert engine.metrics.snapshot().observer_errors == (len(notes.seen) if fails else 0)


def test_awaiting_answers_and_cancelling_the_task_cancels_the_request(double) -> None:
    model = double()

    async def ask(engine: Engine) -> list[float]:
        found = await asyncio.gather(*(engine.answer(rows(k)) for k in range(3)))
        first = model.held_by(engine)
        task = asyncio.ensure_future(engine.answer(rows(7)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        model.free.set()
        first.result(PATIENCE_S)
        return [float(x) for x in found]

    with Engine(model) as engine:
        assert asyncio.run(ask(engine)) == [0, 2, 4]
    assert [7.0] not in model.batches


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_inflight": 0}, "max_inflight must be an integer of 1"),
        ({"max_batch": 0}, "max_batch must be an integer of 1"),
        ({"max_queue": True}, "max_queue must be an integer of 1"),
        ({"max_inflight": 1.5}, "max_inflight must be an integer of 1"),
        ({"max_batch": 2.5}, "max_batch must be an integer of 1"),
        ({"max_queue": float("inf")}, "max_queue must be an integer of 1"),
        ({"streams": 2.0}, "streams must be an integer of 1"),
        ({"shadow_tolerance": float("nan")}, "shadow_tolerance must be a number of 0"),
        ({"shadow_tolerance": True}, "shadow_tolerance must be a number of 0"),
        ({"max_wait_ms": -1}, "max_wait_ms must be a number of 0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms must be a number of 0"),
        ({"shadow": 2}, "share of requests"),
        ({"shadow": 0.5}, "pass stock=model"),
        ({"recorder": object()}, "without observe"),
        ({"recorder": grace.TraceRecorder}, "recorder is a class"),
        ({"stock": nn.Linear(1, 1)}, "stock is in training mode"),
    ],
)
def test_wrong_arguments_are_refused_and_no_thread_is_left(arguments, says, double) -> None:
    before = threading.active_count()
    with pytest.raises(grace.GraceError, match=says):
        Engine(double(), **arguments)
    assert threading.active_count() == before
