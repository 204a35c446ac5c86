"""Who reads the rows: fused, stock and mixed collections, and which rows they read."""

import logging

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.fx import symbolic_trace

import grace_torchrec as grace
from grace_torchrec.errors import NotSupported, PlanMismatch, StaleSums
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.lookup import FusedLookup, StockLookup, refuse_unreadable
from grace_torchrec.modules.rewritten_batch import RewrittenBatch

BAGS = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9], [0]], "c": [[2], [1, 1, 2, 2]]}
SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}


def by_table(*lookups):
    return {f"t_{name}": {"lookup": way} for name, way in zip("abc", lookups, strict=True)}


@pytest.mark.parametrize("code", ["clusters", "subsets"])
@pytest.mark.parametrize("first", ["fused", "stock"])
@pytest.mark.parametrize("second", ["fused", "stock"])
@pytest.mark.parametrize("third", ["fused", "stock"])
def test_every_mix_keeps_the_columns_in_order(three, swap_of, batch_of, first, second, third, code):
    layout = by_table(first, second, third)
    layout["t_b"]["code"] = code  # beside clusters
    module = swap_of(three, layout, **SPLIT)
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
@pytest.mark.parametrize("code", ["clusters", "subsets"])
def test_a_traced_collection_is_a_few_nodes(three, swap_of, lookups, ops, inner_calls, code):
    """One op for all fused tables, one rewriting and one stock collection a memory for others."""
    module = swap_of(three, by_table(*lookups), code=code, **SPLIT)

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


# Bags that arrive rewritten

PADDED = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9, -1], [0]], "c": [[2], [1, 1, 2, 2]]}
WAYS = [
    ("ahead", "ahead", "ahead"),
    ("fused", "fused", "fused"),
    ("ahead", "fused", "stock"),
    ("stock", "ahead", "ahead"),
]


def rewritten(batch, model):
    (out,) = grace.rewrite([batch], model, prefetch=0)
    return out


@pytest.mark.parametrize("code", ["clusters", "subsets"])
@pytest.mark.parametrize("lookups", WAYS)
def test_rewritten_bags_answer_as_plain_ones_do_and_count_the_same_reads(
    swap_three, batch_of, lookups, code
):
    batch = batch_of(PADDED)
    ways = ["stock" if way == "stock" else "fused" for way in lookups]
    in_line = swap_three(*ways, code=code)
    module = swap_three(*lookups, code=code)
    with in_line.counting_reads() as reads:
        want = in_line(batch)
    with module.counting_reads() as counted:
        got = module(rewritten(batch, module))
    assert got.keys() == want.keys()
    assert torch.equal(got.values(), want.values())
    assert torch.equal(counted, reads)
    assert int(reads[:, 1].sum()) < int(reads[:, 0].sum())


CODED_WAYS = [
    *((lookups, code) for lookups in WAYS for code in ("clusters", "subsets")),
    (("ahead", "ahead", "ahead"), "sets"),
]


@pytest.mark.parametrize(("lookups", "code"), CODED_WAYS)
def test_a_traced_graph_takes_both_kinds_of_batch(swap_three, batch_of, lookups, code):
    module = swap_three(*lookups, code=code)
    traced = symbolic_trace(nn.Sequential(module))
    for bags in (PADDED, {key: [[5]] for key in PADDED}, {key: [] for key in PADDED}):
        batch = batch_of(bags)
        want = module(batch).values()
        assert torch.equal(traced(batch).values(), want)
        assert torch.equal(traced(rewritten(batch, module)).values(), want)
    if "ahead" in lookups:
        module.plain_batches.zero_()
        given = rewritten(batch_of(PADDED), module)
        traced(given)
        assert not module.plain_batches.any()
        traced(given.bags)
        assert module.plain_batches.all()
        with pytest.raises(PlanMismatch, match="rewritten for"):  # it is the rows that are read
            traced(RewrittenBatch(given.bags, {}))


def test_sets_are_read_ahead_and_plain_bags_read_plain_rows(three, swap_three, batch_of, caplog):
    module, batch = (
        swap_three(code="sets"),
        batch_of({key: [[1, 3], [3, 4, 5, 9]] for key in "abc"}),
    )
    with module.counting_reads() as reads:
        assert torch.equal(module(rewritten(batch, module)).values(), three(batch).values())
    assert reads.tolist() == [[6, 3]] * 4  # items of two clusters share a sum
    with module.counting_reads() as reads, caplog.at_level(logging.WARNING):
        assert torch.equal(module(batch).values(), three(batch).values())
    assert reads.tolist() == [[6, 6]] * 4
    assert "plain bags came for tables planned 'ahead'" in caplog.text


@pytest.mark.parametrize("code", ["clusters", "subsets", "sets"])
def test_mean_divides_by_the_length_before_rewriting(
    table_of, collection_of, swap_of, batch_of, code
):
    stock = collection_of([table_of(pooling="mean")])
    module = swap_of(stock, lookup="ahead", code=code)
    batch = batch_of({"item": [[3, 4, 5, 9], [-1, -1, 1, 2]]})
    got = module(rewritten(batch, module)).values()
    weight = stock.embedding_bags["t_item"].weight.detach()
    want = torch.stack([weight[[3, 4, 5, 9]].sum(0), weight[[1, 2]].sum(0)]) / 4
    assert torch.equal(got, want)


@pytest.mark.parametrize("code", ["clusters", "subsets", "sets"])
@pytest.mark.parametrize("bad_ids", ["drop", "zero_row"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bad_ids_and_weights_are_treated_as_in_line(
    table_of, collection_of, swap_of, batch_of, bad_ids, weighted, code
):
    stock = collection_of([table_of()], is_weighted=weighted)
    bags = [[3, 4, 99, 5], [-7, 1, 2, -1], [500], []]
    weights = {"item": [[1.0, 2.0, 3.0, 1.0], [1.0, 1.0, 1.0, 5.0], [2.0], []]}
    batch = batch_of({"item": bags}, weights if weighted else None)
    in_line = swap_of(stock, bad_ids=bad_ids)
    module = swap_of(stock, bad_ids=bad_ids, lookup="ahead", code=code)
    want = in_line(batch).values()
    assert torch.equal(module(rewritten(batch, module)).values(), want)
    assert torch.equal(module(batch).values(), want)  # plain rows


def test_plain_bags_read_plain_rows_told_once_and_counted(three, swap_three, batch_of, caplog):
    module = swap_three("ahead", "ahead", "fused")
    batch = batch_of(PADDED)
    want = module(rewritten(batch, module)).values()
    assert "plain_batches=0" in repr(module)
    with caplog.at_level(logging.WARNING), module.counting_reads() as reads:
        for _ in range(3):
            assert torch.equal(module(batch).values(), want)
    assert [
        r.message.count("plain bags came for tables planned 'ahead'") for r in caplog.records
    ] == [1]
    assert "table 't_a', feature 'a'" in caplog.text
    assert "t_c" not in caplog.text
    assert reads[:3, 0].tolist() == reads[:3, 1].tolist()  # no sum was read
    assert reads[3, 0] > reads[3, 1]
    assert int(module.plain_batches) == 3
    assert "plain_batches=3" in repr(module)
    assert "plain_batches" not in repr(swap_three("fused", "fused", "stock"))


def test_stale_sums_are_refused_and_a_rebuild_needs_no_new_rows(three, swap_three, batch_of):
    module = swap_three()
    given = rewritten(batch_of(PADDED), module)
    with torch.no_grad():
        module.weight(0).add_(1)
    with pytest.raises(StaleSums, match="t_a"):
        module(given)
    module.rebuild_sums()
    assert torch.equal(module(given).values(), module(batch_of(PADDED)).values())
