"""What answers may change: a batch keeps the model it began with, the next one has the new one."""

import threading
import time
from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

import grace_torchrec as grace
from grace_torchrec.serve.engine import Engine

PATIENCE_S = 60


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def results(futures: list["Future[Tensor]"]) -> list[list[float]]:
    return [future.result(PATIENCE_S).tolist() for future in futures]


def test_batches_keep_their_model_and_replacing_waits_for_them(double) -> None:
    old, new = double(), double(3)
    with Engine(old) as engine:
        first = old.held_by(engine)
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


def test_a_callback_may_replace_the_model(double) -> None:
    model = double()
    engine = Engine(model)
    first = model.held_by(engine)
    replaced = threading.Event()

    def replace(_: "Future[Tensor]") -> None:
        engine.replace(double(3))
        replaced.set()

    first.add_done_callback(replace)
    model.free.set()
    assert replaced.wait(PATIENCE_S)
    assert results([engine.submit(rows(1))]) == [[3]]
    engine.close()


def test_a_model_that_computes_may_not_replace_itself(double) -> None:
    class Replaces(double):
        def forward(self, x: Tensor) -> Tensor:
            engine.replace(double())
            return x

    with Engine(Replaces()) as engine:
        asked = engine.submit(rows(1))
        with pytest.raises(grace.NotSupported, match="while this thread computes a batch"):
            asked.result(PATIENCE_S)


def test_the_stock_model_answers_while_it_is_asked_for(double) -> None:
    with Engine(double(), stock=double(5)) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.use_stock()
        assert engine.metrics.snapshot().model == "stock"
        assert results([engine.submit(rows(1))]) == [[5]]
        engine.use_stock(False)
        assert results([engine.submit(rows(1))]) == [[2]]
    with Engine(double()) as engine, pytest.raises(grace.NotSupported, match="no stock model"):
        engine.use_stock()
