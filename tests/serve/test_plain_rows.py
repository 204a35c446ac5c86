"""Collections left stock answer long bags as short ones, and bad ids as their plan says."""

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.serve import plain_rows
from grace_torchrec.serve.convert import convert

KEYS = ["seen", "item"]


@pytest.fixture
def left_stock(collection_of, table_of, model_plan):
    """Return a function that converts a SUM and a MEAN table nothing is stored for."""

    def make(bad_ids: str = "raise", **layout: object):
        tables = [
            table_of("t_item", features=("item",)),
            table_of("t_seen", features=("seen",), pooling="mean", dim=8),
        ]
        model = nn.Sequential(collection_of(tables))
        stock = {"clusters": None, "lookup": "fused", **layout}
        plan = model_plan(model, options=PlanOptions(bad_ids=bad_ids), **stock)
        return model, convert(model, plan, example=(bags_of(1),))

    return make


def bags_of(seed: int, rows: int = 6, longest: int = 60, ids: torch.dtype = torch.int64):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (2 * rows,), generator=random)
    values = torch.randint(0, 20, (int(lengths.sum()),), generator=random, dtype=ids)
    return KeyedJaggedTensor(KEYS, values, lengths=lengths)


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("longest", [2, 60])
def test_any_length_of_bag_gives_what_the_stock_collection_gives(left_stock, longest, ids) -> None:
    model, served = left_stock()
    for seed in range(10):
        bags = bags_of(seed, longest=longest, ids=ids)
        assert torch.allclose(served(bags).values(), model(bags).values(), atol=1e-5)


def test_long_bags_of_stock_collections_go_to_torch_and_those_with_sums_do_not(
    left_stock, monkeypatch
) -> None:
    taken = []
    call = plain_rows.PlainRows.__call__
    monkeypatch.setattr(
        plain_rows.PlainRows,
        "__call__",
        lambda *given: taken.append(call(*given) is not None) or call(*given),
    )
    left_stock()[1](bags_of(0))
    left_stock()[1](bags_of(0, longest=2))
    assert taken[-2:] == [True, False]
    calls = len(taken)
    left_stock(clusters=((1, 2), (3, 4, 5)))[1](bags_of(0))
    assert len(taken) == calls


def test_lengths_that_do_not_fit_are_refused_as_ever(left_stock) -> None:
    _, served = left_stock()
    bags = bags_of(2)
    with pytest.raises(GraceError, match="lengths add up"):
        served(KeyedJaggedTensor(KEYS, bags.values()[:-1], lengths=bags.lengths()))
    offsets = bags.offsets().clone()
    offsets[3] = offsets[4] + 1
    with pytest.raises(GraceError, match="fall at bag"):
        served(KeyedJaggedTensor(KEYS, bags.values(), offsets=offsets))
    other = bags.lengths().flip(0)
    with pytest.raises(GraceError, match="not two that differ"):  # stock would not notice
        served(KeyedJaggedTensor(KEYS, bags.values(), lengths=other, offsets=bags.offsets()))


@pytest.mark.parametrize(("bad_ids", "outside"), [("raise", 20), ("drop", 25), ("zero_row", -7)])
def test_bad_ids_of_long_bags_are_treated_as_the_plan_says(
    left_stock, bad_ids, outside, monkeypatch
) -> None:
    _, served = left_stock(bad_ids)
    bags = bags_of(3)
    bad = bags.values().clone()
    bad[5] = outside
    given = KeyedJaggedTensor(KEYS, bad, lengths=bags.lengths())
    if bad_ids == "raise":
        with pytest.raises(ValueError, match="20"):
            served(given)
        return
    found = served(given).values()
    monkeypatch.setattr(plain_rows, "LONG_BAGS", 1 << 40)  # all by our lookup
    assert torch.equal(found, served(given).values())


def test_padding_adds_nothing_to_long_bags(left_stock) -> None:
    _, served = left_stock()
    bags = bags_of(4)
    lengths = bags.lengths().clone()
    lengths[-1] += 1  # item is SUM: the padding stands in its last bag
    padded = KeyedJaggedTensor(
        KEYS, torch.cat([bags.values(), torch.tensor([-1])]), lengths=lengths
    )
    assert torch.allclose(served(padded).values(), served(bags).values(), atol=1e-5)
