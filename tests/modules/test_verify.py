"""verify: equal where the swap is right, unequal where one number is wrong, and honest counts."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor

from bench.cases.traffic import traffic
from grace_torchrec import rewrite
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.grouping import paper_greedy
from grace_torchrec.modules import freshness
from grace_torchrec.modules.verify import ROUNDING, verify
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags

LAYOUTS = {
    "host-fused": {},
    "split-fused": {"num_hbm_sums": 2, "hot_items": (7, 9)},
    "split-stock": {"num_hbm_sums": 2, "hot_items": (7, 9), "lookup": "stock"},
    "hbm-stock": {"originals": "hbm", "num_hbm_sums": 3, "lookup": "stock"},
}
BAGS = [[3, 4, 5, 7, 1, 2, 9, 9], [5, 3, 3, 4], [], [-1, 1, 2, -1]]  # padding, repeated ids
READS = (4, 2, 0, 1)  # 345 7 12 9 9 | 345 3 | | 12
BAD = [[3, 4, 99, 5], [-7, 1, 2], [500], [0]]
TRACES = ("ml100k", "retail", "steam200k", "citeulike_a")


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request):
    return request.param


@pytest.fixture
def tables(table_of):
    """Two tables of different dimension; ``t_page`` is read by two features, one of them shared."""
    return [
        table_of("t_item", features=("item",)),
        table_of("t_page", features=("page", "item"), dim=8),
    ]


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_right_swap_is_equal(
    table_of, collection_of, swap_of, batch_of, layout, pooling, dtype
) -> None:
    tables = [
        table_of("t_item", features=("item",), pooling=pooling, dtype=dtype),
        table_of("t_page", features=("page", "item"), dim=8, dtype=dtype),
    ]
    model = nn.Sequential(swap_of(collection_of(tables, whole=False), **layout))
    batches = [batch_of({"page": BAGS, "item": BAGS[::-1]}), batch_of({"page": [], "item": []})]
    result = verify(model, batches)
    assert result.equal
    assert result.batches == 2
    assert [table.table for table in result.tables] == ["0.t_item", "0.t_page"]
    bound = ROUNDING[{"fp32": torch.float32, "fp16": torch.float16}[dtype]]
    assert 0 <= result.max_rel_error <= bound
    assert all(table.stale is None for table in result.tables)


def test_a_batch_that_the_model_refuses_is_named(table_of, collection_of, swap_of, batch_of):
    class Three(nn.Sequential):
        def forward(self, dense, bags, more):
            return super().forward(bags)

    model = Three(swap_of(collection_of([table_of()])))
    bags = batch_of({"item": BAGS})
    with pytest.raises(GraceError, match=r"the model refuses batch 1: TypeError.*missing 2"):
        verify(model, [(1, bags, 2), bags])


@pytest.mark.parametrize("policy", ["drop", "zero_row"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_every_policy_for_bad_ids_is_compared_by_its_own_meaning(
    table_of, collection_of, swap_of, batch_of, layout, pooling, policy
) -> None:
    stock = collection_of([table_of(pooling=pooling)], whole=False)
    result = verify(swap_of(stock, bad_ids=policy, **layout), [batch_of({"item": BAD})])
    assert result.equal
    kept = 6 if policy == "drop" else 9  # of the nine ids three are outside the table
    assert result.tables[0].ids == kept


def test_bad_ids_raise_where_the_plan_says_so(table_of, collection_of, swap_of, batch_of) -> None:
    swapped = swap_of(collection_of([table_of()]))
    with pytest.raises(ValueError, match="99"):
        verify(swapped, [batch_of({"item": BAD})])
    assert not swapped._forward_hooks
    assert verify(swapped, [batch_of({"item": BAGS})]).equal


def test_weighted_bags_are_equal(table_of, collection_of, swap_of, batch_of, layout) -> None:
    stock = collection_of([table_of()], is_weighted=True, whole=False)
    weights = [[0.5] * 4 + [-2.0] * 4, [1.0, -1.0, 1.0, 1.0], [], [3.0, 2.0, 2.0, 1.0]]
    result = verify(swap_of(stock, **layout), [batch_of({"item": BAGS}, {"item": weights})])
    assert result.equal
    assert result.tables[0].rows_read < result.tables[0].ids


def test_sums_that_nearly_cancel_are_judged_by_what_was_added(
    table_of, collection_of, swap_of, batch_of
) -> None:
    stock = collection_of([table_of()], whole=False)
    rows = stock.embedding_bags["t_item"].weight.data
    rows[4] = -rows[3] * (1 + 1e-6)
    rows[:] *= 1e4
    result = verify(swap_of(stock), [batch_of({"item": [[3, 4], [3, 4, 5], [1, 3, 4, 2]]})])
    assert result.equal


# What is wrong is found


def forge(swapped, row, tier="host"):
    """Write a stored row by hand and record it as built: the guards of forward are fooled."""
    stored = swapped.stored(0, tier)
    stored.data[row, 1] += 0.5
    freshness.record_built(swapped.weight(0), stored)
    return stored


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("row", range(5))
def test_one_wrong_sum_is_found(table_of, collection_of, swap_of, batch_of, row, dtype) -> None:
    swapped = swap_of(collection_of([table_of(dtype=dtype)]))
    forge(swapped, row)
    result = verify(swapped, [batch_of({"item": [[0]]})])  # no bag reads the wrong row
    assert not result.equal
    assert result.tables[0].stale == f"stored row {row} is not the sum of its rows"


def test_a_wrong_hot_row_is_found(table_of, collection_of, swap_of, batch_of) -> None:
    swapped = swap_of(collection_of([table_of()]), num_hbm_sums=2, hot_items=(7, 9))
    forge(swapped, 3, "hbm")
    assert "stored row 3" in verify(swapped, [batch_of({"item": [[0]]})]).tables[0].stale


def test_a_wrong_code_is_found_by_the_values(
    table_of, collection_of, swap_of, batch_of, layout
) -> None:
    swapped = swap_of(collection_of([table_of()], whole=False), **layout)
    code = swapped.rewriter.item_codes()[0]
    code[3], code[4] = code[4].clone(), code[3].clone()
    harmless = verify(swapped, [batch_of({"item": [[3], [4], [3, 4], [3, 4, 5]]})])
    wrong = verify(swapped, [batch_of({"item": [[0]]}), batch_of({"item": [[3, 5]]})])
    assert harmless.equal
    assert not wrong.equal
    assert wrong.tables[0].stale is None
    assert wrong.max_abs_error > 0.1
    assert wrong.max_rel_error > 0.1


def test_a_wrong_table_does_not_hide_behind_a_right_one(
    tables, collection_of, swap_of, batch_of
) -> None:
    swapped = swap_of(collection_of(tables))
    forge(swapped, 0)
    result = verify(swapped, [batch_of({"item": BAGS, "page": BAGS})])
    assert [table.equal for table in result.tables] == [False, True]
    assert not result.equal
    assert result.batches == 0  # a stale model answers nothing, so nothing was run


def test_a_number_where_stock_has_none_is_found(table_of, collection_of, swap_of, batch_of) -> None:
    stock = collection_of([table_of()])
    stock.embedding_bags["t_item"].weight.data[1:3] = torch.nan
    swapped = swap_of(stock)
    code = swapped.rewriter.item_codes()[0]
    code[1:5] = code[1:5].roll(2)  # items 1 and 2 now find the sum of 3 and 4
    result = verify(swapped, [batch_of({"item": [[1, 2]]})])
    assert not result.equal
    assert result.max_abs_error == result.max_rel_error == float("inf")


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_nan_and_infinity_are_equal_to_themselves(
    table_of, collection_of, swap_of, batch_of, layout, dtype
) -> None:
    stock = collection_of([table_of(dtype=dtype)])
    rows = stock.embedding_bags["t_item"].weight.data
    rows[1], rows[3], rows[4], rows[9] = torch.nan, torch.inf, -torch.inf, torch.inf
    bags = [[1, 2], [3, 5], [3, 4], [9], [0, 2], [1, 3, 9]]
    result = verify(swap_of(stock, **layout), [batch_of({"item": bags})])
    assert result.equal
    assert result.non_finite == 5 * rows.shape[1]  # all but the bag [0, 2]


# Calls


class ByKeyword(nn.Module):
    """Calls its collection with a keyword, and returns something else than a KeyedTensor."""

    def __init__(self, collection) -> None:
        super().__init__()
        self.ebc = collection

    def forward(self, scale, bags):
        return scale * self.ebc(features=bags).values().sum()


def test_batches_are_arguments_of_the_model(table_of, collection_of, swap_of, batch_of) -> None:
    model = ByKeyword(swap_of(collection_of([table_of()])))
    result = verify(model, ((2.0, batch_of({"item": BAGS})) for _ in range(3)))
    assert result.equal
    assert result.batches == 3
    assert result.tables[0].ids == 3 * 14


def test_two_modules_are_compared_each_with_its_own_tables(
    table_of, collection_of, swap_of, batch_of
) -> None:
    model = nn.ModuleDict(
        {
            name: swap_of(collection_of([table_of(f"t_{name}", features=("item",))], seed=seed))
            for seed, name in enumerate("ab")
        }
    )
    model.forward = lambda bags: [module(bags) for module in model.values()]
    forge(model["a"], 1)
    result = verify(model, [batch_of({"item": BAGS})])
    assert {table.table: table.equal for table in result.tables} == {"a.t_a": False, "b.t_b": True}


def test_without_batches_nothing_is_proven(table_of, collection_of, swap_of) -> None:
    with pytest.raises(GraceError, match="no batches"):
        verify(swap_of(collection_of([table_of()])), [])


def test_a_stock_model_is_refused(table_of, collection_of) -> None:
    with pytest.raises(GraceError, match="no swapped module"):
        verify(nn.Sequential(collection_of([table_of()])), [])


def test_training_mode_is_refused(table_of, collection_of, swap_of, batch_of) -> None:
    with pytest.raises(NotSupported, match="inference only"):
        verify(swap_of(collection_of([table_of()])).train(), [batch_of({"item": BAGS})])


class Half(nn.Module):
    """Calls one of its two collections."""

    def __init__(self, used, unused) -> None:
        super().__init__()
        self.used, self.unused = used, unused

    def forward(self, bags):
        return self.used(bags).values()


def test_a_table_that_no_batch_reaches_is_not_proven(
    table_of, collection_of, swap_of, batch_of
) -> None:
    """Neither a module that the model never calls, nor a table of empty bags."""
    two = [table_of("t_item", features=("item",)), table_of("t_page", features=("page",))]
    model = Half(swap_of(collection_of(two)), swap_of(collection_of([table_of("t_other")])))
    result = verify(model, [batch_of({"item": BAGS, "page": [[], [-1], [], []]})])
    assert [(t.table, t.equal) for t in result.tables] == [
        ("used.t_item", True), ("used.t_page", False), ("unused.t_other", False),
    ]  # fmt: skip
    assert not result.equal
    assert [t.unproven is None for t in result.tables] == [True, False, False]
    assert "no id of it was compared" in result.tables[2].unproven


def test_a_table_without_sums_needs_no_proof(table_of, collection_of, swap_of, batch_of) -> None:
    two = [table_of("t_item", features=("item",)), table_of("t_page", features=("page",))]
    swapped = swap_of(collection_of(two), {"t_page": {"clusters": None}})
    assert verify(swapped, [batch_of({"item": BAGS, "page": [[], [], [], []]})]).equal


def test_the_bound_is_that_of_the_rows_as_they_are(
    table_of, collection_of, swap_of, batch_of
) -> None:
    """Rows may be converted after the plan: half rows round more, float rows less than it says."""
    batches = [batch_of({"item": BAGS})]
    halved = swap_of(collection_of([table_of()], whole=False)).half()
    result = verify(halved, batches)
    assert result.max_rel_error > ROUNDING[torch.float32]
    assert result.equal
    widened = swap_of(collection_of([table_of(dtype="fp16")], whole=False)).float()
    stored = widened.stored(0, "host")
    stored.data *= 1 + 2e-4  # within the rounding of half rows, not within that of float rows
    freshness.record_built(widened.weight(0), stored)
    checks = [check for check in verify(widened, batches).tables if check.stale is None]
    assert not any(check.equal for check in checks)


# Counts


def test_reads_are_counted_as_by_hand(table_of, collection_of, swap_of, batch_of, layout) -> None:
    swapped = swap_of(collection_of([table_of()]), **layout)
    for bag, reads in zip(BAGS, (5, 2, 0, 1), strict=True):
        (table,) = verify(swapped, [batch_of({"item": [bag]})]).tables
        assert (table.ids, table.rows_read) == (sum(i >= 0 for i in bag), reads)
    (table,) = verify(swapped, [batch_of({"item": BAGS})] * 2).tables
    assert (table.ids, table.rows_read) == (28, 16)
    assert table.cut == 1 - 16 / 28
    assert verify(swapped, [batch_of({"item": [[]]})]).tables[0].cut == 0


def batches_of(trace, size=512):
    """The bags of a trace, ids in source order."""
    for first in range(0, trace.num_bags, size):
        part = trace.take(np.arange(first, min(first + size, trace.num_bags)))
        yield KeyedJaggedTensor(
            keys=["item"],
            values=torch.from_numpy(part.ids_L.astype(np.int64)),
            lengths=torch.from_numpy(np.diff(part.offsets_B1)),
        )


@pytest.mark.parametrize("name", TRACES)
def test_the_swapped_module_reads_what_the_bench_counts(
    trace_path, name, table_of, collection_of, swap_of
) -> None:
    split = split_bags(read_npz(trace_path(name)), 0)
    num_items = split.test.num_items
    told = traffic(split, "grace", 1.0, 0, 256, None)
    limit = int(told["picked"].removeprefix("size_limit="))
    sums = paper_greedy.fit(split.train, num_items, 0, size_limit=limit)
    offsets, members = sums.code.listed()
    clusters = [members[a:b] for a, b in itertools.pairwise(offsets)]
    stock = collection_of([table_of(num_rows=num_items)])
    for lookup in ("fused", "ahead", "stock"):
        swapped = swap_of(stock, clusters=clusters, num_hbm_sums=sums.num_sums // 2, lookup=lookup)
        batches = batches_of(split.test)
        result = verify(swapped, rewrite(batches, swapped) if lookup == "ahead" else batches)
        assert result.equal
        assert result.max_abs_error == 0  # whole numbers
        (table,) = result.tables
        assert (table.ids, table.rows_read) == (told["rows_before"], told["rows_after"])
        assert table.rows_read == count_reads(split.test, sums).rows_after
        assert table.cut == told["cut"]


def test_a_wrong_code_on_large_half_rows_is_found(table_of, collection_of, swap_of) -> None:
    """Sums of absolute values pass 65,504, the largest half: they are formed in float64."""
    stock = collection_of([table_of(num_rows=40, dtype="fp16")])
    weight = stock.embedding_bags["t_item"].weight
    weight.data[:] = torch.where(torch.arange(40) % 2 == 0, 500.0, -500.0).half().unsqueeze(1)
    swapped = swap_of(stock, clusters=[(0, 2, 4), (1, 3, 5)])
    features = swapped.input_names
    bag = torch.tensor([0, 2, 1, 3] * 50)
    batch = KeyedJaggedTensor(keys=features, values=bag, lengths=torch.tensor([bag.numel()]))
    assert verify(nn.Sequential(swapped), [batch]).equal
    code = swapped.rewriter.item_code_0
    code[[0, 2, 4]] = code[[1, 3, 5]]
    assert not verify(nn.Sequential(swapped), [batch]).equal


@pytest.mark.parametrize("length", [100, 10_000, 70_000])
def test_the_rounding_of_long_bags_is_no_difference(
    table_of, collection_of, swap_of, length
) -> None:
    stock = collection_of([table_of(num_rows=300)], whole=False)
    stock.embedding_bags["t_item"].weight.data.abs_()
    swapped = swap_of(stock, clusters=[range(5), range(5, 9)])
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 300, length))
    batch = KeyedJaggedTensor(keys=swapped.input_names, values=ids, lengths=torch.tensor([length]))
    assert verify(nn.Sequential(swapped), [batch]).equal


# Bags that arrive rewritten

OF_THREE = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9, -1], [0]], "c": [[2], [1, 1, 2, 2]]}


def test_verify_takes_rewritten_batches(three, swap_three, batch_of):
    model = nn.Sequential(swap_three())
    batches = [batch_of(OF_THREE), batch_of({key: [[3, 4, 5]] for key in OF_THREE})]
    result = verify(model, rewrite(batches, model))
    assert result.equal
    assert result.batches == 2
    assert all(check.rows_read < check.ids for check in result.tables)
    with torch.no_grad():
        model[0].stored(0, "hbm").data.add_(1)
    assert not verify(model, rewrite(batches, model)).equal


def test_verify_rewrites_plain_bags_for_tables_planned_ahead(swap_three, batch_of):
    """Plain bags would read plain rows, and prove nothing of the sums."""
    model = nn.Sequential(swap_three())
    batches = [batch_of(OF_THREE)]
    plain = verify(model, batches)
    ahead = verify(model, rewrite(batches, model))
    assert plain.equal
    for as_plain, as_ahead in zip(plain.tables, ahead.tables, strict=True):
        proven = as_plain.rewritten_rows_read
        assert (as_plain.rows_read if proven is None else proven) == as_ahead.rows_read
        assert as_ahead.rewritten_rows_read is None
    assert any((t.rewritten_cut or 0) > 0 for t in plain.tables)


def test_plain_bags_save_nothing_of_tables_planned_ahead_and_verify_says_so(swap_three, batch_of):
    """What is counted is what serving the batches as they are reads, not what the proof read."""
    module = swap_three()
    model, batch = nn.Sequential(module), batch_of(OF_THREE)
    with module.counting_reads() as reads, torch.no_grad():
        model(batch)
    served = reads.tolist()
    result = verify(model, [batch, *rewrite([batch], model)])
    by_table = {plan.spec.key.rpartition(".")[2]: plan for plan in module.table_plans}
    table_of = [t for t, plan in enumerate(module.table_plans) for _ in plan.spec.features]
    alone = verify(model, [batch])
    for t, check in enumerate(alone.tables):
        rows = sum(served[f][1] for f in range(len(table_of)) if table_of[f] == t)
        assert check.rows_read == rows
        ahead = by_table[check.table.rpartition(".")[2]].lookup == "ahead"
        assert (check.rewritten_rows_read is not None) == ahead
        if ahead:
            assert (check.rows_read, check.cut) == (check.ids, 0.0)
    assert "1 of 2 batches came plain" in result.note
    assert verify(model, rewrite([batch], model)).note == ""
