"""Features of different tables in one lookup: chunks follow each other across bags and features."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels import cpu, threads
from grace_kernels._lookup import lookup_span
from grace_kernels._pool_rows import pool_span
from grace_kernels.cpu import BadId, FeatureRows, look_up_features, pool_features, rewrite_counted
from grace_kernels.reference import DROP, RAISE, ZERO_ROW

NUM_ITEMS = 700
# About the size of a chunk, of a group of eight, and far from both
LENGTHS = (0, 1, 7, 8, 9, 511, 512, 513, 2000)
TABLES = (
    {"dim": 20, "hbm_share": 0.5},
    {"dim": 3, "dtype": torch.uint8, "hbm_share": 0.5},
    {"dim": 300, "sums": False},
    {"dim": 10, "dtype": torch.float16, "num_hot": 40, "subsets": True, "hbm_share": 0.3},
    {"dim": 1, "dtype": torch.float16, "sums": False},
    {"dim": 64, "subsets": True},
)
POSITIONS = (1, 0, 4, 2, 5, 2)  # two features share bags; feature 3 of the batch is not asked for
MEAN = (False, True, False, False, True, True)


@dataclass(frozen=True)
class Batch:
    """Bags of six features."""

    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None
    stride: int

    def of(self, feature):
        """Return ids, offsets and weights of the bags of an output feature."""
        first = POSITIONS[feature] * self.stride
        bounds = self.offsets[first : first + self.stride + 1]
        part = slice(bounds[0], bounds[-1])
        weights = None if self.weights is None else self.weights[part]
        return self.ids[part], bounds - bounds[0], weights


@pytest.fixture(scope="module")
def cases(table_of):
    random = np.random.default_rng(0)
    return [table_of(random, num_items=NUM_ITEMS, **options) for options in TABLES]


@pytest.fixture(scope="module", params=[True, False], ids=["mixed", "apart"])
def features(cases, request):
    """The features, rows prefetched in both ways."""
    return FeatureRows([case.table for case in cases], POSITIONS, MEAN, mixes=request.param)


@pytest.fixture
def many_threads(monkeypatch):
    """By itself the lookup divides only large batches over its threads."""
    monkeypatch.setattr(threads, "LEAST_BYTES_TO_SHARE", 0)


def batch_of(offsets_of, lengths, *, weighted=False, low=0, high=NUM_ITEMS, seed=1):
    """``lengths`` of the bags of each of the six features of the batch."""
    random = np.random.default_rng(seed)
    offsets = offsets_of(np.concatenate(lengths))
    ids = random.integers(low, high, offsets[-1])
    weights = random.choice(np.array([1, 2, -3], np.float32), ids.size) if weighted else None
    return Batch(ids, offsets, weights, len(lengths[0]))


def wanted(cases, batch, policy):
    columns, reads = [], []
    for feature, case in enumerate(cases):
        bags = batch.of(feature)
        pooled, rows_read = case.pooled(*bags, mean=MEAN[feature], policy=policy)
        ids = bags[0]
        columns.append(pooled.numpy())
        padding_only = policy == ZERO_ROW
        inside = ids != -1 if padding_only else (ids >= 0) & (ids < NUM_ITEMS)
        reads.append([int(inside.sum()), rows_read])
    return np.concatenate(columns, axis=1), reads


def look_up(features, batch, *, policy=RAISE, num_threads=1):
    out = np.full((batch.stride, features.width), np.nan, np.float32)
    reads = look_up_features(
        features, batch.ids, batch.offsets, batch.weights, batch.stride, out, policy=policy,
        num_threads=num_threads,
    )  # fmt: skip
    return out, reads.tolist()


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_about_as_long_as_a_chunk(cases, features, offsets_of, many_threads, weighted) -> None:
    random = np.random.default_rng(2)
    lengths = [random.permutation(LENGTHS) for _ in range(6)]
    batch = batch_of(offsets_of, lengths, weighted=weighted)
    want, reads = wanted(cases, batch, RAISE)
    for num_threads in (1, 3):
        out, counted = look_up(features, batch, num_threads=num_threads)
        np.testing.assert_array_equal(out, want)
        assert counted == reads


@given(
    st.lists(st.lists(st.sampled_from(LENGTHS[:-1]) | st.integers(0, 20), min_size=6, max_size=6),
             min_size=1, max_size=5),
    st.sampled_from([DROP, ZERO_ROW]),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=20)
def test_any_bags_under_any_policy(
    cases, features, offsets_of, rows_of_lengths, policy, weighted, num_threads, seed
) -> None:
    lengths = np.array(rows_of_lengths).T
    batch = batch_of(offsets_of, lengths, weighted=weighted, low=-2, high=NUM_ITEMS + 2, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LEAST_BYTES_TO_SHARE", 0)
        out, counted = look_up(features, batch, policy=policy, num_threads=num_threads)
    want, reads = wanted(cases, batch, policy)
    np.testing.assert_array_equal(out, want)
    assert counted == reads


@pytest.fixture(scope="module")
def long_batch(offsets_of):
    random = np.random.default_rng(3)
    return batch_of(offsets_of, [random.permutation(LENGTHS) for _ in range(6)])


@pytest.mark.parametrize("cut", [1, 4, 9, 10, 23, 26, 27, 44, 53])
def test_spans_may_begin_and_end_inside_a_feature(features, long_batch, cut) -> None:
    """Two spans write what one writes, and nothing of each other's bags."""
    batch, num_bags = long_batch, long_batch.stride * len(TABLES)
    want, reads = look_up(features, batch)
    ours = np.zeros((len(TABLES), 2), np.int64)
    out = np.full_like(want, np.nan)
    for begin, end in ((cut, num_bags), (0, cut)):
        bad, _ = lookup_span(
            begin, end, batch.ids, batch.offsets, cpu.EMPTY_F32, features.columns(False),
            batch.stride, RAISE, out.ctypes.data, out.strides[0], ours, features.rare(False),
        )  # fmt: skip
        assert bad == -1
        served = [place for place in range(num_bags) if begin <= place < end or end == cut]
        for feature, (left, right) in enumerate(pairwise(np.cumsum([0, *features.dims]))):
            bags = [b - feature * batch.stride for b in served if b // batch.stride == feature]
            others = np.setdiff1d(np.arange(batch.stride), bags)
            assert np.isnan(out[others, left:right]).all()
    np.testing.assert_array_equal(out, want)
    assert ours.tolist() == reads


@pytest.mark.parametrize("feature", range(6))
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_bad_id_is_named_with_the_feature_that_reads_it(
    features, long_batch, many_threads, feature, num_threads
) -> None:
    position = int(long_batch.offsets[(POSITIONS[feature] + 1) * long_batch.stride]) - 1
    ids = long_batch.ids.copy()
    ids[position] = NUM_ITEMS
    batch = Batch(ids, long_batch.offsets, None, long_batch.stride)
    with pytest.raises(BadId) as caught:
        look_up(features, batch, num_threads=num_threads)
    error = caught.value
    assert (error.position, error.id) == (position, NUM_ITEMS)
    assert POSITIONS[error.feature] == POSITIONS[feature]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_rewritten_bags_of_all_features_are_pooled_alike(
    cases, features, offsets_of, many_threads, weighted, num_threads
) -> None:
    random = np.random.default_rng(4)
    lengths = [random.permutation(LENGTHS) for _ in range(6)]
    batch = batch_of(offsets_of, lengths, weighted=weighted)
    want, _ = look_up(features, batch)
    rows, weights, ends = [], [], [0]
    for feature, case in enumerate(cases):
        _, new_rows, new_ends, new_weights = rewrite_counted(
            *batch.of(feature), case.table.codes, NUM_ITEMS, RAISE, case.table.subsets
        )
        rows.append(new_rows)
        weights.append(new_weights)
        ends += (ends[-1] + new_ends[1:]).tolist()
    given_lengths = np.array([np.diff(batch.of(f)[1]) for f in range(6)])
    in_order = FeatureRows([case.table for case in cases], range(6), MEAN)
    out = np.full_like(want, np.nan)
    pool_features(
        in_order, np.concatenate(rows), np.array(ends),
        np.concatenate(weights) if weighted else None, given_lengths, out, num_threads=num_threads,
    )  # fmt: skip
    np.testing.assert_array_equal(out, want)


def test_rewritten_bags_may_be_pooled_in_two_spans(cases, offsets_of) -> None:
    rows = [np.arange(NUM_ITEMS, dtype=np.int64) % 90 for _ in cases]
    lengths = np.tile([100, 0, 590, 10], (6, 1))
    features = FeatureRows([case.table for case in cases], range(6), MEAN)
    offsets = offsets_of(lengths.ravel())
    whole = np.full((4, features.width), np.nan, np.float32)
    pool_features(features, np.concatenate(rows), offsets, None, lengths, whole, num_threads=1)
    for cut in (1, 3, 4, 14, 23):
        out = np.full_like(whole, np.nan)
        for begin, end in ((0, cut), (cut, 24)):
            assert pool_span(
                begin, end, np.concatenate(rows), offsets, offsets, cpu.EMPTY_F32,
                features.pooling_columns(False), features.num_sums_F, 4, out.ctypes.data,
                out.strides[0],
            )[0] == -1  # fmt: skip
        np.testing.assert_array_equal(out, whole)


@pytest.mark.soak
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_long_runs(cases, features, offsets_of, many_threads, weighted, num_threads) -> None:
    """More than 10,000 bags a feature and path: short, long, full of repeats, with bad ids."""
    random = np.random.default_rng(int(weighted) + 2 * num_threads)
    for seed in range(40):
        lengths = random.choice([0, 1, 2, 5, 20, 60, 130], (6, 256))
        high = int(random.choice([4, 60, NUM_ITEMS + 3]))  # few ids: nothing but repeats
        batch = batch_of(offsets_of, lengths, weighted=weighted, low=-2, high=high, seed=seed)
        policy = (DROP, ZERO_ROW)[seed % 2]
        out, counted = look_up(features, batch, policy=policy, num_threads=num_threads)
        want, reads = wanted(cases, batch, policy)
        np.testing.assert_array_equal(out, want)
        assert counted == reads
