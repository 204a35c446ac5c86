"""Bags that arrive rewritten: the same answers, for the plan they were made for and no other."""

import gc
import io
import logging
import pickle
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchrec import KeyedJaggedTensor
from torchrec.fx import symbolic_trace

import grace_torchrec as grace
from grace_torchrec.errors import GraceError, PlanMismatch, StaleSums
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.modules.verify import verify

BAGS = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9, -1], [0]], "c": [[2], [1, 1, 2, 2]]}
SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}
WAYS = [
    ("ahead", "ahead", "ahead"),
    ("fused", "fused", "fused"),
    ("ahead", "fused", "stock"),
    ("stock", "ahead", "ahead"),
]


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


@pytest.fixture
def swap_three(three, swap_of):
    def make(*lookups, **options):
        ways = lookups or ("ahead", "ahead", "ahead")
        by_table = {f"t_{n}": {"lookup": way} for n, way in zip("abc", ways, strict=True)}
        return swap_of(three, by_table, **{**SPLIT, **options})

    return make


def rewritten(batch, model):
    (out,) = grace.rewrite([batch], model, prefetch=0)
    return out


@pytest.fixture
def no_threads_left():
    """Whatever a test does, no thread of ours outlives it."""
    yield
    gc.collect()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("grace-rewrite")]


@pytest.mark.parametrize("lookups", WAYS)
def test_rewritten_bags_answer_as_plain_ones_do_and_count_the_same_reads(
    swap_three, batch_of, lookups
):
    batch = batch_of(BAGS)
    in_line = swap_three(*["stock" if way == "stock" else "fused" for way in lookups])
    module = swap_three(*lookups)
    with in_line.counting_reads() as reads:
        want = in_line(batch)
    with module.counting_reads() as counted:
        got = module(rewritten(batch, module))
    assert got.keys() == want.keys()
    assert torch.equal(got.values(), want.values())
    assert torch.equal(counted, reads)
    assert int(reads[:, 1].sum()) < int(reads[:, 0].sum())


@pytest.mark.parametrize("lookups", WAYS)
def test_a_traced_graph_takes_both_kinds_of_batch(swap_three, batch_of, lookups):
    module = swap_three(*lookups)
    traced = symbolic_trace(nn.Sequential(module))
    for bags in (BAGS, {key: [[5]] for key in BAGS}, {key: [] for key in BAGS}):
        batch = batch_of(bags)
        want = module(batch).values()
        assert torch.equal(traced(batch).values(), want)
        assert torch.equal(traced(rewritten(batch, module)).values(), want)
    if "ahead" in lookups:
        module.plain_batches.zero_()
        given = rewritten(batch_of(BAGS), module)
        traced(given)
        assert not module.plain_batches.any()
        traced(given.bags)
        assert module.plain_batches.all()
        with pytest.raises(PlanMismatch, match="rewritten for"):  # it is the rows that are read
            traced(RewrittenBatch(given.bags, {}))


def test_mean_divides_by_the_length_before_rewriting(table_of, collection_of, swap_of, batch_of):
    stock = collection_of([table_of(pooling="mean")])
    module = swap_of(stock, lookup="ahead")
    batch = batch_of({"item": [[3, 4, 5, 9], [-1, -1, 1, 2]]})
    got = module(rewritten(batch, module)).values()
    weight = stock.embedding_bags["t_item"].weight.detach()
    want = torch.stack([weight[[3, 4, 5, 9]].sum(0), weight[[1, 2]].sum(0)]) / 4
    assert torch.equal(got, want)


@pytest.mark.parametrize("bad_ids", ["drop", "zero_row"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bad_ids_and_weights_are_treated_as_in_line(
    table_of, collection_of, swap_of, batch_of, bad_ids, weighted
):
    stock = collection_of([table_of()], is_weighted=weighted)
    bags = [[3, 4, 99, 5], [-7, 1, 2, -1], [500], []]
    weights = {"item": [[1.0, 2.0, 3.0, 1.0], [1.0, 1.0, 1.0, 5.0], [2.0], []]}
    batch = batch_of({"item": bags}, weights if weighted else None)
    in_line = swap_of(stock, bad_ids=bad_ids)
    module = swap_of(stock, bad_ids=bad_ids, lookup="ahead")
    want = in_line(batch).values()
    assert torch.equal(module(rewritten(batch, module)).values(), want)
    assert torch.equal(module(batch).values(), want)  # plain rows


def test_a_bad_id_and_a_malformed_batch_are_errors_while_rewriting(swap_three, batch_of):
    module = swap_three()
    with pytest.raises(ValueError, match=r"table 't_b', feature 'b': sample 1 holds id 77, the"):
        rewritten(batch_of({**BAGS, "b": [[1], [77]]}), module)
    with pytest.raises(GraceError, match="batch lacks feature 'c'"):
        rewritten(batch_of({"a": [[1]], "b": [[2]]}), module)
    with pytest.raises(GraceError, match="batch holds 0 KeyedJaggedTensors, one expected"):
        rewritten((torch.zeros(3),), module)
    with pytest.raises(GraceError, match="batch holds 2 KeyedJaggedTensors, one expected"):
        rewritten([batch_of(BAGS), batch_of(BAGS)], module)


def test_a_batch_of_another_plan_is_refused(three, swap_three, swap_of, batch_of):
    batch, module = batch_of(BAGS), swap_three()
    others = [
        swap_three(clusters=((1, 3), (2, 4, 5))),
        swap_three(clusters=((3, 4, 5), (1, 2))),  # the same groups in other rows
        swap_three("stock", "ahead", "ahead"),
        swap_three(bad_ids="drop"),
    ]
    for other in others:
        with pytest.raises(PlanMismatch, match=r"module '': .* with codes \w+, .*; rewrite it"):
            module(rewritten(batch, other))
    # Where rows lie is no part of it: a twin with all its sums in host memory takes the batch.
    twin = swap_three(num_hbm_sums=0, hot_items=())
    assert torch.equal(twin(rewritten(batch, module)).values(), twin(batch).values())


def test_a_batch_that_lacks_the_module_is_refused(swap_three, batch_of):
    module = swap_three()
    given = rewritten(batch_of(BAGS), module)
    with pytest.raises(PlanMismatch, match=r"module '': .* was rewritten for \['other'\]; rewrite"):
        module(RewrittenBatch(given.bags, {"other": given.modules[""]}))


def test_stale_sums_are_refused_and_a_rebuild_needs_no_new_rows(three, swap_three, batch_of):
    module = swap_three()
    given = rewritten(batch_of(BAGS), module)
    with torch.no_grad():
        module.weight(0).add_(1)
    with pytest.raises(StaleSums, match="t_a"):
        module(given)
    module.rebuild_sums()
    assert torch.equal(module(given).values(), module(batch_of(BAGS)).values())


def test_plain_bags_read_plain_rows_told_once_and_counted(three, swap_three, batch_of, caplog):
    module = swap_three("ahead", "ahead", "fused")
    batch = batch_of(BAGS)
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


def test_verify_takes_rewritten_batches(three, swap_three, batch_of):
    model = nn.Sequential(swap_three())
    batches = [batch_of(BAGS), batch_of({key: [[3, 4, 5]] for key in BAGS})]
    result = verify(model, grace.rewrite(batches, model))
    assert result.equal
    assert result.batches == 2
    assert all(check.rows_read < check.ids for check in result.tables)
    with torch.no_grad():
        model[0].stored(0, "hbm").data.add_(1)
    assert not verify(model, grace.rewrite(batches, model)).equal


def test_a_rewritten_batch_stands_for_its_bags(three, swap_three, batch_of):
    """Collections that were left stock, and the code around, take it like the original."""
    batch = batch_of({**BAGS, "b": [[3], [0]]})
    given = rewritten(batch, swap_three())
    assert torch.equal(three(given).values(), three(batch).values())
    assert given.keys() == batch.keys()
    assert given.stride() == 2
    with pytest.raises(AttributeError, match="no_such_thing"):
        given.no_such_thing  # noqa: B018


def test_a_batch_survives_pickles_moves_and_a_second_rewriting(swap_three, batch_of):
    module, batch = swap_three(), batch_of(BAGS)
    given = rewritten(batch, module)
    want = module(given).values()
    saved = io.BytesIO()
    torch.save(given, saved)
    saved.seek(0)
    copies = [
        pickle.loads(pickle.dumps(given)),
        torch.load(saved, weights_only=False),
        given.to("cpu"),
        given.to(torch.device("cpu"), non_blocking=True),
        rewritten(given, module),
    ]
    for copy in copies:
        assert isinstance(copy, RewrittenBatch)
        assert torch.equal(module(copy).values(), want)
    assert given.to("meta").modules[""].rows.is_meta
    assert given.to("meta").bags.values().is_meta


def test_a_batch_changed_on_its_way_is_an_error_never_a_read(swap_three, batch_of):
    module = swap_three()
    for name, index, value in (("rows", 0, 10**9), ("rows", 0, -5), ("offsets", -1, 10**9)):
        given = rewritten(batch_of(BAGS), module)
        getattr(given.modules[""], name)[index] = value
        with pytest.raises(ValueError, match="rewrite the batch again"):
            module(given)


def test_modules_of_a_swapped_model_are_told_apart_by_path(
    table_of, collection_of, model_plan, batch_of
):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = collection_of([table_of("t_left")])
            self.right = collection_of([table_of("t_right", dim=3)])

        def forward(self, dense, features):
            return torch.cat([self.left(features).values(), self.right(features).values()], 1)

    model = Two().eval()
    batch = (torch.zeros(1), batch_of({"item": [[1, 2, 7], [3, 4, 5]]}))
    want = model(*batch)
    plan = model_plan(model, {"right.t_right": {"clusters": ((1, 2, 7),)}}, lookup="ahead")
    grace.accelerate_(model, plan)
    (given,) = grace.rewrite([batch], model)
    assert isinstance(given, tuple)
    assert given[0] is batch[0]
    assert sorted(given[1].modules) == ["left", "right"]
    assert torch.equal(model(*given), want)
    assert grace.verify(model, [given]).equal


def test_a_table_not_chosen_has_nothing_to_rewrite(table_of, collection_of, model_plan, batch_of):
    model = nn.Sequential(
        collection_of([table_of("t_a", features=("a",)), table_of("t_b", features=("b",))])
    ).eval()
    batch = batch_of({"a": [[1, 2]], "b": [[1, 2]]})
    want = model(batch).values()
    grace.accelerate_(model, model_plan(model, lookup="ahead"), tables=["t_a"])
    assert [p.lookup for p in model[0].table_plans] == ["ahead", "fused"]
    (given,) = grace.rewrite([batch], model)
    assert torch.equal(model(given).values(), want)


def test_the_shape_of_a_batch_is_kept(swap_three, batch_of):
    Named = namedtuple("Named", "dense features")
    module, bags = swap_three(), batch_of(BAGS)
    for batch in ([1, bags], (bags,), Named(1, bags)):
        out = rewritten(batch, module)
        assert type(out) is type(batch)
        assert len(out) == len(batch)
        assert isinstance(out[-1], RewrittenBatch)
    assert rewritten(Named(1, bags), module).dense == 1


@pytest.mark.parametrize("prefetch", [0, 1, 2, 100])
def test_batches_come_in_order_whatever_the_prefetch(
    swap_three, batch_of, prefetch, no_threads_left
):
    module = swap_three()
    batches = [batch_of({key: [[k % 20]] * (k + 1) for key in BAGS}) for k in range(12)]
    out = list(grace.rewrite(batches, module, prefetch=prefetch))
    assert [b.bags for b in out] == batches
    for batch, plain in zip(out, batches, strict=True):
        assert torch.equal(module(batch).values(), module(plain).values())
    assert list(grace.rewrite([], module, prefetch=prefetch)) == []


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_no_more_than_the_prefetch_is_taken_from_the_source(
    swap_three, batch_of, prefetch, no_threads_left
):
    taken = []

    def source():
        for _ in range(10):
            taken.append(threading.current_thread())
            yield batch_of(BAGS)

    iterator = grace.rewrite(source(), swap_three(), prefetch=prefetch)
    assert not taken
    next(iterator)
    next(iterator)
    assert taken == [threading.current_thread()] * (2 + prefetch)
    iterator.close()


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_the_error_of_a_batch_comes_in_its_turn_and_ends_the_iterator(
    swap_three, batch_of, prefetch, no_threads_left
):
    good, bad = batch_of(BAGS), batch_of({**BAGS, "a": [[1], [77]]})
    iterator = grace.rewrite([good, good, bad, good], swap_three(), prefetch=prefetch)
    next(iterator)
    next(iterator)
    with pytest.raises(ValueError, match="holds id 77"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_the_error_of_the_source_comes_after_the_batches_before_it(
    swap_three, batch_of, prefetch, no_threads_left
):
    def source():
        yield batch_of(BAGS)
        yield batch_of(BAGS)
        raise OSError("disk gone")

    iterator = grace.rewrite(source(), swap_three(), prefetch=prefetch)
    next(iterator)
    next(iterator)
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_thread_of_its_own_rewrites_ahead(swap_three, batch_of, no_threads_left):
    def threads():
        return [t.name for t in threading.enumerate() if t.name.startswith("grace-rewrite")]

    for prefetch, wanted in ((0, 0), (1, 1), (4, 1)):
        iterator = grace.rewrite([batch_of(BAGS)] * 9, swap_three(), prefetch=prefetch)
        next(iterator)
        assert len(threads()) == wanted
        iterator.close()
        assert not threads()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_rewrites_in_its_collate_function(swap_three, batch_of, workers):
    module = swap_three()

    def collate(samples):
        return rewritten((len(samples), batch_of(dict.fromkeys(BAGS, samples))), module)

    bags = [[1, 2, k] for k in range(10)]
    loader = DataLoader(bags, batch_size=4, collate_fn=collate, num_workers=workers)
    sizes = []
    for size, batch in loader:
        sizes.append(size)
        assert torch.equal(module(batch).values(), module(batch.bags).values())
    assert sizes == [4, 4, 2]


def test_a_consumer_that_stops_early_leaves_no_thread(swap_three, batch_of, no_threads_left):
    module = swap_three()
    for _ in grace.rewrite([batch_of(BAGS)] * 50, module, prefetch=3):
        break
    iterator = grace.rewrite([batch_of(BAGS)] * 50, module, prefetch=3)
    next(iterator)
    del iterator


def test_wrong_calls_are_refused_at_once(three, swap_three, batch_of):
    for prefetch in (-1, 1.5, True, "1"):
        with pytest.raises(GraceError, match="prefetch must be a number of batches"):
            grace.rewrite([], swap_three(), prefetch=prefetch)
    with pytest.raises(GraceError, match="holds no swapped module; call accelerate_"):
        grace.rewrite([], nn.Sequential(three))
    two = nn.ModuleList([swap_three(), swap_three(clusters=((1, 3),), num_hbm_sums=0)])
    with pytest.raises(GraceError, match="two swapped modules were made at ''"):
        grace.rewrite([], two)


def test_real_bags_rewritten_ahead_of_two_threads(
    table_of, collection_of, swap_of, trace_path, no_threads_left
):
    """Groups of eight neighbours by popularity: no good plan, but many sums are read."""
    from grace_torchrec.traces.readers.npz import read_npz

    trace = read_npz(trace_path("ml100k"))
    order = np.argsort(-np.bincount(trace.ids_L, minlength=trace.num_items))
    clusters = order[: trace.num_items // 8 * 8].reshape(-1, 8).tolist()
    stock = collection_of([table_of(num_rows=trace.num_items, dim=16)])
    sums = 247 * len(clusters)
    module = swap_of(stock, clusters=clusters, num_hbm_sums=sums // 2, lookup="ahead")
    bounds = trace.offsets_B1
    batches = [
        KeyedJaggedTensor(
            keys=["item"],
            values=torch.from_numpy(trace.ids_L[bounds[b] : bounds[b + 64]]),
            lengths=torch.from_numpy(np.diff(bounds[b : b + 65])),
        )
        for b in range(0, trace.num_bags - 64, 64)
    ]
    with module.counting_reads() as reads:
        for batch in grace.rewrite(batches, module, prefetch=2):
            assert torch.equal(module(batch).values(), stock(batch.bags).values())
    asked, read = reads.sum(0).tolist()
    assert asked == int(bounds[len(batches) * 64])
    assert read < 0.9 * asked


def test_verify_rewrites_plain_bags_for_tables_planned_ahead(swap_three, batch_of):
    """Plain bags would read plain rows, and prove nothing of the sums."""
    model = nn.Sequential(swap_three())
    batches = [batch_of(BAGS)]
    plain = verify(model, batches)
    ahead = verify(model, grace.rewrite(batches, model))
    assert plain.equal
    assert [t.rows_read for t in plain.tables] == [t.rows_read for t in ahead.tables]
    assert any(t.rows_read < t.ids for t in plain.tables)
