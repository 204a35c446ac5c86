"""Who reads the rows: fused, stock and mixed collections, and which rows they read."""

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.fx import symbolic_trace

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.lookup import FusedLookup, StockLookup, refuse_unreadable

BAGS = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9], [0]], "c": [[2], [1, 1, 2, 2]]}
SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}


@pytest.fixture
def three(table_of, collection_of):
    """A stock collection of three tables of different width, one of MEAN."""
    return collection_of(
        [
            table_of("t_a", features=("a",), dim=3),
            table_of("t_b", features=("b", "a"), dim=5, pooling="mean"),
            table_of("t_c", features=("c",), dim=2),
        ]
    )


def by_table(*lookups):
    return {f"t_{name}": {"lookup": way} for name, way in zip("abc", lookups, strict=True)}


@pytest.mark.parametrize("first", ["fused", "stock"])
@pytest.mark.parametrize("second", ["fused", "stock"])
@pytest.mark.parametrize("third", ["fused", "stock"])
def test_every_mix_keeps_the_columns_in_order(three, swap_of, batch_of, first, second, third):
    module = swap_of(three, by_table(first, second, third), **SPLIT)
    batch = batch_of(BAGS)
    want, ours = three(batch), module(batch)
    assert ours.keys() == want.keys() == ["a@t_a", "b", "a@t_b", "c"]
    assert ours.length_per_key() == want.length_per_key()
    assert torch.equal(ours.values(), want.values())


def test_each_way_serves_the_features_of_its_tables(three, plans_of):
    plans = list(plans_of(three, by_table("stock", "fused", "stock")).values())
    assert FusedLookup(plans).chosen == [1, 2]
    assert StockLookup(plans, ["a@t_a", "b", "a@t_b", "c"]).chosen == [0, 3]


@pytest.mark.parametrize(
    ("lookups", "ops", "inner_calls"),
    [
        (("fused",) * 3, ["pooled_lookup"], 0),
        (("stock",) * 3, ["rewrite_bags", "join_columns"], 2),
        (("fused", "stock", "stock"), ["pooled_lookup", "rewrite_bags", "join_columns"], 2),
    ],
)
def test_a_traced_collection_is_a_few_nodes(three, swap_of, lookups, ops, inner_calls):
    """One op for all fused tables, one rewriting and one stock collection a memory for others."""
    module = swap_of(three, by_table(*lookups), **SPLIT)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, inner, name):
            return isinstance(inner, EmbeddingBagCollection)

    graph = Tracer().trace(module)
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    found = [t for t in called if t.startswith("grace.") and "fresh" not in t]
    assert sorted(found) == sorted(f"grace.{op}" for op in ops)
    assert sum(node.op == "call_module" for node in graph.nodes) == inner_calls


def test_reads_are_counted_by_output_feature_in_any_mix(three, swap_of, batch_of):
    batch = batch_of(BAGS)
    counts = []
    for lookups in (("fused",) * 3, ("stock",) * 3, ("stock", "fused", "stock")):
        module = swap_of(three, by_table(*lookups), **SPLIT)
        module(batch)  # not inside the block: not counted
        with module.counting_reads() as reads:
            module(batch)
            module(batch)
        counts.append(reads.tolist())
        module(batch)
        assert reads.tolist() == counts[-1]
    assert counts[0] == [[6, 4], [10, 6], [6, 4], [10, 6]]
    assert counts == [counts[0]] * 3


@pytest.mark.parametrize("lookup", ["fused", "stock"])
@pytest.mark.parametrize("originals", ["host", "hbm"])
def test_every_row_is_read_from_where_the_plan_puts_it(
    table_of, collection_of, swap_of, batch_of, lookup, originals
):
    """Each kind of row is overwritten by a number of its own: in truth they are equal."""
    hot = (7,) if originals == "host" else ()
    stock = collection_of([table_of(dim=1)])
    module = swap_of(stock, lookup=lookup, originals=originals, num_hbm_sums=2, hot_items=hot)
    with torch.no_grad():
        for tier, value in (("hbm", 100.0), ("host", 10_000.0)):
            module.stored(0, tier).data.fill_(value)
        module.weight(0).data.fill_(1.0)
    # a sum in HBM, one in host memory, a plain row, and item 7 which may be hot
    bags = bags_of(batch_of({"item": [[1, 2], [3, 5], [9], [7]]}), ["item"], False, False)
    guard = torch.empty(0, dtype=torch.int8)  # no check: these rows are no sums
    if lookup == "fused":
        pooled, _ = FusedLookup(module.table_plans)(module, bags, guard)
    else:
        (pooled,), _ = StockLookup(module.table_plans, module.output_names)(module, bags, guard)
    assert pooled.flatten().tolist() == [100, 10_000, 1, 100 if hot else 1]


@pytest.mark.parametrize("lookups", [("fused",) * 3, ("stock",) * 3, ("stock", "fused", "stock")])
def test_a_traced_copy_answers_the_same(three, swap_of, batch_of, lookups):
    module = swap_of(three, by_table(*lookups), **SPLIT)
    traced = symbolic_trace(nn.Sequential(module))
    for bags in (BAGS, {key: [[5]] for key in BAGS}, {key: [] for key in BAGS}):
        batch = batch_of(bags)
        assert torch.equal(traced(batch).values(), module(batch).values())


@pytest.mark.parametrize(
    ("rows", "shape", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), None, "'t' is torch.float64: float32 and"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), None, "'t' is torch.bfloat16"),
        (torch.zeros(3, 2).T, None, "'t' is not contiguous"),
        (torch.zeros(2, 3), (3, 2), r"'t' has shape \(2, 3\), it was planned with \(3, 2\)"),
    ],
)
def test_rows_that_no_kernel_reads_are_refused(rows, shape, message):
    with pytest.raises(NotSupported, match=message):
        refuse_unreadable("'t'", rows, shape)


def test_rows_that_kernels_read_pass():
    for dtype in (torch.float32, torch.float16):
        refuse_unreadable("'t'", torch.zeros(2, 3, dtype=dtype), (2, 3))
    refuse_unreadable("'t'", torch.zeros(2, 3, device="meta"))
