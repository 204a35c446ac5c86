"""The direct lookup answers, counts and refuses as the registered ops do, bit by bit.

Where gradients could be asked for, the ops serve; under ``torch.no_grad`` the direct lookup does.
"""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec import KeyedJaggedTensor
from torchrec.fx import symbolic_trace

import grace_torchrec as grace
from grace_kernels import plain_path
from grace_torchrec.errors import StaleSums

KEYS = ("a", "b", "c")
SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request):
    """One thread is served by a call of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def three(table_of, collection_of):
    """Return a function that makes three tables of different width and type, one of MEAN."""

    def make(is_weighted=False, dtype="fp16"):
        pooling = "sum" if is_weighted else "mean"
        tables = [
            table_of("t_a", features=("a",), dim=3),
            table_of("t_b", features=("b", "a"), dim=20, pooling=pooling),
            table_of("t_c", features=("c",), dim=2, dtype=dtype),
        ]
        return collection_of(tables, is_weighted=is_weighted, whole=False)

    return make


@pytest.fixture(scope="session")
def swap_three(three, swap_of):
    """Return a function that swaps them: split sums, sums on host, no sums."""

    def make(is_weighted=False, **options):
        stock = three(is_weighted, dtype="fp32" if is_weighted else "fp16")
        return swap_of(stock, {"t_a": SPLIT, "t_c": {"clusters": ()}}, **options)

    return make


def outcome(module, batch) -> tuple[Any, ...]:
    """Return the answer and the reads, or the error and its words."""
    try:
        with module.counting_reads() as reads:
            answer = module(batch)
    except Exception as error:
        return type(error), str(error)
    return answer.keys(), answer.length_per_key(), answer.values().detach().clone(), reads.tolist()


def assert_same(module, make_batch: Callable[[], Any]) -> tuple[Any, ...]:
    """Let ops and direct lookup serve the same batch; each gets one of its own."""
    with torch.enable_grad():
        by_ops = outcome(module, make_batch())
    with torch.no_grad():
        direct = outcome(module, make_batch())
    assert len(by_ops) == len(direct), (by_ops, direct)
    for one, other in zip(by_ops, direct, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return direct


def bags_of(draw_lengths, keys, stride, low, high, seed, *, layout, id_type, bound_type, weights):
    """Build a batch whose lengths, offsets or both are given."""
    random = np.random.default_rng(seed)
    lengths = torch.from_numpy(random.choice(draw_lengths, len(keys) * stride)).to(bound_type)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0).to(bound_type)])
    ids = torch.from_numpy(random.integers(low, high, int(offsets[-1]))).to(id_type)
    bounds = {"lengths": {"lengths": lengths}, "offsets": {"offsets": offsets}}
    bounds["both"] = bounds["lengths"] | bounds["offsets"]
    return KeyedJaggedTensor(
        keys=list(keys),
        values=ids,
        weights=torch.from_numpy(random.normal(size=ids.numel())).float() if weights else None,
        stride=stride,
        **bounds[layout],
    )


INTEGERS = st.sampled_from([torch.int32, torch.int64])


@pytest.fixture(scope="session")
def used_module(swap_three):
    """Return a function that gives one module for each kind and policy: batches come and go."""
    return cache(lambda is_weighted, bad_ids: swap_three(is_weighted, bad_ids=bad_ids))


@given(
    keys=st.permutations([*KEYS, "x", "y"]).flatmap(
        lambda keys: st.sampled_from([keys, [k for k in keys if k in KEYS]])
    ),
    stride=st.integers(0, 4),
    layout=st.sampled_from(["lengths", "offsets", "both"]),
    bad_ids=st.sampled_from(["raise", "drop", "zero_row"]),
    odd=st.sampled_from([0, 1, 3]),
    kind=st.sampled_from(["plain", "ignored weights", "weighted", "rewritten"]),
    id_type=INTEGERS,
    bound_type=INTEGERS,
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_is_answered_as_the_ops_do(
    used_module, keys, stride, layout, bad_ids, odd, kind, id_type, bound_type, seed
) -> None:
    """``odd`` 1 brings padding, 3 ids outside the table too."""
    module = used_module(kind == "weighted", bad_ids)

    def make():
        batch = bags_of(
            [0, 1, 2, 9, 30], keys, stride, -min(odd, 2), 20 + odd // 3, seed, layout=layout,
            id_type=id_type, bound_type=bound_type, weights=kind in ("ignored weights", "weighted"),
        )  # fmt: skip
        if kind != "rewritten":
            return batch
        (batch,) = grace.rewrite([batch], module, prefetch=0)
        return batch

    try:
        make()
    except ValueError:  # a bad id is met when the batch is rewritten
        return
    assert_same(module, make)


def test_every_layout_of_a_batch_on_all_threads(swap_three, threads) -> None:
    module = swap_three()
    for layout in ("lengths", "offsets", "both"):
        for id_type in (torch.int32, torch.int64):
            answer = assert_same(
                module,
                lambda layout=layout, id_type=id_type: bags_of(
                    [0, 5, 70], KEYS, 50, 0, 20, 1, layout=layout, id_type=id_type,
                    bound_type=torch.int64, weights=False,
                ),
            )  # fmt: skip
            assert answer[2].shape == (50, 45)


def test_orders_of_the_keys_take_turns(swap_three, threads) -> None:
    """What was laid out for one order of the keys serves no other."""
    module, before = swap_three(), None
    for keys in list(permutations([*KEYS, "x"])) * 2:
        answer = assert_same(
            module,
            lambda keys=keys: KeyedJaggedTensor(
                keys=list(keys),
                values=torch.tensor([{"a": 1, "b": 2, "c": 3, "x": 9}[key] for key in keys]),
                offsets=torch.arange(5),
            ),
        )
        assert before is None or torch.equal(answer[2], before)
        before = answer[2]


def made(**parts: Any) -> Callable[[], KeyedJaggedTensor]:
    """Return a maker of a batch of features a, b, c, one bag each of two ids, changed by ``parts``."""
    whole = {"keys": [*KEYS], "values": torch.tensor([1, 2, 3, 4, 5, 6])} | parts
    if "lengths" not in whole and "offsets" not in whole:
        whole["offsets"] = torch.tensor([0, 2, 4, 6])
    return lambda: KeyedJaggedTensor(
        **{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in whole.items()}
    )


ODD_BATCHES = {
    "lacks-a-feature": made(keys=["a", "b", "x"]),
    "no-features": KeyedJaggedTensor.empty,
    "float-ids": made(values=torch.ones(6)),
    "short-ids": made(values=torch.ones(6, dtype=torch.int16)),
    "table-of-ids": made(values=torch.ones(6, 1, dtype=torch.int64)),
    "falling-offsets": made(offsets=torch.tensor([0, 4, 2, 6])),
    "offsets-below-0": made(offsets=torch.tensor([0, -4, 2, 6])),
    "offsets-from-1": made(offsets=torch.tensor([1, 2, 4, 6])),
    "offsets-end-early": made(offsets=torch.tensor([0, 2, 4, 5])),
    "offsets-end-late": made(offsets=torch.tensor([0, 2, 4, 7])),
    "huge-offsets": made(offsets=torch.tensor([0, 2, 2**62, 6])),
    "offsets-of-5-bags": made(offsets=torch.tensor([0, 1, 2, 3, 4, 6])),
    "too-few-offsets": made(offsets=torch.tensor([0, 6])),
    "lengths-that-differ": made(
        offsets=torch.tensor([0, 2, 4, 6]), lengths=torch.tensor([2, 1, 3])
    ),
    "narrow-lengths-that-differ": made(
        offsets=torch.tensor([0, 2, 4, 6]), lengths=torch.tensor([2, 3, 1], dtype=torch.int32)
    ),
    "lengths-of-2-bags": made(lengths=torch.tensor([2, 4])),
    "negative-lengths": made(lengths=torch.tensor([-2, 4, 4])),
    "too-few-ids": made(lengths=torch.tensor([2, 2, 3])),
    "another-stride": made(stride=2),
    "neither": lambda: KeyedJaggedTensor(keys=[*KEYS], values=torch.tensor([1])),
    "variable-stride": made(stride_per_key_per_rank=[[1], [1], [1]]),
    "a-bad-id": made(values=torch.tensor([1, 2, 20, 4, 5, 6])),
    "a-negative-id": made(values=torch.tensor([1, 2, 3, 4, 5, -6])),
    "padding": made(values=torch.tensor([-1, 2, -1, -1, 5, -1])),
    "weights": made(weights=torch.ones(6)),
    "keys-twice": made(keys=["a", "a", "b", "c"], offsets=torch.tensor([0, 1, 2, 4, 6])),
    "table-of-lengths": made(lengths=torch.tensor([[2], [2], [2]]), stride=1),
    "narrow-offsets": made(offsets=torch.tensor([0, 2, 4, 6], dtype=torch.int32)),
}


@pytest.mark.parametrize("make", ODD_BATCHES.values(), ids=ODD_BATCHES.keys())
@pytest.mark.parametrize("strict", [False, True])
def test_odd_batches_meet_the_same_error_or_the_same_answer(
    swap_three, threads, make, strict
) -> None:
    module = swap_three(strict=strict)
    for _ in range(2):  # the second time with everything laid out
        assert_same(module, make)


def test_vectors_with_gaps_are_read_as_they_are(swap_three) -> None:
    def make():
        return KeyedJaggedTensor(
            keys=[*KEYS],
            values=torch.arange(12)[::2],
            offsets=torch.tensor([0, 9, 2, 9, 4, 9, 6])[::2],
        )

    assert_same(swap_three(), make)


def test_a_cpu_without_avx2_answers_the_same_but_for_rounding(swap_three, monkeypatch) -> None:
    module, rewritten = swap_three(), swap_three()
    (ahead,) = grace.rewrite([made()()], rewritten, prefetch=0)
    want = assert_same(module, made())
    monkeypatch.setattr(plain_path, "HAS_AVX2", False)
    for answer in (assert_same(module, made()), assert_same(rewritten, lambda: ahead)):
        torch.testing.assert_close(answer[2], want[2])
        assert answer[3] == want[3]


def test_weights_are_asked_for_where_the_collection_is_weighted(swap_three) -> None:
    module = swap_three(is_weighted=True)
    assert_same(module, made())
    assert_same(module, made(weights=torch.ones(5)))
    assert_same(module, made(weights=torch.ones(6, dtype=torch.float64)))


# Who serves


class Seen(TorchDispatchMode):
    """Notes every op."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names = [*getattr(self, "names", []), str(func)]
        return func(*args, **(kwargs or {}))


def ops_seen_by_profiler(module, batch) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(batch)
    return {event.name for event in profile.events() if event.name.startswith("grace::")}


def test_ops_serve_where_somebody_looks_and_nobody_else(swap_three) -> None:
    """Gradients, tracers and dispatch modes see one node; a plain forward dispatches nothing."""
    module, batch = swap_three(), made()()
    want = module(batch).values()
    assert "grace::pooled_lookup" in ops_seen_by_profiler(module, batch)
    with torch.no_grad():
        assert ops_seen_by_profiler(module, batch) == set()
        with Seen() as seen:
            assert torch.equal(module(batch).values(), want)
        assert any("pooled_lookup" in name for name in seen.names)
        traced = symbolic_trace(module)
        assert torch.equal(traced(batch).values(), want)
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert any("pooled_lookup" in name for name in called)


def test_a_backward_is_refused_not_cut_off(swap_three) -> None:
    module = swap_three()
    with torch.no_grad():
        module(made()())
    with pytest.raises(NotImplementedError, match="inference only"):
        module(made()()).values().sum().backward()


# What changes between batches


def test_codes_changed_in_place_count_from_the_next_batch_on(swap_three) -> None:
    module, make = swap_three(), made(values=torch.tensor([1, 2, 3, 4, 5, 6]))
    before = assert_same(module, make)
    assert before[3] == [[2, 1], [2, 1], [2, 1], [2, 2]]  # a of t_a; b and a of t_b; c of t_c
    module.rewriter.item_codes()[1].fill_(-1)
    assert assert_same(module, make)[3] == [[2, 1], [2, 2], [2, 2], [2, 2]]


def test_codes_and_hot_rows_given_anew_count_from_the_next_batch_on(swap_three) -> None:
    module, make = swap_three(), made(values=torch.tensor([1, 2, 7, 7, 5, 6]))
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
def test_other_data_of_a_parameter_is_read_or_refused(swap_three, table) -> None:
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
def test_another_parameter_or_module_in_place_of_a_table_is_noticed(swap_three, table) -> None:
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
def test_copies_of_a_module_that_served_read_their_own_tables(swap_three, copied) -> None:
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


@pytest.mark.parametrize("served_before", [False, True])
def test_threads_of_the_caller_may_share_a_module(swap_three, served_before, threads) -> None:
    """Orders of keys are laid out while others are served; half of the threads starts cold."""
    module = swap_three()
    orders = [list(np.random.default_rng(seed).permutation([*KEYS, "x"])) for seed in range(9)]
    batches = [
        bags_of(
            [0, 1, 20, 60], orders[n % 9], 1 + n % 5, 0, 20, n, id_type=torch.int64,
            layout=["lengths", "offsets", "both"][n % 3], bound_type=torch.int64, weights=False,
        )
        for n in range(800)
    ]  # fmt: skip

    @torch.no_grad()
    def answer(batch):
        return module(batch).values()

    if served_before:
        answer(batches[0])
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(answer, batches))
    for batch, got in zip(batches, together, strict=True):
        assert torch.equal(got, answer(batch))


def plain_batch():
    """A batch of the usual form for the three tables."""
    return bags_of(
        [0, 3, 9], KEYS, 4, 0, 20, 0, layout="both", id_type=torch.int64, bound_type=torch.int64,
        weights=False,
    )  # fmt: skip


def test_stored_rows_that_move_in_memory_are_found_again(three, swap_of) -> None:
    """Sharing moves storages in place; the weights may be shared already."""
    stock = three()
    stock.share_memory()
    swapped = swap_of(stock)
    with torch.no_grad():
        truth = swapped(plain_batch()).values()
        before = swapped._direct._tables
        for inner in swapped.inner_collections().values():
            inner.share_memory()
        assert torch.equal(swapped(plain_batch()).values(), truth)
    assert swapped._direct._tables is not before  # views of freed memory may still read right


def test_a_shallow_copy_answers_with_its_own_tables(swap_three) -> None:
    swapped = swap_three()
    with torch.no_grad():
        swapped(plain_batch())
        copied = copy.copy(swapped)
        copied(plain_batch())
    assert copied._direct.serves(copied)
    assert swapped._direct.serves(swapped)


def test_a_function_transform_is_refused(swap_three) -> None:
    swapped, batch = swap_three(), plain_batch()

    def answer(ids):
        bags = KeyedJaggedTensor(keys=batch.keys(), values=ids, lengths=batch.lengths())
        return swapped(bags).values()

    with torch.no_grad(), pytest.raises(grace.NotSupported, match=r"torch\.func"):
        torch.func.functionalize(answer)(batch.values())
