"""However an engine ends, closed, dropped or with the process, it answers what it accepted."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

import grace_torchrec as grace
from grace_torchrec.serve import crew
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import Rejected

PATIENCE_S = 60


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def results(futures: list["Future[Tensor]"]) -> list[list[float]]:
    return [future.result(PATIENCE_S).tolist() for future in futures]


def begin_closing(engine: Engine) -> tuple[threading.Thread, list["Future[Tensor]"]]:
    """Close on another thread; return it, and what was accepted until the door was shut."""
    closing = threading.Thread(target=engine.close)
    closing.start()
    accepted: list[Future[Tensor]] = []
    try:
        while True:
            accepted.append(engine.submit(rows(len(accepted))))
    except Rejected:
        return closing, accepted


def test_closing_answers_what_was_accepted_and_accepts_no_more(double) -> None:
    model = double()
    engine = Engine(model, max_queue=10**9)
    first = model.held_by(engine)
    closing, accepted = begin_closing(engine)
    model.free.set()
    closing.join(PATIENCE_S)
    assert all(future.done() for future in [first, *accepted])
    assert results(accepted) == [[2.0 * k] for k in range(len(accepted))]
    engine.close()


def test_closing_with_cancel_fails_what_waits(double) -> None:
    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    waits = engine.submit(rows(1))
    closing = threading.Thread(target=lambda: engine.close(cancel=True))
    closing.start()
    with pytest.raises(Rejected, match="closing"):
        waits.result(PATIENCE_S)
    model.free.set()
    closing.join(PATIENCE_S)
    assert results([first]) == [[200]]


def test_closing_with_cancel_fails_what_waits_whatever_a_callback_raises(double) -> None:
    def leaves(_: "Future[Tensor]") -> None:
        raise SystemExit("a callback ends its thread")

    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    waits = [engine.submit(rows(k)) for k in range(3)]
    waits[0].add_done_callback(leaves)
    waits[-1].add_done_callback(lambda _: model.free.set())
    try:
        engine.close(cancel=True)
    finally:
        model.free.set()
    assert all(isinstance(future.exception(PATIENCE_S), Rejected) for future in waits)
    assert results([first]) == [[200]]


@pytest.mark.parametrize("call", [Engine.close, Engine.drain])
def test_a_callback_may_not_wait_for_its_own_thread(call, double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
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


def test_a_shadow_may_not_wait_for_its_own_thread(double) -> None:
    class Closes(double):
        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(grace.NotSupported, match="called on a thread of the engine"):
                engine.close()
            return super().forward(x)

    with Engine(double(), stock=Closes(), shadow=1.0) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.drain()
        assert engine.metrics.snapshot().shadow.compared == 1


def test_a_callback_that_asks_again_while_the_engine_closes_is_refused(double) -> None:
    model = double()
    engine = Engine(model, max_queue=10**9)
    first, told = model.held_by(engine), Future()

    def ask_again(_: "Future[Tensor]") -> None:
        try:
            engine.submit(rows(1))
        except Rejected as error:
            told.set_result(str(error))

    first.add_done_callback(ask_again)
    closing, _ = begin_closing(engine)
    model.free.set()
    assert "closing" in told.result(PATIENCE_S)
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_a_model_that_does_not_return_is_left_alone_after_a_while(double) -> None:
    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    waits = engine.submit(rows(1))
    for call in (engine.drain, engine.close):
        with pytest.raises(grace.GraceError, match=r"is not done after 0\.01 s"):
            call(timeout_s=0.01)
    with pytest.raises(grace.GraceError, match="is not done"):
        engine.close(cancel=True, timeout_s=0)
    assert isinstance(waits.exception(PATIENCE_S), Rejected)
    assert not first.done()
    model.free.set()
    engine.close(timeout_s=PATIENCE_S)
    assert results([first]) == [[200]]


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_an_engine_that_is_dropped_answers_what_it_accepted_and_ends_its_threads(
    double, in_a_cycle
) -> None:
    before = set(threading.enumerate())
    model = double()
    engine = Engine(model, stock=double(), shadow=1.0)
    first, gone = model.held_by(engine), weakref.ref(engine)
    asked = [first, *(engine.submit(rows(k)) for k in range(3))]
    threads = set(threading.enumerate()) - before
    assert {thread.name.rstrip("-0123456789") for thread in threads} == {
        "grace-engine", "grace-shadow",
    }  # fmt: skip
    metrics = engine.metrics
    if in_a_cycle:
        engine.itself = engine
    del engine
    gc.collect()
    assert gone() is None
    model.free.set()
    assert results(asked) == [[200], [0], [2], [4]]
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert metrics.snapshot().answered == metrics.snapshot().shadow.compared == 4


def test_an_engine_may_be_dropped_on_its_own_thread(double) -> None:
    model = double()
    engines = [Engine(model)]
    first, gone = model.held_by(engines[0]), weakref.ref(engines[0])
    first.add_done_callback(lambda _: engines.clear())
    second = engines[0].submit(rows(1))
    model.free.set()
    assert results([first, second]) == [[200], [2]]
    assert gone() is None


AT_EXIT = """
import threading, time, torch
from torch import nn
from grace_torchrec.serve import crew
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.request_queue import Rejected

class Adds(nn.Module):
    def forward(self, x):
        free.wait()
        return x + 1

def free_once_the_door_is_shut():
    try:
        while True:
            engine.submit(torch.zeros(0))
            time.sleep(0.001)
    except Rejected:
        free.set()

crew.EXIT_S = 600.0
free = threading.Event()
engine = Engine(Adds().eval(), max_queue=10**9)
for k in range(3):
    engine.submit(torch.tensor([float(k)])).add_done_callback(
        lambda future: print(future.result().item(), flush=True)
    )
threading.Thread(target=free_once_the_door_is_shut, daemon=True).start()
"""


def test_at_the_end_of_the_interpreter_what_was_accepted_is_answered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1.0", "2.0", "3.0"]


def test_a_model_that_does_not_return_does_not_hold_the_interpreter(double, monkeypatch) -> None:
    monkeypatch.setattr(crew, "EXIT_S", 0.01)
    monkeypatch.setattr(crew, "_open", set())
    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    crew._end_all()
    with pytest.raises(Rejected, match="closing"):
        engine.submit(rows(1))
    assert not first.done()
    model.free.set()
    assert results([first]) == [[200]]


def test_engines_may_be_closed_while_the_interpreter_ends_them(double, monkeypatch) -> None:
    monkeypatch.setattr(crew, "_open", set())
    engines, is_elsewhere = [Engine(double()) for _ in range(3)], crew.Crew.is_elsewhere

    def closing(one: crew.Crew) -> bool:
        """Tell, once somebody has closed an engine meanwhile."""
        if engines:
            closer = threading.Thread(target=engines.pop().close)
            closer.start()
            closer.join(PATIENCE_S)
        return is_elsewhere(one)

    monkeypatch.setattr(crew.Crew, "is_elsewhere", closing)
    crew._end_all()
    assert not engines


def test_a_process_that_was_forked_is_told_that_nobody_serves_there(double) -> None:
    model = double()
    with Engine(model) as engine:
        first = model.held_by(engine)
        engine._workers._lock.acquire()  # as if another thread had been about to start a worker
        child = os.fork()
        if not child:
            code = 1
            try:
                for call in (lambda: engine.submit(rows(1)), lambda: engine.replace(model)):
                    with pytest.raises(grace.NotSupported, match="make an engine after the fork"):
                        call()
                engine.drain()
                engine.close()
                code = 0
            finally:
                os._exit(code)
        engine._workers._lock.release()
        assert os.waitpid(child, 0)[1] == 0
        model.free.set()
        assert results([first, engine.submit(rows(1))]) == [[200], [2]]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_loop_that_is_gone_before_the_answer_harms_no_later_request(double, cancelled) -> None:
    model, tasks = double(), []
    model.free.clear()
    with Engine(model) as engine:

        async def ask() -> None:
            tasks.append(asyncio.ensure_future(engine.answer(rows(1))))
            await asyncio.sleep(0)

        if cancelled:
            asyncio.run(ask())  # cancels what is left, then closes the loop
            assert tasks[0].cancelled()
        else:
            loop = asyncio.new_event_loop()
            asyncio.wrap_future(engine.submit(rows(1)), loop=loop)
            loop.close()
        model.free.set()
        assert results([engine.submit(rows(5))]) == [[10]]
    told = engine.metrics.snapshot()
    assert told.accepted == told.answered + told.cancelled == 2
    assert told.restarts == 0
