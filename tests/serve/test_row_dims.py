"""Where the rows of an output are is told from two numbers of rows, never from sizes that agree."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

import grace_torchrec as grace
from grace_torchrec.serve.answering import _parts
from grace_torchrec.serve.engine import Engine
from grace_torchrec.serve.joining import CannotSplit
from grace_torchrec.serve.live_model import LiveModel
from grace_torchrec.serve.request_form import form_of
from grace_torchrec.serve.row_dims import MOST_KINDS, RowDims
from grace_torchrec.traces.live_hooks import LiveHook

PATIENCE_S, KIND = 60, "kind"
Batch = tuple[Tensor]


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def keyed(values: Tensor, key_dim: int) -> KeyedTensor:
    return KeyedTensor(["a", "b"], [1, 2], values, key_dim)


def padded(x: Tensor) -> Tensor:
    """As wide as the largest number of the batch says."""
    return x[:, None].expand(len(x), int(x.max())).contiguous()


class Answers(nn.Module):
    """Returns what a function makes of its input; notes the rows of each batch."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer, self.batches = answer, list[int]()
        self.eval()

    def forward(self, x: Tensor) -> Any:
        self.batches.append(len(x))
        return self.answer(x)


def dims_of(answer: Callable[[Tensor], Any], counts: list[int]) -> tuple[int, ...]:
    """Where the rows of one joined batch are, as a model's first."""
    batches = [(torch.ones(count),) for count in counts]
    return RowDims().of(
        KIND, batches, counts, answer(torch.ones(sum(counts))),
        lambda some: answer(torch.cat([one[0] for one in some])),
    )  # fmt: skip


@pytest.mark.parametrize("counts", [[1, 2], [3, 0], [1, 0], [1, 1, 1], [0, 2, 0, 2]], ids=str)
def test_rows_are_where_they_follow_the_batch(counts) -> None:
    def answer(x: Tensor) -> Any:
        wide = x[:, None].expand(len(x), 3)
        parts = OrderedDict(x=wide.t(), y=[keyed(wide, 1), None])
        return parts, keyed(wide.t(), 0), wide[None, :, :2], x

    assert dims_of(answer, counts) == (1, 0, 1, 1, 0)


@pytest.mark.parametrize("counts", [[1, 2], [3, 0], [1, 1, 1], [1, 0], [2, 2]], ids=str)
@pytest.mark.parametrize(
    "answer",
    [
        lambda x: torch.ones(3),
        lambda x: {"y": x, "temps": torch.ones(4, 1)},
        lambda x: torch.ones(1, 3),
        lambda x: x.sum(),
        lambda x: x[:, None] * x,
        lambda x: x.repeat(3),
        lambda x: x[:-1],
        lambda x: [x] * len(x),
        lambda x: {f"{len(x)} rows": x},
        lambda x: (x, 1.5),
        lambda x: Counter(a=x),
        lambda x: x.to_sparse(),
    ],
    ids=[
        "three numbers", "a leaf", "one row", "a sum", "all pairs", "in a row", "one less",
        "a list", "a key", "a number", "knows more", "sparse",
    ],
)  # fmt: skip
def test_an_output_whose_rows_are_not_the_batchs_is_not_split(answer, counts) -> None:
    with pytest.raises(CannotSplit):
        dims_of(answer, counts)


@pytest.mark.parametrize("counts", [[1, 2], [1, 0], [3, 1]], ids=str)
def test_an_output_that_is_squeezed_for_one_row_is_not_split(counts) -> None:
    with pytest.raises(CannotSplit):
        dims_of(lambda x: x[:, None].squeeze(), counts)


def test_what_was_alone_is_not_computed_again_and_a_smaller_request_is() -> None:
    asked: list[int] = []

    def joined(counts: list[int]) -> tuple[int, ...]:
        batches = [(torch.ones(count),) for count in counts]

        def compute(some: list[Batch]) -> Tensor:
            asked.append(sum(len(one[0]) for one in some))
            return torch.ones(asked[-1])

        return row_dims.of(KIND, batches, counts, torch.ones(sum(counts)), compute)

    row_dims = RowDims()
    row_dims.note_alone(KIND, 4, torch.ones(4))
    assert joined([4, 6]) == joined([5, 4, 0]) == joined([4, 0]) == (0,)
    assert asked == []
    assert joined([3, 1]) == joined([1, 1]) == joined([1, 0]) == joined([4, 6]) == (0,)
    row_dims.note_alone(KIND, 1, torch.ones(1))
    row_dims.note_alone(KIND, 9, torch.ones(9))
    assert joined([1, 0]) == joined([7, 2]) == (0,)
    assert asked == [1]


def test_a_request_that_is_computed_again_stays_as_it_was() -> None:
    batches = [(rows(1, 2),), (rows(3, 4),)]
    wanted = RowDims().of(KIND, batches, [2, 2], rows(0, 0, 0, 0), lambda some: some[0][0].mul_(2))
    assert wanted == (0,)
    assert [one[0].tolist() for one in batches] == [[1, 2], [3, 4]]


def test_a_kind_that_cannot_be_split_is_not_joined_again_and_others_are() -> None:
    row_dims = RowDims()
    row_dims.note_alone(KIND, 1, 1.5)
    row_dims.note_alone("other", 1, rows(1))
    with pytest.raises(CannotSplit, match="type float"):
        row_dims.check(KIND)
    row_dims.check("other")


def test_memory_is_bounded_whatever_callers_ask() -> None:
    row_dims = RowDims()
    for number in range(2 * MOST_KINDS):
        row_dims.note_alone(form_of((rows(1), number)).kind, 1, rows(1))
        row_dims.note_alone(form_of((object(), number)).kind, 1, rows(1))
        row_dims.refuse(number, CannotSplit("a leaf"))
    assert len(row_dims._alone) == len(row_dims._known) == MOST_KINDS


def asking(row_dims: RowDims, kind: Any, counts: list[int]) -> int:
    """How often a joined batch was computed again in part."""
    asked = 0

    def compute(some: list[Batch]) -> Tensor:
        nonlocal asked
        asked += 1
        return torch.cat([one[0] for one in some])

    batches = [(torch.ones(count),) for count in counts]
    assert row_dims.of(kind, batches, counts, torch.ones(sum(counts)), compute) == (0,)
    return asked


def test_a_kind_is_computed_again_once_and_once_more_for_a_first_single_row() -> None:
    row_dims = RowDims()
    again = [asking(row_dims, KIND, [count, count + 1]) for count in range(9, 0, -1)]
    assert again == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert asking(row_dims, KIND, [1, 0]) == asking(row_dims, KIND, [7, 3]) == 0


def test_values_of_plain_arguments_may_take_turns_and_lonely_kinds_disturb_nobody() -> None:
    row_dims = RowDims()
    again = [asking(row_dims, number, [1, 2]) for _ in range(2) for number in range(200)]
    assert again == [1] * 200 + [0] * 200
    for number in range(MOST_KINDS):
        row_dims.note_alone(f"never joined {number}", 1, rows(1))
    assert not any(asking(row_dims, number, [1, 2]) for number in range(200))


class Recorded(nn.Module):
    """Tells what it is called with, as hooks of a recorder do."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.lookup = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=8, feature_names=["f"])
            ]
        )
        hook = LiveHook(lambda bags, _: seen.append(bags.stride()), ("t",))
        self.lookup.register_forward_pre_hook(hook, with_kwargs=True)

    def forward(self, bags: KeyedJaggedTensor) -> Tensor:
        return self.lookup(bags).values()


def test_what_is_computed_again_is_not_recorded_again() -> None:
    seen: list[int] = []
    live = LiveModel(Recorded(seen).eval(), None)
    bags = KeyedJaggedTensor(keys=["f"], values=torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
    output = live.compute((bags,))
    batches = [(bags,), (bags,)]
    output = torch.cat([output, output])
    assert len(_parts(output, KIND, batches, [2, 2], live, False)) == 2
    assert seen == [2]
    live.compute((bags,))
    assert seen == [2, 2]


def served(model: Answers, asked: list[Tensor]) -> list[Any]:
    """What an engine answers to requests, most of which wait together."""
    with Engine(model, max_batch=3, max_wait_ms=20) as engine:
        futures = [engine.submit(x) for x in asked]
        return [future.result(PATIENCE_S) for future in futures]


@pytest.mark.parametrize("answer", [lambda x: x * rows(1, 2, 3)[:, None], padded])
def test_requests_get_what_the_model_answers_to_them_alone(answer) -> None:
    model = Answers(answer)
    asked = [rows(1 + k % 4) for k in range(12)]
    for found, x in zip(served(model, asked), asked, strict=True):
        assert torch.equal(found, answer(x))
        assert found.is_contiguous()


def test_a_part_that_is_the_models_own_is_given_whole() -> None:
    model = Answers(lambda x: {"y": x * 2, "temps": rows(1, 2, 3)})
    asked = [rows(k) for k in range(7)]
    for found, x in zip(served(model, asked), asked, strict=True):
        assert found["y"].tolist() == [2 * float(x)]
        assert found["temps"].tolist() == [1, 2, 3]


def test_an_empty_request_gets_no_row_of_a_part_that_has_one_by_chance() -> None:
    model = Answers(lambda x: {"y": x, "temps": rows(1)})
    with Engine(model) as engine:
        with pytest.raises(grace.GraceError, match="an empty request has no answer"):
            engine.submit(rows()).result(PATIENCE_S)
        assert engine.submit(rows(5)).result(PATIENCE_S)["temps"].tolist() == [1]
    assert 0 not in model.batches


def test_a_new_model_and_the_stock_twin_are_looked_at_anew() -> None:
    with Engine(Answers(lambda x: x), stock=Answers(torch.sum), max_wait_ms=20) as engine:
        for answer, changed in (
            (lambda x: x, lambda: engine.use_stock(True)),
            (torch.sum, lambda: engine.use_stock(False)),
            (lambda x: x, lambda: engine.replace(Answers(lambda x: x.repeat(2, 1)))),
            (lambda x: x.repeat(2, 1), lambda: None),
        ):
            futures = [engine.submit(rows(k)) for k in range(4)]
            found = [future.result(PATIENCE_S) for future in futures]
            assert all(torch.equal(one, answer(rows(k))) for k, one in enumerate(found))
            changed()
