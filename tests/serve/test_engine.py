"""An engine answers every request it accepted, with what the model answers to that request alone."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor, KeyedTensor

import grace_torchrec as grace
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import DeadlineExceeded, Rejected

PATIENCE_S = 60


class Double(nn.Module):
    """Returns twice its input; notes the rows of each batch; can be held, and fails on -1."""

    def __init__(self, factor: float = 2) -> None:
        super().__init__()
        self.factor = factor
        self.batches: list[list[float]] = []
        self.free, self.entered = threading.Event(), threading.Semaphore(0)
        self.free.set()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.tolist())
        self.entered.release()
        assert self.free.wait(PATIENCE_S)
        if bool((x == -1).any()):
            raise ValueError("a bad row")
        if bool((x == -2).any()):
            raise SystemExit("a worker ends")
        return x * self.factor

    def hold(self) -> None:
        self.free.clear()


def held(engine: Engine, model: Double) -> "Future[Tensor]":
    """Let one request occupy the only worker."""
    model.hold()
    first = engine.submit(torch.tensor([100.0]))
    assert model.entered.acquire(timeout=PATIENCE_S)
    return first


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def results(futures: list["Future[Tensor]"]) -> list[list[float]]:
    return [future.result(PATIENCE_S).tolist() for future in futures]


def keyed(x: Tensor) -> KeyedTensor:
    return KeyedTensor(["k"], [1], x[:, None])


def test_requests_that_come_while_the_worker_is_busy_are_computed_together() -> None:
    model = Double()
    with Engine(model, max_batch=4) as engine:
        first = held(engine, model)
        futures = [engine.submit(rows(*range(k))) for k in (1, 0, 2, 3, 5)]
        model.free.set()
        assert results([first]) == [[200]]
        assert results(futures) == [[2 * x for x in range(k)] for k in (1, 0, 2, 3, 5)]
    # a batch ends where the next request would not fit; a request beyond the limit runs alone
    assert [len(batch) for batch in model.batches] == [1, 3, 3, 5]


def test_a_batch_of_empty_requests_never_reaches_the_model_without_rows() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        futures = [engine.submit(rows()), engine.submit(rows())]
        model.free.set()
        assert results([first, *futures]) == [[200], [], []]
    assert model.batches == [[100], [0]]


def test_a_free_worker_serves_at_once_even_if_batches_may_grow() -> None:
    model = Double()
    with Engine(model, max_wait_ms=3_600_000) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]


def test_a_batch_grows_while_another_computes_and_starts_when_that_is_done() -> None:
    model = Double()
    with Engine(model, max_inflight=2, max_wait_ms=3_600_000, max_batch=3) as engine:
        first = held(engine, model)
        waits = [engine.submit(rows(1)), engine.submit(rows(2))]
        assert not model.entered.acquire(timeout=0.05)
        engine.submit(rows(3))  # now the batch is full
        assert model.entered.acquire(timeout=PATIENCE_S)
        late = engine.submit(rows(4))
        model.free.set()
        assert results([first, *waits, late]) == [[200], [2], [4], [8]]
    assert sorted(map(len, model.batches)) == [1, 1, 3]


def test_a_batch_does_not_grow_past_a_deadline() -> None:
    model = Double()
    with Engine(model, max_inflight=2, max_wait_ms=3_600_000, max_batch=3) as engine:
        first = held(engine, model)
        waits, hurried = engine.submit(rows(1)), engine.submit(rows(2), deadline_s=600)
        assert model.entered.acquire(timeout=PATIENCE_S)
        assert not first.done()
        model.free.set()
        assert results([first, waits, hurried]) == [[200], [2], [4]]


def test_only_the_request_that_cannot_be_answered_fails() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
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


def test_an_exception_that_ends_a_worker_ends_neither_the_engine_nor_other_requests() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        futures = [engine.submit(rows(k)) for k in (1, -2, 3)]
        model.free.set()
        assert results([first, futures[0], futures[2]]) == [[200], [2], [6]]
        with pytest.raises(grace.GraceError, match="workers ended"):
            futures[1].result(PATIENCE_S)
        assert results([engine.submit(rows(5))]) == [[10]]
    assert engine.metrics.snapshot().restarts == 3


def test_a_request_of_another_kind_meets_no_other() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        futures = [engine.submit(rows(1)), engine.submit("text"), engine.submit(rows(2)[None])]
        model.free.set()
        wait([first, *futures], PATIENCE_S)
        assert futures[0].result().tolist() == [2]
        assert isinstance(futures[1].exception(), AttributeError)
        assert futures[2].result().tolist() == [[4]]


def test_a_full_queue_rejects_and_makes_room_for_requests_that_are_wanted() -> None:
    model = Double()
    with Engine(model, max_queue=2) as engine:
        first = held(engine, model)
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


def test_a_request_that_is_too_late_is_never_computed() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        late, fine = engine.submit(rows(1), deadline_s=0), engine.submit(rows(2), deadline_s=1e6)
        model.free.set()
        with pytest.raises(DeadlineExceeded, match="deadline passed"):
            late.result(PATIENCE_S)
        assert results([first, fine]) == [[200], [4]]
    assert model.batches == [[100], [2]]
    assert engine.metrics.snapshot().expired == 1


def test_a_deadline_that_cannot_be_met_is_refused_at_the_door() -> None:
    model = Double()
    with Engine(model) as engine:
        slow = held(engine, model)
        time.sleep(0.2)  # what a batch takes is learnt from this one
        model.free.set()
        slow.result(PATIENCE_S)
        busy = held(engine, model)
        with pytest.raises(Rejected, match="expected to start in"):
            engine.submit(rows(1), deadline_s=0.001)
        fine = engine.submit(rows(2), deadline_s=3600)
        model.free.set()
        assert results([busy, fine]) == [[200], [4]]


def test_a_cancelled_request_is_never_computed_and_a_started_one_cannot_be_cancelled() -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        second = engine.submit(rows(1))
        assert not first.cancel()
        assert second.cancel()
        model.free.set()
        assert results([first]) == [[200]]
    assert model.batches == [[100]]


def test_closing_answers_what_was_accepted_and_accepts_no_more() -> None:
    model = Double()
    engine = Engine(model)
    first = held(engine, model)
    futures = [engine.submit(rows(k)) for k in range(5)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(Rejected, match="closing"):
        futures.extend(engine.submit(rows(k)) for k in itertools.count(5))  # until the door is shut
    model.free.set()
    closing.join(PATIENCE_S)
    assert all(future.done() for future in [first, *futures])
    assert results(futures) == [[2.0 * k] for k in range(len(futures))]
    engine.close()


def test_closing_with_cancel_fails_what_waits() -> None:
    model = Double()
    engine = Engine(model)
    first = held(engine, model)
    waits = engine.submit(rows(1))
    closing = threading.Thread(target=lambda: engine.close(cancel=True))
    closing.start()
    with pytest.raises(Rejected, match="closing"):
        waits.result(PATIENCE_S)
    model.free.set()
    closing.join(PATIENCE_S)
    assert results([first]) == [[200]]


def test_closing_with_cancel_fails_what_waits_whatever_a_callback_raises() -> None:
    def leaves(_: "Future[Tensor]") -> None:
        raise SystemExit("a callback ends its thread")

    model = Double()
    engine = Engine(model)
    first = held(engine, model)
    waits = [engine.submit(rows(k)) for k in range(3)]
    waits[0].add_done_callback(leaves)
    waits[-1].add_done_callback(lambda _: model.free.set())
    try:
        engine.close(cancel=True)
    finally:
        model.free.set()
    assert all(isinstance(future.exception(PATIENCE_S), Rejected) for future in waits)
    assert results([first]) == [[200]]


def test_batches_keep_their_model_and_replacing_waits_for_them() -> None:
    old, new = Double(), Double(3)
    with Engine(old) as engine:
        first = held(engine, old)
        replacing = threading.Thread(target=lambda: engine.replace(new))
        replacing.start()
        while engine.metrics.snapshot().replaced == 0:
            time.sleep(0.001)
        second = engine.submit(rows(1))
        assert replacing.is_alive()
        old.free.set()
        replacing.join(PATIENCE_S)
        assert results([first, second]) == [[200], [3]]
    assert engine.metrics.snapshot().replaced == 1


def test_a_callback_may_replace_the_model() -> None:
    model = Double()
    engine = Engine(model)
    first = held(engine, model)
    replaced = threading.Event()

    def replace(_: "Future[Tensor]") -> None:
        engine.replace(Double(3))
        replaced.set()

    first.add_done_callback(replace)
    model.free.set()
    assert replaced.wait(PATIENCE_S)
    assert results([engine.submit(rows(1))]) == [[3]]
    engine.close()


@pytest.mark.parametrize("call", [Engine.close, Engine.drain])
def test_a_callback_may_not_wait_for_its_own_thread(call) -> None:
    model = Double()
    with Engine(model) as engine:
        first = held(engine, model)
        refused: Future[str] = Future()

        def stop(_: "Future[Tensor]") -> None:
            try:
                call(engine)
            except grace.NotSupported as error:
                refused.set_result(str(error))

        first.add_done_callback(stop)
        model.free.set()
        assert "called on a thread of the engine" in refused.result(PATIENCE_S)
        assert results([engine.submit(rows(1))]) == [[2]]  # the door is still open


def test_a_shadow_may_not_wait_for_its_own_thread() -> None:
    class Closes(Double):
        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(grace.NotSupported, match="called on a thread of the engine"):
                engine.close()
            return super().forward(x)

    with Engine(Double(), stock=Closes(), shadow=1.0) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.drain()
        assert engine.metrics.snapshot().shadow.compared == 1


def test_a_model_that_computes_may_not_replace_itself() -> None:
    class Replaces(Double):
        def forward(self, x: Tensor) -> Tensor:
            engine.replace(Double())
            return x

    with Engine(Replaces()) as engine:
        asked = engine.submit(rows(1))
        with pytest.raises(grace.NotSupported, match="while this thread computes a batch"):
            asked.result(PATIENCE_S)


def test_the_stock_model_answers_while_it_is_asked_for() -> None:
    with Engine(Double(), stock=Double(5)) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.use_stock()
        assert engine.metrics.snapshot().model == "stock"
        assert results([engine.submit(rows(1))]) == [[5]]
        engine.use_stock(False)
        assert results([engine.submit(rows(1))]) == [[2]]
    with Engine(Double()) as engine, pytest.raises(grace.NotSupported, match="no stock model"):
        engine.use_stock()


def test_the_shadow_counts_differences_and_keeps_the_worst() -> None:
    with Engine(Double(), stock=Double(2.5), shadow=1.0, shadow_tolerance=0.6) as engine:
        futures = [engine.submit(rows(k)) for k in (1, 3, 2, 0)]
        futures.append(engine.submit(rows(-1)))
        wait(futures, PATIENCE_S)
        engine.drain()
        found = engine.metrics.snapshot().shadow
    assert (found.compared, found.different, found.failed) == (4, 2, 0)
    assert found.worst_difference == 1.5
    assert found.worst.batch[0].tolist() == [3]
    assert (found.worst.answer.tolist(), found.worst.other.tolist()) == ([6], [7.5])


@pytest.mark.parametrize("form", [lambda x: x, lambda x: {"a": [x, (x * 1,)]}, keyed])
def test_the_shadow_compares_what_was_answered_not_what_a_caller_made_of_it(form) -> None:
    class Formed(Double):
        def forward(self, x: Tensor) -> Any:
            return form(super().forward(x))

    def write(future: "Future[Any]") -> None:
        for leaf in torch.utils._pytree.tree_leaves(future.result()):
            if isinstance(leaf, Tensor):
                leaf.zero_()

    model = Formed()
    with Engine(model, stock=Formed(), shadow=1.0) as engine:
        first = held(engine, model)
        first.add_done_callback(write)
        model.free.set()
        engine.drain()
        found = engine.metrics.snapshot().shadow
    assert (found.compared, found.different) == (1, 0)


def test_a_shadow_that_fails_is_counted_and_nobody_waits_for_it() -> None:
    stock = Double()
    stock.hold()
    with Engine(Double(-1), stock=stock, shadow=1.0) as engine:
        # the answer comes while the other model is still held
        assert results([engine.submit(rows(-1).neg() * 1)]) == [[-1]]
        stock.free.set()
    with Engine(Double(), stock=nn.Bilinear(2, 2, 2).eval(), shadow=1.0) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.drain()
        assert engine.metrics.snapshot().shadow.failed == 1


def test_a_model_whose_output_has_no_rows_serves_request_by_request() -> None:
    class Total(Double):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    model = Total()
    with Engine(model) as engine:
        first = held(engine, model)
        futures = [engine.submit(rows(k, k)) for k in range(4)]
        model.free.set()
        assert results([first, *futures]) == [200, 0, 4, 8, 12]


def test_an_empty_request_to_a_model_without_rows_fails_and_says_why() -> None:
    class Total(Double):
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


def test_awaiting_answers_and_cancelling_the_task_cancels_the_request() -> None:
    model = Double()

    async def ask(engine: Engine) -> list[float]:
        found = await asyncio.gather(*(engine.answer(rows(k)) for k in range(3)))
        first = held(engine, model)
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
        ({"max_inflight": 0}, "max_inflight must be 1"),
        ({"max_batch": 0}, "max_batch must be 1"),
        ({"max_queue": True}, "max_queue must be 1"),
        ({"max_wait_ms": -1}, "max_wait_ms must be 0"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms must be 0"),
        ({"shadow": 2}, "share of requests"),
        ({"shadow": 0.5}, "pass stock=model"),
        ({"recorder": object()}, "without observe"),
        ({"recorder": grace.TraceRecorder}, "recorder is a class"),
        ({"stock": nn.Linear(1, 1)}, "stock is in training mode"),
    ],
)
def test_wrong_arguments_are_refused_and_no_thread_is_left(arguments, says) -> None:
    before = threading.active_count()
    with pytest.raises(grace.GraceError, match=says):
        Engine(Double(), **arguments)
    assert threading.active_count() == before
