"""Hostile requests among good ones: each is answered, or fails, as the model does with it alone.

Numbers of the dense part are whole and every bag is pooled by itself, so a joined batch computes the
very bits that each request gets alone.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from grace_torchrec.errors import GraceError
from grace_torchrec.serve.engine import Engine

KEYS, NUM_ROWS, PATIENCE_S = ("item", "seen", "shop"), 20, 600
Request = tuple[Any, ...]
pytestmark = pytest.mark.filterwarnings("ignore:.*quantized tensor:", "ignore:.*nested tensors")


class Tagged(Tensor):
    """A tensor of a type of its own."""


def good(seed: int, rows: int) -> tuple[Tensor, KeyedJaggedTensor]:
    """A request: whole numbers, bags of any length, repeats and empty ones."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(KEYS) * rows,), generator=draw)
    ids = torch.randint(0, NUM_ROWS, (int(lengths.sum()),), generator=draw)
    dense = torch.randint(-4, 5, (rows, 3), generator=draw).float()
    return dense, KeyedJaggedTensor(keys=list(KEYS), values=ids, lengths=lengths)


def bags_with(bags: KeyedJaggedTensor, **other: Any) -> KeyedJaggedTensor:
    """The bags, some parts of them replaced."""
    given_parts = {"keys": bags.keys(), "values": bags.values(), "lengths": bags.lengths()}
    return KeyedJaggedTensor(**{**given_parts, **other})


def negative_lengths(bags: KeyedJaggedTensor) -> Tensor:
    lengths = bags.lengths().clone()
    if lengths.numel() > 1:
        lengths[0] += lengths[1] + 1
        lengths[1] = -1
    return lengths


def unordered_offsets(bags: KeyedJaggedTensor) -> Tensor:
    offsets = bags.offsets().clone()
    if offsets.numel() > 2:
        offsets[1] = offsets[-1] + 3
    return offsets


def shifted_offsets(bags: KeyedJaggedTensor) -> Tensor:
    offsets = bags.offsets().clone()
    offsets[1:-1] = offsets[-1]
    return offsets


def first_id(bags: KeyedJaggedTensor, number: int) -> Tensor:
    ids = bags.values().clone()
    ids[:1] = number
    return ids


def permuted(bags: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return bags.permute([2, 0, 1])


# What is done to the dense part, to the bags, and to both.
DENSE: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every-second": lambda x: x.repeat_interleave(2, 0)[::2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "wants-gradients": lambda x: x.clone().requires_grad_(),
    "a-parameter": lambda x: nn.Parameter(x),
    "not-a-number": lambda x: x * float("nan"),
    "infinite": lambda x: x + float("inf"),
    "double": lambda x: x.double(),
    "whole": lambda x: x.long(),
    "wider": lambda x: torch.cat([x, x], dim=1),
    "flat": lambda x: x[:, 0],
    "one-number": lambda x: torch.tensor(1.0),
    "sparse": lambda x: x.to_sparse(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.37, 3, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "no-storage": lambda x: x.to("meta"),
    "of-another-type": lambda x: x.as_subclass(Tagged),
    "in-a-list": lambda x: [x],
    "one-row-more": lambda x: torch.cat([x, x[:1], torch.zeros(1, 3)]),
    "a-text": lambda x: "text",
    "nothing": lambda x: None,
}
BAGS: dict[str, Callable[[KeyedJaggedTensor], Any]] = {
    "negative-lengths": lambda b: bags_with(b, lengths=negative_lengths(b)),
    "unordered-offsets": lambda b: KeyedJaggedTensor(
        b.keys(), b.values(), offsets=unordered_offsets(b)
    ),
    "other-offsets": lambda b: bags_with(b, offsets=shifted_offsets(b)),
    "wild-offsets": lambda b: bags_with(b, offsets=unordered_offsets(b)),
    "too-many-ids": lambda b: bags_with(b, values=torch.cat([b.values(), b.values(), KEYS_ID])),
    "too-few-ids": lambda b: bags_with(b, values=b.values()[1:]),
    "two-dimensional-ids": lambda b: bags_with(b, values=b.values()[:, None]),
    "two-dimensional-lengths": lambda b: bags_with(b, lengths=b.lengths().reshape(3, -1)),
    "ids-below-zero": lambda b: bags_with(b, values=first_id(b, -7)),
    "padding": lambda b: bags_with(b, values=first_id(b, -1)),
    "ids-behind-the-table": lambda b: bags_with(b, values=first_id(b, NUM_ROWS)),
    "huge-ids": lambda b: bags_with(b, values=first_id(b, 2**62)),
    "float-ids": lambda b: bags_with(b, values=b.values().float()),
    "bool-ids": lambda b: bags_with(b, values=b.values().bool()),
    "narrow-ids": lambda b: bags_with(b, values=b.values().int()),
    "narrow-lengths": lambda b: bags_with(b, lengths=b.lengths().int()),
    "byte-lengths": lambda b: bags_with(b, lengths=b.lengths().byte()),
    "strided-ids": lambda b: bags_with(b, values=b.values().repeat_interleave(2)[::2]),
    "weights": lambda b: bags_with(b, weights=torch.rand(b.values().numel())),
    "too-few-weights": lambda b: bags_with(b, weights=torch.rand(b.values().numel())[1:]),
    "weights-elsewhere": lambda b: bags_with(b, weights=b.values().float().to("meta")),
    "keys-permuted": permuted,
    "a-key-missing": lambda b: bags_with(b, keys=["item", "seen", "else"]),
    "a-key-twice": lambda b: bags_with(b, keys=["item", "seen", "seen"]),
    "no-keys": lambda b: KeyedJaggedTensor([], b.values()[:0], lengths=b.lengths()[:0]),
    "a-wrong-stride": lambda b: bags_with(b, stride=b.stride() + 1),
    "strides-by-key": lambda b: KeyedJaggedTensor(
        b.keys(), b.values(), lengths=b.lengths(), stride_per_key_per_rank=[[b.stride()]] * 3
    ),
    "inverse-indices": lambda b: bags_with(
        b, inverse_indices=(b.keys(), torch.zeros(3, b.stride(), dtype=torch.int64))
    ),
    "a-dict": lambda b: b.to_dict() if b.stride() else {},
}
KEYS_ID = torch.tensor([3])
HOSTILE = (*DENSE, *BAGS, "turned", "one-more", "none")


def spoilt(kind: str, dense: Tensor, bags: KeyedJaggedTensor) -> Request:
    """The request, spoilt in one way."""
    if kind in DENSE:
        return DENSE[kind](dense), bags
    if kind in BAGS:
        return dense, BAGS[kind](bags)
    return {"turned": (bags, dense), "one-more": (dense, bags, 1), "none": ()}[kind]


class Gate(nn.Module):
    """A model that shows its dense input, too, and that a test can hold."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.entered, self.free = threading.Semaphore(0), threading.Event()
        self.free.set()
        self.eval()

    def forward(self, dense: Tensor, bags: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        self.entered.release()
        assert self.free.wait(PATIENCE_S)
        return self.model(dense, bags), dense

    def train(self, mode: bool = True) -> "Gate":
        self.training = False
        return self


def answers(engine: Engine, gate: Gate, asked: list[Request]) -> list[Any]:
    """What becomes of requests that wait together: an answer, an exception, or Rejected."""
    gate.free.clear()
    gate.entered = threading.Semaphore(0)
    first = engine.submit(*good(0, 1))
    assert gate.entered.acquire(timeout=PATIENCE_S)
    try:
        found = [submitted(engine, request) for request in asked]
    finally:
        gate.free.set()
    first.result(PATIENCE_S)
    return [outcome(one) if isinstance(one, Future) else one for one in found]


def submitted(engine: Engine, request: Request) -> Any:
    """The answer to come, or why the request was refused."""
    try:
        return engine.submit(*request)
    except GraceError as error:
        return error


def outcome(future: "Future[Any]") -> Any:
    """An answer, or what it failed with."""
    return future.exception(PATIENCE_S) or future.result()


def same(found: Any, wanted: Any) -> bool:
    """Tell two answers that are bit for bit equal."""
    return all(
        (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
        and torch.equal(a.to_dense().isnan(), b.to_dense().isnan())
        and torch.equal(a.to_dense().nan_to_num(nan=0.0), b.to_dense().nan_to_num(nan=0.0))
        for a, b in zip(found, wanted, strict=True)
    )


def alone(gate: Gate, request: Request) -> Any:
    """What the model makes of a request: its answer or what it raises."""
    try:
        with torch.no_grad():
            return gate(*request)
    except Exception as error:
        return error


@pytest.fixture(scope="module", params=["stock", "fused", "ahead"])
def gate(request, model_of, plan_for, served_of) -> Gate:
    """A model whose dense part computes with whole numbers."""
    model = model_of()
    with torch.no_grad():
        model.dense.weight.mul_(8).round_()
        model.dense.bias.mul_(8).round_()
    if request.param == "stock":
        return Gate(model)
    return Gate(served_of(model, plan_for(model, lookup=request.param), row_dtype="fp32"))


REQUESTS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 3), st.sampled_from([None, None, *HOSTILE])),
    min_size=2,
    max_size=12,
)


def check(gate: Gate, drawn: list[tuple[int, int, str | None]]) -> None:
    """Ask all at once; compare each with the model alone."""
    asked = [
        good(seed, rows) if kind is None else spoilt(kind, *good(seed, rows))
        for seed, rows, kind in drawn
    ]
    with Engine(gate) as engine:
        found = answers(engine, gate, asked)
    for one, request, (seed, rows, kind) in zip(found, asked, drawn, strict=True):
        if kind is None:
            assert not isinstance(one, Exception), one
            assert all(type(part) is Tensor and not part.requires_grad for part in one)
            if rows:
                assert same(one, gate(*good(seed, rows))), (seed, rows)
            else:
                assert one[0].shape[0] == 0
        elif not isinstance(one, Exception) and rows:
            wanted = alone(gate, request)
            assert not isinstance(wanted, Exception), (kind, wanted)
            assert same(one, wanted), kind


@pytest.mark.parametrize("kind", HOSTILE)
def test_one_hostile_request_changes_nothing_for_its_mates(gate, kind) -> None:
    check(
        gate, [(1, 2, None), (2, 1, kind), (3, 3, None), (4, 3, kind), (5, 0, kind), (6, 1, None)]
    )


@settings(max_examples=10)
@given(REQUESTS)
def test_every_request_of_a_mixed_batch_gets_what_it_gets_alone(gate, drawn) -> None:
    check(gate, drawn)


@pytest.mark.soak
@given(REQUESTS)
def test_every_request_of_many_mixed_batches_gets_what_it_gets_alone(gate, drawn) -> None:
    check(gate, drawn)
