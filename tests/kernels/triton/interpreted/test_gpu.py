"""The op for GPUs, run by the interpreter: what the CPU's op returns, feature by feature."""

import numpy as np
import pytest
import torch

import grace_kernels.ops  # noqa: F401  registers the ops
from grace_kernels import gpu
from grace_kernels.gpu import pooled_lookup_of_features, raise_arrived_bad_ids
from grace_kernels.reference import DROP, RAISE, ZERO_ROW

STRIDE = 3


@pytest.fixture
def call(table_of, subset_tensors):
    """Return a function that makes the arguments of a call: a table for each of three features."""

    def make(policy, *, weighted=False, bad=False):
        random = np.random.default_rng(11)
        tables = [
            table_of(random, dim=8, hbm_share=0.5, num_hot=4),
            table_of(random, dim=16, subsets=True),
            table_of(random, dim=4, sums=False),
        ]
        lengths = random.integers(0, 12, 3 * STRIDE)
        values = torch.from_numpy(random.integers(0, 40, lengths.sum()))
        if bad:
            values[::7], values[3::7], values[-1] = 40, -1, 40
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        numpy_of = [t.table for t in tables]
        return (
            values, offsets, torch.rand(len(values)).round() if weighted else None, STRIDE,
            [2, 0, 1], [0, 1, 2],
            [t.rows_ND for t in tables],
            [torch.from_numpy(t.hbm_RD) for t in numpy_of],
            [torch.from_numpy(t.host_RD) for t in numpy_of],
            [False, True, False],
            [torch.from_numpy(t.codes) for t in numpy_of],
            [torch.from_numpy(t.hot_row_N) for t in numpy_of],
            [t.num_hbm_sums for t in numpy_of],
            policy, ["table 'a', feature 'f'", "table 'b', feature 'g'", "table 'c', feature 'h'"],
            torch.zeros(0, dtype=torch.int8), *subset_tensors(numpy_of),
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("policy", "weighted", "bad"),
    [(RAISE, False, False), (RAISE, True, False), (DROP, False, True), (ZERO_ROW, False, True)],
)
def test_it_returns_what_the_cpu_returns(policy, weighted, bad, call) -> None:
    arguments = call(policy, weighted=weighted, bad=bad)
    pooled, reads = pooled_lookup_of_features(*arguments)
    want, want_reads = torch.ops.grace.pooled_lookup(*arguments)
    torch.testing.assert_close(pooled, want, rtol=1e-6, atol=0)
    assert reads[:, 0].tolist() == want_reads[:, 0].tolist()
    assert (reads[:, 1] >= want_reads[:, 1]).all()  # earlier copies of an id read their own row
    assert (reads[:, 1] <= reads[:, 0]).all()


def test_bad_ids_raise_with_table_and_feature_and_only_once(call) -> None:
    with pytest.raises(ValueError, match=r"table 'a', feature 'f': \d+ ids are outside 0\.\.39"):
        pooled_lookup_of_features(*call(RAISE, bad=True))
    raise_arrived_bad_ids(wait=True)
    pooled_lookup_of_features(*call(RAISE))


class Forbidden:
    """An event of an earlier call: recording a graph ends with an error if it is asked."""

    def query(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    synchronize = query


@pytest.mark.parametrize("wait", [False, True])
def test_a_recorded_call_leaves_earlier_counts_alone(monkeypatch, wait) -> None:
    """torch.cuda.graph waits for the device and takes nothing from our queue."""
    counts = gpu._Counts(torch.tensor([2], dtype=torch.int32), ("table 'a'",), (40,), Forbidden())
    gpu._on_their_way.append(counts)
    try:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        raise_arrived_bad_ids(wait=wait)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        with pytest.raises(RuntimeError, match="not permitted"):  # asked again afterwards
            raise_arrived_bad_ids()
    finally:
        gpu._on_their_way.clear()
