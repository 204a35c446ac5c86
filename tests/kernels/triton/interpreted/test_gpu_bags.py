"""Rewritten bags for stock lookups, by the interpreter: the rows that the CPU's op names, or as many sums."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grace_kernels import ops
from grace_kernels.errors import NoCapture
from grace_kernels.gpu import raise_arrived_bad_ids
from grace_kernels.gpu_bags import rewrite_bags_of_features
from grace_kernels.reference import DROP, RAISE, ZERO_ROW

STRIDE = 3


@pytest.fixture
def call(table_of, subset_tensors):
    """Return a function that makes tables and the arguments of a call: four features, two tables."""

    def make(policy, *, weighted=False, bad=False, repeats=False, stride=STRIDE, others=1, seed=5):
        random = np.random.default_rng(seed)
        tables = [
            table_of(random, dim=2, hbm_share=0.5, num_hot=9),
            table_of(random, dim=3, hbm_share=0.4, subsets=True),
        ]
        lengths = random.integers(0, 12, 4 * stride)
        bags = [random.choice(40, size, replace=repeats) for size in lengths]
        values = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *bags]))
        if bad:
            values[::7], values[3::7], values[-1] = 40, -1, -5
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        weights = torch.from_numpy(random.choice([1.0, 2.0], len(values))).float()
        numpy_of = [t.table for t in tables]
        labels = [f"table 'ab'[{t}], feature {f}" for f, t in enumerate((0, 1, 0, 1))]
        return tables, (
            values, offsets, weights if weighted else None, stride, [2, 0, 2, 3], [0, 1, 0, 1],
            [40, 40],
            [torch.from_numpy(t.codes) for t in numpy_of],
            [torch.from_numpy(t.hot_row_N) for t in numpy_of],
            [t.num_hbm_sums for t in numpy_of],
            policy, labels, others, torch.zeros(0, dtype=torch.int8),
            *subset_tensors(numpy_of),
        )  # fmt: skip

    return make


def bags_by_part(result):
    """Return the sorted (row, weight) pairs of every feature, part and bag."""
    values, lengths, weights = result[:3]
    assert int(lengths.sum()) == values.numel()
    pairs = list(zip(values.tolist(), weights.tolist() or [1.0] * values.numel(), strict=True))
    ends = lengths.cumsum(0).tolist()
    return [sorted(pairs[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_without_repeats_are_rewritten_as_the_cpu_does(weighted, call) -> None:
    _, arguments = call(RAISE, weighted=weighted)
    got = rewrite_bags_of_features(*arguments)
    want = torch.ops.grace.rewrite_bags(*arguments)
    assert [part.dtype for part in got] == [part.dtype for part in want]
    assert [part.shape for part in got] == [part.shape for part in want]
    assert bags_by_part(got) == bags_by_part(want)
    for place in (1, 3, 4):
        assert torch.equal(got[place], want[place])


@pytest.mark.parametrize(("policy", "weighted"), [(DROP, True), (ZERO_ROW, False)])
def test_repeats_and_bad_ids_are_read_once_each(policy, weighted, call) -> None:
    """Other rows may be chosen for repeats; what a bag adds up to is the same."""
    tables, arguments = call(policy, weighted=weighted, bad=True, repeats=True)
    results = [rewrite_bags_of_features(*arguments), torch.ops.grace.rewrite_bags(*arguments)]
    sums = []
    for result in results:
        bags = iter(bags_by_part(result))
        for t in (0, 1, 0, 1):
            held = tables[t].table
            parts = (held.rows_ND, held.hbm_RD, held.host_RD)
            totals = [np.zeros((STRIDE, held.dim)) for _ in parts]
            for total, rows in zip(totals, parts, strict=True):
                for bag in range(STRIDE):
                    for row, weight in next(bags):
                        total[bag] += weight * rows[row].astype(np.float64)
            sums.append(sum(totals))
        assert all(not bag for bag in bags)  # features that are looked up elsewhere
    for got, want in zip(sums[:4], sums[4:], strict=True):
        np.testing.assert_array_equal(got, want)
    assert torch.equal(results[0][3], results[1][3])
    assert torch.equal(results[0][4][:, 0], results[1][4][:, 0])


@pytest.mark.parametrize("others", [0, 2])
def test_a_batch_without_bags_becomes_one_empty_bag_of_each(call, others) -> None:
    _, arguments = call(RAISE, stride=0, others=others)
    got = rewrite_bags_of_features(*arguments)
    want = torch.ops.grace.rewrite_bags(*arguments)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
    assert got[1].tolist() == [0] * (len(ops.PARTS) * (4 + others))


def test_bad_ids_raise_with_table_and_feature_and_only_once(call) -> None:
    _, arguments = call(RAISE, bad=True)
    with pytest.raises(
        ValueError, match=r"table 'ab'\[0\], feature 0: \d+ ids are outside 0\.\.39"
    ):
        rewrite_bags_of_features(*arguments)
    raise_arrived_bad_ids(wait=True)
    rewrite_bags_of_features(*call(RAISE)[1])


def test_it_refuses_to_be_recorded(monkeypatch, call) -> None:
    """The host waits for the device in it, which a CUDA graph does not permit."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    _, (values, *rest) = call(RAISE)
    with FakeTensorMode():
        on_gpu = torch.empty(len(values), dtype=torch.int64, device="cuda")
    with pytest.raises(NoCapture, match=r"cannot be recorded in a CUDA graph.*'fused'"):
        rewrite_bags_of_features(on_gpu, *rest)
