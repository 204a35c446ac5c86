"""What a bag means, case by case: what users report goes wrong in embedding collections.

Every case runs with the fused and the stock lookup, in eager mode and under TorchRec's tracer.
"""

import logging

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor, KeyedTensor
from torchrec.fx import symbolic_trace

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules import bags as bags_module

SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}  # sums and rows in both memories
INT_TYPES = [torch.int32, torch.int64]


@pytest.fixture(params=["fused", "stock"])
def lookup(request) -> str:
    return request.param


@pytest.fixture(params=["eager", "traced"])
def served(request, lookup, collection_of, swap_of):
    """Return a function from tables and options to (stock collection, what serves them)."""

    def make(tables, *, is_weighted=False, **options):
        stock = collection_of(tables, is_weighted=is_weighted)
        module = swap_of(stock, **{"lookup": lookup, **SPLIT, **options})
        if request.param == "traced":
            return stock, symbolic_trace(nn.Sequential(module))
        return stock, module

    return make


@pytest.fixture
def counted(lookup, collection_of, swap_of):
    """Return a function from a table, a batch and options to (result, ids asked for, rows read)."""

    def make(table, batch, **options):
        module = swap_of(collection_of([table]), **{"lookup": lookup, **SPLIT, **options})
        with module.counting_reads() as reads:
            values = module(batch).values()
        return values, *reads[0].tolist()

    return make


def rows_of(stock, name="t_item"):
    return stock.embedding_bags[name].weight.detach()


def assert_same(ours, stock):
    assert ours.keys() == stock.keys()
    assert ours.length_per_key() == stock.length_per_key()
    assert ours.values().dtype == stock.values().dtype
    assert torch.equal(ours.values(), stock.values())


# Empty bags and batches


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("given", ["lengths", "offsets", "no offsets at all"])
def test_a_batch_of_no_bags_has_a_row_for_none(served, table_of, pooling, given):
    tables = [table_of(pooling=pooling), table_of("t_user", features=("user",), dim=6)]
    _, module = served(tables)
    none = torch.zeros(0, dtype=torch.int64)
    layout = {
        "lengths": {"lengths": none},
        "offsets": {"offsets": torch.zeros(1, dtype=torch.int64)},
        "no offsets at all": {"offsets": none},
    }[given]
    pooled = module(KeyedJaggedTensor(keys=["item", "user"], values=none, **layout))
    assert pooled.values().shape == (0, 10)
    assert {key: column.shape for key, column in pooled.to_dict().items()} == {
        "item": (0, 4),
        "user": (0, 6),
    }


def test_bags_without_ids_are_zero(served, table_of, batch_of):
    _, module = served([table_of()])
    assert torch.equal(module(batch_of({"item": [[], [], []]})).values(), torch.zeros(3, 4))


def test_the_mean_of_no_ids_is_zero(served, table_of, batch_of):
    stock, module = served([table_of(pooling="mean")])
    batch = batch_of({"item": [[1, 9], []]})
    assert_same(module(batch), stock(batch))
    assert torch.equal(module(batch).values()[1], torch.zeros(4))


# Types of ids, lengths and offsets


@pytest.mark.parametrize("ids", INT_TYPES)
@pytest.mark.parametrize("bounds", INT_TYPES)
def test_every_integer_type_gives_the_same(served, table_of, batch_of, ids, bounds):
    stock, module = served([table_of()])
    bags = {"item": [[1, 2, 7], [], [5, 3, 3]]}
    want = stock(batch_of(bags))
    batch = batch_of(bags, ids=ids, lengths=bounds)
    assert_same(module(batch), want)
    offsets = torch.tensor([0, 3, 3, 6], dtype=bounds)
    assert_same(
        module(KeyedJaggedTensor(keys=["item"], values=batch.values(), offsets=offsets)), want
    )
    both = KeyedJaggedTensor(
        keys=["item"], values=batch.values(), lengths=batch.lengths(), offsets=offsets
    )
    assert_same(module(both), want)


def test_ids_that_are_not_integers_are_refused(served, table_of):
    _, module = served([table_of()])
    batch = KeyedJaggedTensor(keys=["item"], values=torch.ones(2), lengths=torch.tensor([2]))
    with pytest.raises(GraceError, match=r"ids are torch\.float32"):
        module(batch)


# Ids outside the table, and padding


@pytest.mark.parametrize("bad", [20, -2, 2**31 + 1, 2**40])
def test_by_default_an_id_outside_the_table_is_an_error(served, table_of, batch_of, bad):
    """The message names table, feature, sample, id and rows."""
    _, module = served([table_of(features=("item", "seen")), table_of("t_b", features=("b",))])
    batch = batch_of({"b": [[1], [2]], "seen": [[1, 2], [3, 0, bad]], "item": [[1], []]})
    message = f"table 't_item', feature 'seen': sample 1 holds id {bad}, the table has 20 rows"
    with pytest.raises(ValueError, match=message):
        module(batch)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_an_id_outside_the_table_can_be_left_out(served, table_of, batch_of, pooling):
    stock, module = served([table_of(pooling=pooling)], bad_ids="drop")
    rows = rows_of(stock)
    divisor = 4 if pooling == "mean" else 1  # the mean is over the bag as it was given
    pooled = module(batch_of({"item": [[1, 99, 2, -5], [2**40]]})).values()
    assert torch.equal(pooled, torch.stack([(rows[1] + rows[2]) / divisor, torch.zeros(4)]))


def test_an_id_outside_the_table_can_read_row_0(served, table_of, batch_of):
    """Row 0 has a sum with item 1 here; the bad id must not be taken for a request of item 0."""
    stock, module = served([table_of()], bad_ids="zero_row", clusters=((0, 1),), num_hbm_sums=1)
    rows = rows_of(stock)
    pooled = module(batch_of({"item": [[99, 1], [0, 1], [-7]]})).values()
    assert torch.equal(pooled, torch.stack([rows[0] + rows[1], rows[0] + rows[1], rows[0]]))


def test_an_id_that_reads_row_0_is_no_cluster_hit(counted, table_of, batch_of):
    batch = batch_of({"item": [[99, 1], [0, 1], [-7]]})
    layout = {"clusters": ((0, 1),), "num_hbm_sums": 1, "hot_items": ()}
    assert counted(table_of(), batch, bad_ids="zero_row", **layout)[1:] == (5, 4)
    assert counted(table_of(), batch, bad_ids="drop", **layout)[1:] == (3, 2)


@pytest.mark.parametrize("policy", ["raise", "drop", "zero_row"])
def test_minus_one_is_padding_and_adds_nothing(served, table_of, batch_of, policy):
    stock, module = served([table_of()], bad_ids=policy)
    padded = batch_of({"item": [[1, -1, 2], [-1], [-1, -1, 7]]})
    want = stock(batch_of({"item": [[1, 2], [], [7]]}))
    assert_same(module(padded), want)


@pytest.mark.parametrize("policy", ["raise", "drop", "zero_row"])
def test_padding_does_not_keep_items_from_their_sum(counted, table_of, batch_of, policy):
    _, asked, read = counted(table_of(), batch_of({"item": [[1, -1, 2]]}), bad_ids=policy)
    assert (asked, read) == (2, 1)


def test_the_mean_counts_padding(served, table_of, batch_of):
    """As the lengths say: division by the bag as it was given."""
    stock, module = served([table_of(pooling="mean")])
    rows = rows_of(stock)
    pooled = module(batch_of({"item": [[1, -1, 2, -1]]})).values()
    assert torch.equal(pooled, ((rows[1] + rows[2]) / 4).unsqueeze(0))


# Lengths and offsets that fit nothing


def test_lengths_must_be_keys_times_stride(served, table_of):
    _, module = served([table_of()])
    ids = torch.ones(2114, dtype=torch.int64)
    lengths = torch.ones(2114, dtype=torch.int64)
    with pytest.raises(GraceError, match="2114 lengths for 1 features of stride 105; keys x"):
        module(KeyedJaggedTensor(keys=["item"], values=ids, lengths=lengths, stride=105))
    with pytest.raises(GraceError, match="2114 lengths for 3 features; keys x stride expected"):
        module(KeyedJaggedTensor(keys=["item", "a", "b"], values=ids, lengths=lengths))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2, 3], "offsets fall at bag 1 from 3 to 2"),
        ([0, 2, 9], "lengths add up to 9, there are 3 ids"),
        ([0, 1, 2], "lengths add up to 2, there are 3 ids"),
        ([1, 2, 3], "offsets do not start at 0"),
        ([-1, 2, 3], "offsets do not start at 0"),
        ([0, -(2**40), 3], "offsets fall at bag 0 from 0 to -1099511627776"),
        ([0, 2**62, 3], "offsets fall at bag 1"),
    ],
)
def test_offsets_that_read_elsewhere_are_refused(served, table_of, offsets, message):
    _, module = served([table_of()])
    ids = torch.tensor([1, 2, 3])
    with pytest.raises(GraceError, match=message):
        module(KeyedJaggedTensor(keys=["item"], values=ids, offsets=torch.tensor(offsets)))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([4, -1], r"length below 0 \(-1\) at bag 1"), ([2, 2], "add up to 4, there are 3 ids")],
)
def test_lengths_that_read_elsewhere_are_refused(served, table_of, lengths, message):
    _, module = served([table_of()])
    ids = torch.tensor([1, 2, 3])
    with pytest.raises(GraceError, match=message):
        module(KeyedJaggedTensor(keys=["item"], values=ids, lengths=torch.tensor(lengths)))


@pytest.mark.parametrize("bags", [{"hist": [1]}, {"item": torch.tensor([1])}, [1], None])
def test_what_is_no_bags_is_told_by_its_type(served, table_of, bags):
    _, module = served([table_of()])
    kind = "None" if bags is None else f"a {type(bags).__name__}"
    with pytest.raises(GraceError, match=f"batch is {kind}, a KeyedJaggedTensor is expected"):
        module(bags)


def test_pooled_values_are_no_bags(served, table_of):
    _, module = served([table_of()])
    pooled = KeyedTensor(["item"], [1], torch.zeros(1, 1))  # has keys() too
    with pytest.raises(GraceError, match="batch is a KeyedTensor, a KeyedJaggedTensor is expected"):
        module(pooled)


def test_lengths_and_offsets_that_contradict_each_other_are_refused(served, table_of):
    _, module = served([table_of()])
    batch = KeyedJaggedTensor(
        keys=["item"],
        values=torch.tensor([1, 2]),
        lengths=torch.tensor([1, 1]),
        offsets=torch.tensor([0, 2, 2]),
    )
    with pytest.raises(GraceError, match="offsets 0 to 2 at bag 0, its length is 1"):
        module(batch)


def test_variable_numbers_of_bags_are_refused_before_anything_else(served, table_of):
    """Also where the ids are bad: nothing has been looked at."""
    _, module = served([table_of(), table_of("t_user", features=("user",))])
    batch = KeyedJaggedTensor(
        keys=["item", "user"],
        values=torch.tensor([999, 2, 3]),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=(["item", "user"], torch.tensor([[0, 1, 0], [0, 0, 0]])),
    )
    with pytest.raises(NotSupported, match=r"variable number of bags .* \(VBE\)"):
        module(batch)


def test_a_missing_feature_is_named(served, table_of, batch_of):
    _, module = served([table_of(), table_of("t_user", features=("user",))])
    with pytest.raises(GraceError, match=r"lacks feature 'user'; it has \['item', 'other'\]"):
        module(batch_of({"item": [[1]], "other": [[2]]}))


# Weights


@pytest.fixture
def unwarned(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(bags_module, "_warned", set())


def test_weights_of_an_unweighted_collection_are_ignored_and_said_once(
    served, table_of, batch_of, caplog, unwarned
):
    stock, module = served([table_of()])
    bags, weights = {"item": [[1, 2], [7]]}, {"item": [[70.0, 70.0], [2.0]]}
    batch = batch_of(bags, weights)
    with caplog.at_level(logging.WARNING, logger="grace_torchrec"):
        assert_same(module(batch), stock(batch_of(bags)))
        assert_same(module(batch), stock(batch))
    assert len(caplog.records) == 1
    assert "they are ignored, as an unsharded EmbeddingBagCollection does" in caplog.text


def test_strict_refuses_weights_that_would_be_ignored(served, table_of, batch_of):
    _, module = served([table_of()], strict=True)
    with pytest.raises(NotSupported, match="drop the weights or build it with is_weighted=True"):
        module(batch_of({"item": [[1, 2]]}, {"item": [[1.0, 1.0]]}))
    assert module(batch_of({"item": [[1, 2]]})).values().shape == (1, 4)


def test_weights_are_applied(served, table_of, batch_of):
    stock, module = served([table_of()], is_weighted=True)
    batch = batch_of(
        {"item": [[1, 2, 7], [], [3, 3, 4, 5]]},
        {"item": [[2.0, 2.0, 1.0], [], [0.5, 1.0, 0.5, -0.5]]},
    )
    assert_same(module(batch), stock(batch))


def test_only_equal_weights_use_a_sum(table_of, batch_of, collection_of, swap_of, lookup):
    module = swap_of(collection_of([table_of()], is_weighted=True), lookup=lookup)
    bags = {"item": [[1, 2], [1, 2], [1, 1, 2, 2]]}
    with module.counting_reads() as reads:
        module(batch_of(bags, {"item": [[3.0, 3.0], [3.0, 1.0], [0.5, 2.0, 2.0, 0.5]]}))
    assert reads[0].tolist() == [8, 1 + 2 + 2]


@pytest.mark.parametrize("weights", [None, torch.ones(2), torch.ones(3, 1)])
def test_a_weighted_collection_needs_a_weight_for_each_id(served, table_of, weights):
    _, module = served([table_of()], is_weighted=True)
    batch = KeyedJaggedTensor(
        keys=["item"],
        values=torch.tensor([1, 2, 3]),
        lengths=torch.tensor([3]),
        weights=weights,
    )
    with pytest.raises(GraceError, match=r"no weights|one for each id expected"):
        module(batch)


def test_a_weighted_mean_is_refused_as_stock_does(
    table_of, batch_of, collection_of, swap_of, lookup
):
    stock = collection_of([table_of(pooling="mean")], is_weighted=True)
    batch = batch_of({"item": [[1, 2]]}, {"item": [[1.0, 2.0]]})
    module = swap_of(stock, lookup=lookup)
    with pytest.raises(NotImplementedError):
        stock(batch)
    for refuses in (lambda: module(batch), lambda: symbolic_trace(nn.Sequential(module))):
        with pytest.raises(NotImplementedError, match="'t_item' is weighted and pools by MEAN"):
            refuses()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_of_the_weights_is_an_error_not_none(served, table_of, frozen):
    stock, module = served([table_of()], is_weighted=True)
    rows_of(stock)
    for parameter in module.parameters():
        parameter.requires_grad_(not frozen)
    weights = torch.ones(2, requires_grad=True)
    batch = KeyedJaggedTensor(
        keys=["item"], values=torch.tensor([1, 2]), lengths=torch.tensor([2]), weights=weights
    )
    pooled = module(batch).values()
    with pytest.raises(NotImplementedError, match="inference only"):
        pooled.sum().backward()


# MEAN, shared tables and features, repeated ids


def test_a_mean_over_all_memories_is_divided_once(counted, table_of, batch_of, collection_of):
    """Two originals, a hot row, a sum in HBM and a sum in host memory stand for eight ids."""
    table = table_of(pooling="mean")
    batch = batch_of({"item": [[1, 2, 3, 4, 5, 7, 0, 9]]})
    layout = {"num_hbm_sums": 1}  # {1, 2} in HBM, those of {3, 4, 5} in host memory
    values, asked, read = counted(table, batch, **layout)
    assert torch.equal(values, collection_of([table])(batch).values())
    assert (asked, read) == (8, 5)


def test_a_table_read_by_two_features(served, table_of, batch_of):
    stock, module = served([table_of(features=("item", "seen"))])
    batch = batch_of({"seen": [[1, 2], []], "item": [[3], [4, 5, 3]]})
    assert_same(module(batch), stock(batch))
    assert module(batch).keys() == ["item", "seen"]


def test_a_feature_that_reads_two_tables(served, table_of, batch_of):
    tables = [table_of(), table_of("t_b", features=("item", "b"), dim=6, pooling="mean")]
    stock, module = served(tables)
    batch = batch_of({"b": [[7], [1, 2]], "item": [[1, 2, 3, 5], [9]]})
    assert_same(module(batch), stock(batch))
    assert module(batch).keys() == ["item@t_item", "item@t_b", "b"]


def test_of_features_of_one_name_the_last_counts_as_in_stock(served, table_of):
    stock, module = served([table_of()])
    batch = KeyedJaggedTensor(
        keys=["item", "item"], values=torch.tensor([1, 2]), lengths=torch.tensor([1, 1])
    )
    assert_same(module(batch), stock(batch))


@pytest.mark.parametrize(
    ("bag", "rows_read"),
    [([1, 1, 2], 2), ([3] * 40, 40), ([1, 2] * 40, 40), ([4, 3, 4, 5, 5, 4], 3)],
)
def test_a_repeated_id_counts_each_time(
    served, counted, table_of, batch_of, collection_of, bag, rows_read
):
    stock, module = served([table_of()])
    batch = batch_of({"item": [bag]})
    want = rows_of(stock)[bag].sum(0, keepdim=True)
    assert torch.equal(module(batch).values(), want)
    assert counted(table_of(), batch)[1:] == (len(bag), rows_read)
