"""The small world of the tests of refreshes: a model, bags of two kinds, an engine, a refresher."""

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.serve.refresh import Refresher
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

ROWS, DIM, BATCH = 300, 64, 100
OPTIONS = grace.PlanOptions(methods=("grace_floor",), lookup="fused")


class Model(nn.Module):
    """A collection and a dense part."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="t_item", num_embeddings=rows, embedding_dim=DIM, feature_names=["item"]
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


def model_of(rows: int = ROWS) -> Model:
    torch.manual_seed(0)
    model = Model(rows).eval()
    nn.init.normal_(model.sparse.embedding_bags["t_item"].weight)
    return model


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
        **{"clock": clock, "example": (WORLDS[0][0],), "options": OPTIONS, **options},
    )  # fmt: skip
    return refresher, recorder


def converted(first: tuple[Model, grace.Plan]) -> tuple[Model, grace.Served]:
    model, plan = first
    return model, grace.convert(model, plan, example=(WORLDS[0][0],))


def observe(recorder: TraceRecorder, bags: list[KeyedJaggedTensor]) -> None:
    for batch in bags:
        recorder.observe(batch)


def assert_answers(served: nn.Module, model: nn.Module, bags: list[KeyedJaggedTensor]) -> None:
    with torch.no_grad():
        for batch in bags:
            torch.testing.assert_close(served(batch), model(batch), atol=1e-4, rtol=1e-4)
