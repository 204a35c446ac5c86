"""Models to convert, made as the tests of modules/ make them, and one that a test can hold."""

import importlib.util
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import refresh_world
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.plans.plan import Plan
from grace_torchrec.serve.convert import convert
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.served import Served

_spec = importlib.util.spec_from_file_location(
    "grace_modules_conftest", Path(__file__).parents[1] / "modules" / "conftest.py"
)
assert _spec is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
table_of, collection_of, table_plan = _shared.table_of, _shared.collection_of, _shared.table_plan
model_plan, batch_of = _shared.model_plan, _shared.batch_of
plans_of, swap_of = _shared.plans_of, _shared.swap_of

LAYOUT = {"originals": "host", "num_hbm_sums": 2, "hot_items": (7, 9)}
STOCK = {"clusters": None, "num_hbm_sums": 0, "hot_items": ()}
BAGS = {
    "item": [[3, 1, 2, 5], [], [4, 4, 3, 7], [1, 2, 9, 19]],
    "seen": [[1, 2], [5, 4, 3, 0], [0], []],
    "shop": [[0], [1], [2], [3]],
}


class TwoTower(nn.Module):
    """A dense arm beside a collection; the output shows every embedding."""

    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 4)
        self.sparse = collection
        self.register_buffer("scale", torch.tensor([1.0]))

    def forward(self, dense: torch.Tensor, bags: KeyedJaggedTensor) -> torch.Tensor:
        pooled = self.sparse(bags).to_dict()
        columns = [pooled[name] for name in ("item", "seen", "shop")]
        return torch.cat([self.dense(dense) * self.scale, *columns], dim=1)


@pytest.fixture(scope="session")
def model_of(collection_of, table_of) -> Callable[..., TwoTower]:
    """Return a function that makes a model of three tables, one MEAN, one without sums."""

    def make(*, seed: int = 0, whole: bool = True, dtype: str = "fp32", dim: int = 4) -> TwoTower:
        tables = [
            table_of("t_item", features=("item",), dtype=dtype, dim=dim),
            table_of("t_seen", features=("seen",), pooling="mean", dtype=dtype, dim=dim),
            table_of("t_shop", features=("shop",), dtype=dtype, dim=dim),
        ]
        torch.manual_seed(seed)
        return TwoTower(collection_of(tables, whole=whole, seed=seed)).eval()

    return make


@pytest.fixture(scope="session")
def plan_for(model_plan) -> Callable[..., Plan]:
    """Return a function from such a model to its plan: sums and hot rows in both memories."""

    def make(model: nn.Module, **layout: object) -> Plan:
        by_table = {"t_shop": {**STOCK, "lookup": "fused"}}
        return model_plan(model, by_table, **{**LAYOUT, **layout})

    return make


@pytest.fixture(scope="session")
def batch(batch_of) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """Return one batch: any order, repeats and empty bags."""
    return torch.rand(4, 3, generator=torch.Generator().manual_seed(1)), batch_of(BAGS)


@pytest.fixture(scope="session")
def served_of(plan_for, batch) -> Callable[..., Served]:
    """Return a function that converts such a model."""

    def make(model: nn.Module, plan: Plan | None = None, **options: object) -> Served:
        return convert(model, plan or plan_for(model), example=batch, **options)

    return make


class Double(nn.Module):
    """Returns twice its input; notes the rows of each batch; can be held, and fails on -1."""

    def __init__(self, factor: float = 2) -> None:
        super().__init__()
        self.factor = factor
        self.batches: list[list[float]] = []
        self.free, self.entered = threading.Event(), threading.Semaphore(0)
        self.free.set()
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches.append(x.tolist())
        self.entered.release()
        assert self.free.wait(60)
        if bool((x == -1).any()):
            raise ValueError("a bad row")
        if bool((x == -2).any()):
            raise SystemExit("a worker ends")
        return x * self.factor

    def held_by(self, engine: Engine) -> "Future[torch.Tensor]":
        """Let one request occupy the only worker of an engine."""
        self.free.clear()
        first = engine.submit(torch.tensor([100.0]))
        assert self.entered.acquire(timeout=60)
        return first


@pytest.fixture(scope="session")
def double() -> type[Double]:
    """Return a model that a test can hold in the middle of a batch."""
    return Double


@pytest.fixture(scope="module")
def first() -> tuple[nn.Module, Plan]:
    """Return the model of ``refresh_world``, and its plan from the bags of the first kind."""
    model = refresh_world.model_of()
    profile = grace.profile(refresh_world.WORLDS[0], model)
    memory = grace.MemoryModel.named("h200")
    return model, grace.plan(model, profile, memory, refresh_world.OPTIONS)
