"""Bags that were rewritten ahead: the same sums, and no row outside the table is ever read."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels import ops_rows, threads
from grace_kernels.cpu import BadRow, pooled_lookup, pooled_rows, rewrite_counted
from grace_kernels.reference import (
    RAISE,
    pool_rewritten_reference,
    pooled_lookup_reference,
)

GRACE = torch.ops.grace
GUARD = torch.empty(0, dtype=torch.int8)
LABELS = ["table 'a', feature 'x'", "table 'b', feature 'y'"]


@pytest.fixture(scope="module", autouse=True)
def small_batches_are_shared_too():
    """By itself the lookup divides only large batches over its threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LEAST_BYTES_TO_SHARE", 0)
        yield


def pool(case, row_ids, offsets, weights, lengths, *, mean=False, num_threads=1):
    """Pool into the middle of a buffer of NaN: what is not the output must stay NaN."""
    dim = case.rows_ND.shape[1]
    buffer = np.full((offsets.size - 1 + 2, dim + 5), np.nan, np.float32)
    out = buffer[1:-1, 2 : 2 + dim]
    pooled_rows(
        row_ids, offsets, weights, lengths, case.table, out, mean=mean, num_threads=num_threads
    )
    outside = np.ones(buffer.shape, bool)
    outside[1:-1, 2 : 2 + dim] = False
    assert np.isnan(buffer[outside]).all()
    return out


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 25), max_size=12),
    hbm_share=st.sampled_from([0.0, 0.4, 1.0]),
    num_hot=st.sampled_from([0, 1, 9]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    sums=st.booleans(),
    weighted=st.booleans(),
    mean=st.booleans(),
    num_threads=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=200, deadline=None)
def test_any_rows_in_any_layout_are_pooled_as_the_reference_does(
    table_of,
    offsets_of,
    seed,
    lengths,
    hbm_share,
    num_hot,
    dtype,
    sums,
    weighted,
    mean,
    num_threads,
):
    """Whole rows: the order of adding does not matter, so every bit must be right."""
    random = np.random.default_rng(seed)
    case = table_of(random, dim=5, dtype=dtype, sums=sums, hbm_share=hbm_share, num_hot=num_hot)
    offsets = offsets_of(lengths)
    row_ids = random.integers(0, 40 + case.stored_RD.shape[0], offsets[-1])
    weights = random.choice(np.array([1, 2, -3], np.float32), row_ids.size) if weighted else None
    given_lengths = np.diff(offsets) + random.integers(0, 9, len(lengths))
    got = pool(case, row_ids, offsets, weights, given_lengths, mean=mean, num_threads=num_threads)
    want = pool_rewritten_reference(
        torch.from_numpy(row_ids),
        torch.from_numpy(offsets),
        None if weights is None else torch.from_numpy(weights),
        torch.from_numpy(given_lengths),
        case.rows_ND,
        case.stored_RD,
        mean=mean,
    )
    np.testing.assert_array_equal(got, want.numpy())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("lengths", [[1] * 5000, [3000, 0, 5, 9000], [0] * 3000, []])
def test_rewriting_ahead_gives_the_bits_of_rewriting_in_line(
    table_of, offsets_of, lengths, mean, weighted
):
    """Rows that are no integers: both ways add the same rows in the same order."""
    random = np.random.default_rng(3)
    case = table_of(random, num_items=400, dim=20, whole=False, hbm_share=0.5, num_hot=30)
    offsets = offsets_of(lengths)
    ids = random.integers(0, 400, offsets[-1])
    weights = random.choice(np.array([0.5, 3], np.float32), ids.size) if weighted else None
    asked, row_ids, ends, row_weights = rewrite_counted(
        ids, offsets, weights, case.table.codes, 400, RAISE
    )
    want = np.empty((len(lengths), 20), np.float32)
    counts = pooled_lookup(
        ids, offsets, weights, case.table, want, mean=mean, policy=RAISE, num_threads=1
    )
    got = pool(case, row_ids, ends, row_weights, np.diff(offsets), mean=mean)
    np.testing.assert_array_equal(got, want)
    assert counts == (asked, row_ids.size)
    again = pool(case, row_ids, ends, row_weights, np.diff(offsets), mean=mean, num_threads=3)
    np.testing.assert_array_equal(again, want)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("num_hot", [0, 3])
@pytest.mark.parametrize("by", [-(2**63), -(2**62), -1, 0, 1, 2**40, 2**62])
def test_a_row_outside_is_an_error_that_names_it(table_of, offsets_of, by, num_hot, num_threads):
    case = table_of(np.random.default_rng(0), hbm_share=0.5, num_hot=num_hot)
    end = 40 + case.stored_RD.shape[0]
    offsets = offsets_of([2, 0, 4, 1, 1, 1, 1])
    row_ids = np.arange(10, dtype=np.int64)
    row_ids[4] = by if by < 0 else end + by
    with pytest.raises(BadRow, match=rf"row {row_ids[4]} at position 4 is outside"):
        pool(case, row_ids, offsets, None, np.diff(offsets), num_threads=num_threads)
    row_ids[4] = end - 1  # the last stored row is inside
    pool(case, row_ids, offsets, None, np.diff(offsets), num_threads=num_threads)


class Batch:
    """Two tables; feature 'y' stands first in the batch."""

    def __init__(self, table_of, *, stride=3, weighted=False, dtype=torch.float32):
        random = np.random.default_rng(stride)
        self.cases = [
            table_of(random, dim=3, dtype=dtype, hbm_share=0.5, num_hot=5),
            table_of(random, dim=5, dtype=dtype),
        ]
        lengths = torch.from_numpy(random.integers(0, 9, 2 * stride))
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        self.ids = torch.from_numpy(random.integers(0, 40, int(self.offsets[-1])))
        self.weights = torch.ones(self.ids.numel()) if weighted else None
        self.stride = stride
        tables = [case.table for case in self.cases]
        self.codes = [torch.from_numpy(table.codes) for table in tables]
        self.held = [
            [case.rows_ND for case in self.cases],
            [torch.from_numpy(table.hbm_RD) for table in tables],
            [torch.from_numpy(table.host_RD) for table in tables],
            [False, True],
            [torch.from_numpy(table.hot_row_N) for table in tables],
            [table.num_hbm_sums for table in tables],
        ]

    def rewritten(self):
        return list(
            ops_rows.rewrite_features(
                self.ids, self.offsets, self.weights, self.stride, [1, 0], [0, 1], [40, 40],
                self.codes, RAISE, LABELS,
            )
        )  # fmt: skip

    def arguments(self, parts, positions=(0, 1), table_of=(0, 1)):
        return (*parts[:4], list(positions), list(table_of), *self.held, LABELS, GUARD)


@pytest.fixture
def batch_of(table_of):
    return lambda **options: Batch(table_of, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_the_schema_and_the_shapes_are_kept(batch_of, stride, weighted):
    """opcheck: nothing is mutated or aliased, and fake tensors get the shapes of real ones."""
    batch = batch_of(stride=stride, weighted=weighted)
    torch.library.opcheck(GRACE.pooled_rows.default, batch.arguments(batch.rewritten()))


def test_features_and_columns_are_those_asked_for(batch_of):
    batch = batch_of()
    parts = batch.rewritten()
    columns = GRACE.pooled_rows(*batch.arguments(parts, (1, 0), (1, 0))).split([5, 3], dim=1)
    for column, feature in zip(columns, (1, 0), strict=True):
        case, position = batch.cases[feature], 1 - feature
        offsets = batch.offsets[position * 3 : position * 3 + 4]
        begin, end = int(offsets[0]), int(offsets[-1])
        want, rows_read = pooled_lookup_reference(
            batch.ids[begin:end], offsets - begin, None, case.rows_ND, case.stored_RD,
            case.item_code_N, mean=feature == 1, policy=RAISE,
        )  # fmt: skip
        assert torch.equal(column, want)
        assert parts[4][feature].tolist() == [end - begin, rows_read]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (0, lambda t: t[:-1]),
        (0, lambda t: t.int()),
        (0, lambda t: torch.stack([t, t], dim=1)[:, 0]),
        (1, lambda t: t[:-1]),
        (1, lambda t: t + 1),
        (1, lambda t: torch.cat([t[:1], t[-1:], t[2:]])),
        (1, lambda t: torch.cat([t[:-1], t[-1:] + 2**40])),
        (2, lambda t: t[:-1]),
        (2, lambda t: t.double()),
        (3, lambda t: t[:, :2].contiguous()),
        (3, lambda t: t.flatten()),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(batch_of, part, change):
    batch = batch_of(weighted=True)
    parts = batch.rewritten()
    parts[part] = change(parts[part])
    with pytest.raises(ValueError, match=r"rewritten batch: .*; rewrite the batch again"):
        GRACE.pooled_rows(*batch.arguments(parts))


def test_a_row_outside_is_named_with_table_feature_and_sample(batch_of):
    batch = batch_of()
    parts = batch.rewritten()
    first = int(torch.nonzero(parts[1][1:] > 0)[0])  # the first bag with rows
    parts[0][0] = 4000
    num_sums = batch.cases[0].stored_RD.shape[0]
    message = (
        rf"table 'a', feature 'x': sample {first} reads row 4000, there are 40 rows "
        rf"and {num_sums} sums; rewrite"
    )
    with pytest.raises(ValueError, match=message):
        GRACE.pooled_rows(*batch.arguments(parts))


@pytest.mark.parametrize("what", ["rows", "weights"])
def test_a_backward_through_rewritten_rows_is_an_error(batch_of, what):
    batch = batch_of(weighted=True)
    parts = batch.rewritten()
    (batch.held[0][0] if what == "rows" else parts[2]).requires_grad_()
    pooled = GRACE.pooled_rows(*batch.arguments(parts))
    with pytest.raises(NotImplementedError, match="inference only; call restore_"):
        pooled.sum().backward()
