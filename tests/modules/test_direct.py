"""The direct lookup answers, counts and refuses as the registered ops do, bit by bit.

Where gradients could be asked for, the ops serve; under ``torch.no_grad`` the direct lookup does.
"""

import copy
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
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec import KeyedJaggedTensor
from torchrec.fx import symbolic_trace

import grace_torchrec as grace
from grace_kernels import plain_path
from grace_kernels import threads as kernel_threads

KEYS = ("a", "b", "c")
SPLIT = {"num_hbm_sums": 2, "hot_items": (7,)}


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request, monkeypatch):
    """One thread is served by a call of its own; two share batches however small."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(kernel_threads, "LEAST_BYTES_TO_SHARE", 0)
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
    """Return a function that swaps them: split sums, sums on host, no sums; ``code`` of the second."""

    def make(is_weighted=False, code="clusters", **options):
        stock = three(is_weighted, dtype="fp32" if is_weighted else "fp16")
        by_table = {"t_a": SPLIT, "t_b": {"code": code}, "t_c": {"clusters": ()}}
        return swap_of(stock, by_table, **options)

    return make


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
    return cache(lambda is_weighted, bad_ids, code: swap_three(is_weighted, code, bad_ids=bad_ids))


@given(
    keys=st.permutations([*KEYS, "x", "y"]).flatmap(
        lambda keys: st.sampled_from([keys, [k for k in keys if k in KEYS]])
    ),
    stride=st.integers(0, 4),
    layout=st.sampled_from(["lengths", "offsets", "both"]),
    bad_ids=st.sampled_from(["raise", "drop", "zero_row"]),
    odd=st.sampled_from([0, 1, 3]),
    kind=st.sampled_from(["plain", "ignored weights", "weighted", "rewritten"]),
    code=st.sampled_from(["clusters", "subsets"]),
    id_type=INTEGERS,
    bound_type=INTEGERS,
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_is_answered_as_the_ops_do(
    assert_same,
    used_module,
    keys,
    stride,
    layout,
    bad_ids,
    odd,
    kind,
    code,
    id_type,
    bound_type,
    seed,
) -> None:
    """``odd`` 1 brings padding, 3 ids outside the table too."""
    module = used_module(kind == "weighted", bad_ids, code)

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


def test_every_layout_of_a_batch_on_all_threads(assert_same, swap_three, threads) -> None:
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


def test_orders_of_the_keys_take_turns(assert_same, swap_three, threads) -> None:
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
    # the differences of these wrap around to what lengths may be
    "wrapping-offsets": made(offsets=torch.tensor([0, 2**63 - 1, -2, 6])),
    "wrapping-lengths": made(lengths=torch.tensor([2**63 - 1, 2**63 - 1, 8])),
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
@pytest.mark.parametrize(
    ("strict", "code"), [(False, "clusters"), (True, "clusters"), (False, "subsets")]
)
def test_odd_batches_meet_the_same_error_or_the_same_answer(
    assert_same, swap_three, threads, make, strict, code
) -> None:
    module = swap_three(strict=strict, code=code)
    for _ in range(2):  # the second time with everything laid out
        assert_same(module, make)


def test_vectors_with_gaps_are_read_as_they_are(assert_same, swap_three) -> None:
    def make():
        return KeyedJaggedTensor(
            keys=[*KEYS],
            values=torch.arange(12)[::2],
            offsets=torch.tensor([0, 9, 2, 9, 4, 9, 6])[::2],
        )

    assert_same(swap_three(), make)


def test_a_cpu_without_avx2_answers_the_same_but_for_rounding(
    assert_same, swap_three, monkeypatch
) -> None:
    module, rewritten = swap_three(), swap_three()
    (ahead,) = grace.rewrite([made()()], rewritten, prefetch=0)
    want = assert_same(module, made())
    monkeypatch.setattr(plain_path, "HAS_AVX2", False)
    for answer in (assert_same(module, made()), assert_same(rewritten, lambda: ahead)):
        torch.testing.assert_close(answer[2], want[2])
        assert answer[3] == want[3]


def test_weights_are_asked_for_where_the_collection_is_weighted(assert_same, swap_three) -> None:
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


# The caller's threads, copies and transforms


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
