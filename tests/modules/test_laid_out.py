"""Laid out: whatever moves a table, or changes what it means, counts from the next batch on."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

from grace_torchrec.errors import StaleSums

KEYS = ("a", "b", "c")


@pytest.fixture(params=["clusters", "subsets"])
def swap_three(request, table_of, collection_of, swap_of):
    """Return a function that swaps three tables: split sums, sums on host, no sums."""

    def make():
        tables = [
            table_of("t_a", features=("a",), dim=3),
            table_of("t_b", features=("b", "a"), dim=20, pooling="mean"),
            table_of("t_c", features=("c",), dim=2, dtype="fp16"),
        ]
        split = {"num_hbm_sums": 2, "hot_items": (7,)}
        stock = collection_of(tables, whole=False)
        return swap_of(stock, {"t_a": split, "t_c": {"clusters": ()}}, code=request.param)

    return make


def made(ids=(1, 2, 3, 4, 5, 6)):
    """Return a maker of a batch of features a, b, c, one bag each of two ids."""
    return lambda: KeyedJaggedTensor(
        keys=[*KEYS], values=torch.tensor(ids), offsets=torch.tensor([0, 2, 4, 6])
    )


def test_codes_changed_in_place_count_from_the_next_batch_on(assert_same, swap_three) -> None:
    module, make = swap_three(), made()
    before = assert_same(module, make)
    assert before[3] == [[2, 1], [2, 1], [2, 1], [2, 2]]  # a of t_a; b and a of t_b; c of t_c
    module.rewriter.item_code_1.fill_(-1)
    assert assert_same(module, make)[3] == [[2, 1], [2, 2], [2, 2], [2, 2]]


def test_codes_and_hot_rows_given_anew_count_from_the_next_batch_on(
    assert_same, swap_three
) -> None:
    module, make = swap_three(), made((1, 2, 7, 7, 5, 6))
    assert assert_same(module, make)[3][0] == [2, 1]
    rewriter = module.rewriter
    rewriter.item_code_0 = torch.full_like(rewriter.item_code_0, -1)
    assert assert_same(module, make)[3][0] == [2, 2]
    hot = rewriter.hot_row_0.clone()
    hot[1] = hot[7]  # a lie that only shows in the answer
    before = assert_same(module, make)[2]
    rewriter.hot_row_0 = hot
    assert not torch.equal(assert_same(module, make)[2], before)


@pytest.mark.parametrize("table", [0, 1, 2])
def test_other_data_of_a_parameter_is_read_or_refused(assert_same, swap_three, table) -> None:
    """Tables with stored rows are stale then; the table without any answers by its new rows."""
    module, make = swap_three(), made()
    before = assert_same(module, make)
    weight = module.weight(table)
    weight.data = weight.data + 1
    after = assert_same(module, make)
    if table < 2:
        assert after[0] is StaleSums
    else:
        assert not torch.equal(after[2], before[2])
    module.rebuild_sums()
    assert not torch.equal(assert_same(module, make)[2], before[2])


@pytest.mark.parametrize("table", [0, 2])
def test_fewer_rows_in_the_same_place_are_noticed(assert_same, swap_three, table) -> None:
    module, make = swap_three(), made()
    answered = assert_same(module, make)
    weight = module.weight(table)
    weight.data = weight.data[:2]  # neither address nor version changes
    assert assert_same(module, make)[0] is not answered[0]


@pytest.mark.parametrize("table", [0, 2])
def test_another_parameter_or_module_in_place_of_a_table_is_noticed(
    assert_same, swap_three, table
) -> None:
    module, make = swap_three(), made()
    before = assert_same(module, make)[2]
    for step in ("same data", "parameter", "module"):
        name = f"t_{KEYS[table]}"
        bags = next(
            inner.embedding_bags
            for inner in module.inner_collections().values()
            if name in inner.embedding_bags
        )
        rows = nn.Parameter(bags[name].weight.detach())
        if step != "same data":
            rows = nn.Parameter(rows.detach() + 1)
        if step != "module":
            bags[name].weight = rows
        else:
            bags[name] = nn.EmbeddingBag(*rows.shape, _weight=rows.detach().clone())
        answer, is_same = assert_same(module, make), step == "same data"
        assert answer[0] is StaleSums if table == 0 else torch.equal(answer[2], before) == is_same
        module.rebuild_sums()
        after = assert_same(module, make)[2]
        assert torch.equal(after, before) == is_same
        before = after


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copies_of_a_module_that_served_read_their_own_tables(
    assert_same, swap_three, copied
) -> None:
    module, make = swap_three(), made()
    before = assert_same(module, make)[2]
    twin = copied(module)
    assert torch.equal(assert_same(twin, make)[2], before)
    with torch.no_grad():
        for table in range(3):
            twin.weight(table).add_(1)
    assert assert_same(twin, make)[0] is StaleSums
    twin.rebuild_sums()
    assert not torch.equal(assert_same(twin, make)[2], before)
    assert torch.equal(assert_same(module, make)[2], before)


def test_stored_rows_that_move_in_memory_are_found_again(swap_three) -> None:
    """Sharing moves storages in place; the weights may be shared already."""
    swapped, make = swap_three(), made()
    for table in range(3):
        swapped.weight(table).share_memory_()
    swapped.rebuild_sums()
    with torch.no_grad():
        truth = swapped(make()).values()
        before = swapped._direct._tables
        for inner in swapped.inner_collections().values():
            inner.share_memory()
        assert torch.equal(swapped(make()).values(), truth)
    assert swapped._direct._tables is not before  # views of freed memory may still read right


@torch.no_grad()
def test_features_that_nobody_reads_fill_no_memory(swap_three) -> None:
    module = swap_three()
    wanted = module(made()()).values()
    for number in range(200):
        bags = KeyedJaggedTensor(
            keys=[*KEYS, f"foreign {number}"],
            values=torch.arange(1, 7),
            offsets=torch.tensor([0, 2, 4, 6, 6]),
        )
        assert torch.equal(module(bags).values(), wanted)
    assert len(module._direct._tables._by_keys) < 100
