"""Rewriting ahead: batches in order, errors in their turn, and no thread outlives its iterator."""

import gc
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchrec import KeyedJaggedTensor

import grace_torchrec as grace
from grace_torchrec.errors import GraceError
from grace_torchrec.modules.rewritten_batch import RewrittenBatch

BAGS = {"a": [[1, 2, 7], []], "b": [[3, 4, 5, 9, -1], [0]], "c": [[2], [1, 1, 2, 2]]}


def rewritten(batch, model):
    (out,) = grace.rewrite([batch], model, prefetch=0)
    return out


@pytest.fixture
def no_threads_left():
    """Whatever a test does, no thread of ours outlives it."""
    yield
    gc.collect()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("grace-rewrite")]


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
