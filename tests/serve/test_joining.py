"""Joining requests and splitting the output gives each request what it gets alone."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from grace_torchrec.errors import GraceError
from grace_torchrec.modules.rewrite_ahead import rewrite_one, swapped_modules
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.serve import joining
from grace_torchrec.serve.joining import join, join_bags, split
from grace_torchrec.serve.request_form import blank_row, form_of

KEYS = ["a", "b"]
Pair = namedtuple("Pair", ["left", "right"])


class Tagged(torch.Tensor):
    """A tensor of a type of its own."""


class Named(dict):
    """A dict of a type of its own."""


def bags_of(
    rows: list[tuple[list[int], list[int]]],
    weighted: bool = False,
    dtype: torch.dtype = torch.int64,
) -> KeyedJaggedTensor:
    """Bags of features a and b, one pair a row."""
    bags = [row[feature] for feature in range(2) for row in rows]
    ids = torch.tensor([i for bag in bags for i in bag], dtype=dtype)
    return KeyedJaggedTensor(
        keys=KEYS,
        values=ids,
        weights=ids.float() / 2 if weighted else None,
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int32),
    )


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4)),
    max_size=4,
)


@given(st.lists(ROWS, min_size=1, max_size=6), st.booleans())
def test_joined_bags_are_the_bags_of_all_rows_in_order(requests, weighted) -> None:
    joined = join_bags([bags_of(rows, weighted) for rows in requests])
    wanted = bags_of([row for rows in requests for row in rows], weighted)
    assert joined.keys() == KEYS
    assert joined.stride() == wanted.stride()
    assert joined.values().tolist() == wanted.values().tolist()
    assert joined.lengths().tolist() == wanted.lengths().tolist()
    if weighted:
        assert joined.weights().tolist() == wanted.weights().tolist()


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_a_device_joins_as_the_host_does(requests) -> None:
    parts = [bags_of(rows, weighted=True) for rows in requests]
    lengths = [part.lengths() for part in parts]
    columns = [[part.values() for part in parts], [part.weights() for part in parts]]
    host, (ids, weights) = joining.join_jagged(2, lengths, columns)
    device, (device_ids, device_weights) = joining._join_on_device(2, lengths, columns)
    assert torch.equal(host, device)
    assert torch.equal(ids, device_ids)
    assert torch.equal(weights, device_weights)


def test_nested_arguments_are_joined_in_their_places() -> None:
    def request(first: int, rows: int) -> tuple[object, ...]:
        numbers = torch.arange(first, first + rows).float()
        named = defaultdict(int, x=numbers, y=[numbers * 2])
        return named, Pair(numbers[:, None], "text"), None, 3

    joined = join([request(0, 2), request(2, 1)])
    assert joined[0]["z"] == 0
    assert joined[0]["x"].tolist() == [0, 1, 2]
    assert joined[0]["y"][0].tolist() == [0, 2, 4]
    assert joined[1] == Pair(joined[1].left, "text")
    assert joined[1].left.shape == (3, 1)
    assert joined[2:] == (None, 3)


def test_rewritten_bags_are_joined_with_their_rows(collection_of, table_of, swap_of, batch_of):
    tables = [table_of("t_item", features=("item",)), table_of("t_seen", features=("seen",))]
    model = nn.Sequential(swap_of(collection_of(tables), num_hbm_sums=2, lookup="ahead"))
    parts = [
        batch_of({"item": [[1, 2, 7], []], "seen": [[3, 4, 5], [1]]}),
        batch_of({"item": [[5, 4, 3]], "seen": [[]]}),
    ]
    modules = swapped_modules(model)
    joined = join([rewrite_one((part,), modules) for part in parts])[0]
    (together,) = rewrite_one((join_bags(parts),), modules)
    for path, rows in together.modules.items():
        found = joined.modules[path]
        for name in ("rows", "offsets", "given_lengths", "reads"):
            assert torch.equal(getattr(found, name), getattr(rows, name)), name
    wanted = torch.cat([model(part).values() for part in parts])
    assert torch.equal(model(joined).values(), wanted)


@pytest.mark.parametrize("length", [-1, 0, 5])
def test_bags_that_were_written_into_after_they_were_checked_move_no_others(length) -> None:
    parts = [bags_of([([1, 2], [3])]), bags_of([([4], [5, 6])])]
    parts[0].lengths()[0] = length
    with pytest.raises(GraceError, match="do not fit their ids any more"):
        join_bags(parts)


def test_a_request_that_wants_gradients_makes_no_other_want_them() -> None:
    joined = join([(torch.ones(1, 2, requires_grad=True),), (torch.ones(1, 2),)])
    assert not joined[0].requires_grad


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda part: {"offsets": part.offsets[:-1]}, "offsets for 4 bags"),
        (lambda part: {"offsets": part.offsets + 1}, "begin at 1"),
        (lambda part: {"offsets": part.offsets.flip(0) - part.offsets[-1]}, "begin|below 0"),
        (lambda part: {"rows": part.rows[1:]}, "add up"),
        (lambda part: {"rows": part.rows[:, None]}, "do not fit its rows"),
        (lambda part: {"weights": torch.ones(1)}, "do not fit its rows"),
        (
            lambda part: {
                "given_lengths": part.given_lengths.repeat(1, 2),
                "offsets": torch.cat([part.offsets, part.offsets[-1:].repeat(4)]),
            },
            "has 4",
        ),
    ],
)
def test_rewritten_rows_that_do_not_fit_are_refused_at_the_door(
    collection_of, table_of, swap_of, batch_of, spoil, says
) -> None:
    tables = [table_of("t_item", features=("item",)), table_of("t_seen", features=("seen",))]
    model = nn.Sequential(swap_of(collection_of(tables), num_hbm_sums=2, lookup="ahead"))
    bags = batch_of({"item": [[1, 2, 7], []], "seen": [[3, 4, 5], [1]]})
    (rewritten,) = rewrite_one((bags,), swapped_modules(model))
    form_of((rewritten,))
    modules = {path: replace(part, **spoil(part)) for path, part in rewritten.modules.items()}
    with pytest.raises(GraceError, match=says):
        form_of((RewrittenBatch(bags, modules),))


def test_an_output_is_split_by_rows_in_every_container() -> None:
    values = torch.arange(6.0).reshape(3, 2)
    keyed = KeyedTensor(keys=KEYS, length_per_key=[1, 1], values=values)
    output = {"t": values, "more": [Pair(keyed, None)], "o": OrderedDict(x=values[:, 0])}
    first, nothing, last = split(defaultdict(int, output), [1, 0, 2], [0, 0, 0])
    assert last["else"] == 0
    assert first["t"].tolist() == [[0, 1]]
    assert nothing["t"].shape == (0, 2)
    assert last["more"][0].left["b"].tolist() == [[3], [5]]
    assert last["more"][0].right is None
    assert list(last["o"]["x"]) == [2, 4]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_requests_of_other_structure_are_of_another_kind() -> None:
    dense, bags = torch.zeros(1, 3), bags_of([([1], [2])])
    kinds = [
        form_of(batch).kind
        for batch in (
            (dense, bags),
            (dense.double(), bags),
            (torch.zeros(1, 4), bags),
            (dense, bags_of([([1], [2])], weighted=True)),
            (dense, bags_of([([1], [2])], dtype=torch.int32)),
            (dense, KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1]))),
            (dense, bags, 1),
            (dense, bags, True),
            (dense, bags, object()),
            (dense, bags, object()),
            (torch.tensor(1.0), bags),
            (dense, bags, 0.0),
            (dense, bags, -0.0),
            (dense, {"x": bags}),
            (dense, OrderedDict(x=bags)),
            (dense, defaultdict(None, x=bags)),
            (dense, defaultdict(int, x=bags)),
            (dense, Named(x=bags)),
            (dense, UserDict(x=bags)),
            (dense.as_subclass(Tagged), bags),
            (dense.to_sparse(), bags),
            (torch.nested.nested_tensor([dense[0]]), bags),
        )
    ]
    for one, kind in enumerate(kinds):
        assert all(kind != other for two, other in enumerate(kinds) if two != one)
    assert form_of((dense, bags)).kind == form_of((dense + 1, bags_of([([], [3, 4])]))).kind


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((torch.zeros(2, 3), bags_of([([1], [2])])), "argument 0 has 2 rows, argument 1 has 1"),
        (
            (KeyedJaggedTensor(KEYS, torch.arange(5), lengths=torch.tensor([1, 2])),),
            "add up to 3, there are 5 ids",
        ),
        (
            (KeyedJaggedTensor(KEYS, torch.arange(2), lengths=torch.tensor([3, -1])),),
            r"has a length below 0 \(-1\)",
        ),
        ((KeyedJaggedTensor(KEYS, torch.arange(2), lengths=torch.tensor([1, 1, 0])),), "3 lengths"),
        (
            (KeyedJaggedTensor(KEYS, torch.arange(2), offsets=torch.tensor([1, 2, 3])),),
            "begin at 1",
        ),
        (
            (
                KeyedJaggedTensor(
                    KEYS,
                    torch.arange(2),
                    lengths=torch.tensor([1, 1]),
                    offsets=torch.tensor([0, 2, 2]),
                ),
            ),
            "say different bags",
        ),
        ((KeyedJaggedTensor(KEYS, torch.arange(2), lengths=torch.empty(0).long()),), "no bag"),
    ],
)
def test_malformed_requests_are_refused_at_the_door(batch, says) -> None:
    with pytest.raises(GraceError, match=says):
        form_of(batch)


def test_a_blank_row_is_on_the_device_of_the_bags() -> None:
    meta = bags_of([([1], [2])], weighted=True).to(torch.device("meta"))
    (blank,) = blank_row((meta,))
    parts = (blank.values(), blank.weights(), blank.lengths())
    assert {part.device.type for part in parts} == {"meta"}


def test_a_blank_row_is_of_the_same_kind_and_any_model_takes_it() -> None:
    named = defaultdict(int, x=torch.zeros(0).long())
    batch = (torch.zeros(0, 3), bags_of([], weighted=True), [named], "text")
    blank = blank_row(batch)
    assert form_of(batch).kind == form_of(blank).kind
    assert (form_of(batch).rows, form_of(blank).rows) == (0, 1)
    table = EmbeddingBagConfig(
        name="t", num_embeddings=4, embedding_dim=2, feature_names=["a", "b"]
    )
    pooled = EmbeddingBagCollection([table], is_weighted=True)(blank[1])
    assert pooled.values().tolist() == [[0, 0, 0, 0]]
