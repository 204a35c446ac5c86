"""The shadow compares what was answered with what the other model answers; nobody waits for it."""

from concurrent.futures import Future, wait
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec import KeyedTensor

from grace_torchrec.serve.engine import Engine

PATIENCE_S = 60


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def results(futures: list["Future[Tensor]"]) -> list[list[float]]:
    return [future.result(PATIENCE_S).tolist() for future in futures]


def keyed(x: Tensor) -> KeyedTensor:
    return KeyedTensor(["k"], [1], x[:, None])


def test_the_shadow_counts_differences_and_keeps_the_worst(double) -> None:
    with Engine(double(), stock=double(2.5), shadow=1.0, shadow_tolerance=0.6) as engine:
        futures = [engine.submit(rows(k)) for k in (1, 3, 2, 0)]
        futures.append(engine.submit(rows(-1)))
        wait(futures, PATIENCE_S)
        engine.drain()
        found = engine.metrics.snapshot().shadow
    assert (found.compared, found.different, found.failed) == (4, 2, 0)
    assert found.worst_difference == 1.5
    assert found.worst.batch[0].tolist() == [3]
    assert (found.worst.answer.tolist(), found.worst.other.tolist()) == ([6], [7.5])


@pytest.mark.parametrize("by", ["ours", "stock"])
def test_the_worst_request_is_told_in_a_line_that_names_the_models(by, double) -> None:
    with Engine(double(), stock=double(2.5), shadow=1.0) as engine:
        engine.use_stock(by == "stock")
        engine.submit(rows(3)).result(PATIENCE_S)
        engine.drain()
        found = engine.metrics.snapshot().shadow
    other = {"ours": "stock", "stock": "ours"}[by]
    assert repr(found.worst) == f"Worst(difference=1.5, models={(by, other)})"
    assert "tensor" not in repr(found)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: {"a": [x, (x * 1,)]}, keyed])
def test_the_shadow_compares_what_was_answered_not_what_a_caller_made_of_it(form, double) -> None:
    class Formed(double):
        def forward(self, x: Tensor) -> Any:
            return form(super().forward(x))

    def write(future: "Future[Any]") -> None:
        for leaf in torch.utils._pytree.tree_leaves(future.result()):
            if isinstance(leaf, Tensor):
                leaf.zero_()

    model = Formed()
    with Engine(model, stock=Formed(), shadow=1.0) as engine:
        first = model.held_by(engine)
        first.add_done_callback(write)
        model.free.set()
        engine.drain()
        found = engine.metrics.snapshot().shadow
    assert (found.compared, found.different) == (1, 0)


def test_a_shadow_that_fails_is_counted_and_nobody_waits_for_it(double) -> None:
    stock = double()
    stock.free.clear()
    with Engine(double(-1), stock=stock, shadow=1.0) as engine:
        # the answer comes while the other model is still held
        assert results([engine.submit(rows(-1).neg() * 1)]) == [[-1]]
        stock.free.set()
    with Engine(double(), stock=nn.Bilinear(2, 2, 2).eval(), shadow=1.0) as engine:
        assert results([engine.submit(rows(1))]) == [[2]]
        engine.drain()
        assert engine.metrics.snapshot().shadow.failed == 1
