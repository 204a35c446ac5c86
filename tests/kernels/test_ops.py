"""The registered ops: schema, shapes, messages, and what they refuse."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grace_kernels import ops, ops_rows
from grace_kernels.cpu import rewrite_counted
from grace_kernels.reference import DROP, RAISE, ZERO_ROW

GRACE = torch.ops.grace
GUARD = torch.empty(0, dtype=torch.int8)
LABELS = ["table 'a', feature 'x'", "table 'b', feature 'y'"]


class Batch:
    """Two tables with everything a table can have; feature 'y' stands first in the batch."""

    def __init__(
        self,
        table_of,
        subset_tensors_of,
        *,
        stride=3,
        weighted=False,
        dtype=torch.float32,
        high=40,
        subsets=True,
    ):
        random = np.random.default_rng(stride)
        self.cases = [
            table_of(random, dim=3, dtype=dtype, hbm_share=0.5, num_hot=5),
            table_of(random, dim=5, dtype=dtype, subsets=subsets),
        ]
        lengths = torch.from_numpy(random.integers(0, 9, 2 * stride))
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        self.ids = torch.from_numpy(random.integers(0, high, int(self.offsets[-1])))
        self.weights = torch.ones(self.ids.numel()) if weighted else None
        self.stride = stride
        tables = [case.table for case in self.cases]
        self.rows = [case.rows_ND for case in self.cases]
        self.hbm = [torch.from_numpy(table.hbm_RD) for table in tables]
        self.host = [torch.from_numpy(table.host_RD) for table in tables]
        self.codes = [torch.from_numpy(table.codes) for table in tables]
        self.hot = [torch.from_numpy(table.hot_row_N) for table in tables]
        self.subsets = subset_tensors_of(tables)
        self.num_hbm_sums = [table.num_hbm_sums for table in tables]

    def lookup_arguments(self, policy=RAISE):
        return (
            self.ids, self.offsets, self.weights, self.stride, [1, 0], [0, 1], self.rows, self.hbm,
            self.host, [False, True], self.codes, self.hot, self.num_hbm_sums, policy, LABELS, GUARD,
            *self.subsets,
        )  # fmt: skip

    def rewrite_arguments(self, policy=RAISE, num_others=0):
        return (
            self.ids, self.offsets, self.weights, self.stride, [1, 0], [0, 1], [40, 40], self.codes,
            self.hot, self.num_hbm_sums, policy, LABELS, num_others, GUARD, *self.subsets,
        )  # fmt: skip

    def features_arguments(self, policy=RAISE):
        return (
            self.ids, self.offsets, self.weights, self.stride, [1, 0], [0, 1], [40, 40], self.codes,
            policy, LABELS, *self.subsets,
        )  # fmt: skip


@pytest.fixture
def batch_of(table_of, subset_tensors):
    return lambda **options: Batch(table_of, subset_tensors, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_the_schema_and_the_shapes_are_kept(batch_of, stride, weighted):
    """opcheck: nothing is mutated or aliased, and fake tensors get the shapes of real ones."""
    batch = batch_of(stride=stride, weighted=weighted)
    torch.library.opcheck(GRACE.pooled_lookup.default, batch.lookup_arguments())
    for num_others in (0, 2):
        torch.library.opcheck(
            GRACE.rewrite_bags.default, batch.rewrite_arguments(num_others=num_others)
        )
    pieces = [torch.randn(stride, 3), torch.randn(stride, 1)]
    torch.library.opcheck(GRACE.join_columns.default, (pieces,))


@pytest.mark.parametrize("stride", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_fake_lookups_have_the_shape_and_type_of_real_ones(batch_of, stride, dtype):
    arguments = batch_of(stride=stride, dtype=dtype).lookup_arguments()
    real = GRACE.pooled_lookup(*arguments)
    with FakeTensorMode() as mode:
        fakes = [
            [mode.from_tensor(t) for t in a]
            if isinstance(a, list) and a and isinstance(a[0], torch.Tensor)
            else mode.from_tensor(a)
            if isinstance(a, torch.Tensor)
            else a
            for a in arguments
        ]
        fake = GRACE.pooled_lookup(*fakes)
    assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]
    assert real[0].dtype == torch.float32


def test_features_and_columns_are_those_asked_for(batch_of):
    batch = batch_of()
    pooled, reads = GRACE.pooled_lookup(*batch.lookup_arguments())
    columns = pooled.split([3, 5], dim=1)
    for feature, (position, mean) in enumerate(((1, False), (0, True))):
        case = batch.cases[feature]
        offsets = batch.offsets[position * 3 : position * 3 + 4]
        begin, end = int(offsets[0]), int(offsets[-1])
        want, rows_read = case.pooled(
            batch.ids[begin:end], offsets - begin, mean=mean, policy=RAISE
        )
        assert torch.equal(columns[feature], want)
        assert reads[feature].tolist() == [end - begin, rows_read]


@pytest.mark.parametrize("weighted", [False, True])
def test_rewritten_bags_are_split_by_the_memory_of_each_row(batch_of, weighted):
    batch = batch_of(weighted=weighted)
    values, lengths, weights, bag_lengths, reads = GRACE.rewrite_bags(
        *batch.rewrite_arguments(num_others=1)
    )
    parts = lengths.view(3, len(ops.PARTS), 3)  # feature (the last one empty), part, bag
    assert not parts[2].any()
    assert int(parts.sum()) == values.numel() == reads[:, 1].sum()
    assert weights.numel() == (values.numel() if weighted else 0)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).tolist()
    for feature, position in enumerate((1, 0)):
        case, table = batch.cases[feature], batch.cases[feature].table
        offsets = batch.offsets[position * 3 : position * 3 + 4].numpy()
        bits = None if batch.weights is None else batch.weights.numpy()
        asked, row_ids, row_ends, _ = rewrite_counted(
            batch.ids.numpy(), offsets, bits, table.codes, 40, RAISE, table.subsets
        )
        assert reads[feature].tolist() == [asked, row_ids.size]
        assert bag_lengths[feature].tolist() == np.diff(offsets).tolist()
        everything = torch.cat([case.rows_ND, case.stored_RD])
        for bag in range(3):
            want = everything[row_ids[row_ends[bag] : row_ends[bag + 1]]]
            got = []
            for part, rows in enumerate((case.rows_ND, table.hbm_RD, table.host_RD)):
                place = (feature * 3 + part) * 3 + bag
                ids = values[ends[place] : ends[place + 1]].tolist()
                got += [tuple(rows[i].tolist()) for i in ids]
                if part == 0 and table.hot_row_N.size:
                    assert (table.hot_row_N[ids] < 0).all()
            assert sorted(got) == sorted(map(tuple, want.tolist()))


def test_a_batch_without_bags_is_rewritten_to_one_empty_bag_each(batch_of):
    values, lengths, _, bag_lengths, reads = GRACE.rewrite_bags(
        *batch_of(stride=0).rewrite_arguments(num_others=2)
    )
    assert values.numel() == 0
    assert lengths.tolist() == [0] * (3 * 4)
    assert bag_lengths.shape == (2, 0)
    assert reads.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [40, -2, 2**31 + 5])
@pytest.mark.parametrize("op", ["pooled_lookup", "rewrite_bags"])
def test_a_bad_id_is_named_with_table_feature_sample_and_rows(batch_of, op, bad):
    batch = batch_of()
    first = int(torch.nonzero(batch.offsets[4:] > batch.offsets[3])[0])  # first bag of 'x' with ids
    batch.ids[batch.offsets[3]] = bad
    arguments = batch.lookup_arguments() if op == "pooled_lookup" else batch.rewrite_arguments()
    message = rf"table 'a', feature 'x': sample {first} holds id {bad}, the table has 40 rows; fix"
    with pytest.raises(ValueError, match=message):
        getattr(GRACE, op)(*arguments)


def test_tables_without_a_subset_code_need_no_subset_tables(batch_of):
    batch = batch_of(subsets=False)
    arguments = batch.lookup_arguments()
    for first, other in zip(
        GRACE.pooled_lookup(*arguments), GRACE.pooled_lookup(*arguments[:-2]), strict=True
    ):
        assert torch.equal(first, other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda parts, marks: (parts[:1], marks),
            "2 tables need a tensor of parts and one of marks",
        ),
        (lambda parts, marks: (parts, None), "2 tables need a tensor of parts and one of marks"),
        (lambda parts, marks: (parts, [marks[0], marks[1][:-1]]), r"need \d+ words of marks, got"),
        (lambda parts, marks: (parts, [marks[0], marks[0]]), r"need \d+ words of marks, got 0"),
        (lambda parts, marks: ([parts[0], parts[1].int()], marks), "subset tables are uint8 and"),
        (lambda parts, marks: ([parts[0], parts[1][:4]], [marks[0], marks[1][:1]]), "codes name"),
    ],
)
def test_subset_tables_that_do_not_fit_are_refused(batch_of, change, said):
    batch = batch_of()
    for op, arguments in (
        (GRACE.pooled_lookup, batch.lookup_arguments()),
        (GRACE.rewrite_bags, batch.rewrite_arguments()),
    ):
        with pytest.raises(ValueError, match=said):
            op(*arguments[:-2], *change(*batch.subsets))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: (b.ids, b.offsets + 1),
        lambda b: (b.ids, b.offsets - 1),
        lambda b: (b.ids[:-1], b.offsets),
        lambda b: (b.ids, torch.cat([b.offsets[:2], b.offsets[:1], b.offsets[3:]])),
        lambda b: (b.ids, torch.cat([b.offsets[:-1], b.offsets[-1:] + 2**40])),
        lambda b: (b.ids, b.offsets[:-1]),
        lambda b: (b.ids, b.offsets.int()),
        lambda b: (b.ids, b.offsets[:0]),
        lambda b: (b.ids.float(), b.offsets),
        lambda b: (b.ids[None], b.offsets),
    ],
)
def test_bags_that_read_elsewhere_are_refused_before_anything_is_read(batch_of, change):
    batch = batch_of()
    for op, arguments in (
        (GRACE.pooled_lookup, batch.lookup_arguments()),
        (GRACE.rewrite_bags, batch.rewrite_arguments()),
        (ops_rows.rewrite_features, batch.features_arguments()),
    ):
        with pytest.raises(ValueError, match="bags: 3 bags of 2 features need 7 int64 offsets"):
            op(*change(batch), *arguments[2:])


@pytest.mark.parametrize("weights", [torch.ones(1), torch.ones(400, dtype=torch.float64)])
def test_weights_of_other_ids_are_refused(batch_of, weights):
    batch = batch_of(weighted=True)
    batch.weights = weights[: batch.ids.numel()]
    with pytest.raises(ValueError, match="weights float32 or none"):
        GRACE.pooled_lookup(*batch.lookup_arguments())


@pytest.mark.parametrize("policy", [DROP, ZERO_ROW])
def test_both_ops_count_the_same_reads_under_every_policy(batch_of, policy):
    batch = batch_of(stride=9)
    batch.ids[::3] = 77
    batch.ids[1::5] = -1
    looked_up = GRACE.pooled_lookup(*batch.lookup_arguments(policy))[1]
    rewritten = GRACE.rewrite_bags(*batch.rewrite_arguments(policy))[4]
    assert torch.equal(looked_up, rewritten)


@pytest.mark.parametrize("what", ["rows", "weights"])
def test_a_backward_through_a_lookup_is_an_error(batch_of, what):
    batch = batch_of(weighted=True)
    (batch.rows[0] if what == "rows" else batch.weights).requires_grad_()
    pooled, _ = GRACE.pooled_lookup(*batch.lookup_arguments())
    with pytest.raises(NotImplementedError, match="inference only; call restore_"):
        pooled.sum().backward()


def test_a_backward_through_rewritten_weights_is_an_error(batch_of):
    """PyTorch would leave the gradient at None and warn."""
    batch = batch_of(weighted=True)
    batch.weights.requires_grad_()
    weights = GRACE.rewrite_bags(*batch.rewrite_arguments())[2]
    with pytest.raises(NotImplementedError, match="inference only; call restore_"):
        weights.sum().backward()


def test_a_backward_through_joined_columns_is_an_error():
    piece = torch.randn(2, 3, requires_grad=True)
    joined = GRACE.join_columns([torch.zeros(2, 1), piece])
    assert joined.shape == (2, 4)
    with pytest.raises(NotImplementedError, match="inference only; call restore_"):
        joined.sum().backward()


def strided(rows):
    """The same values, in a column slice of a wider tensor."""
    return torch.cat([rows, rows], dim=1)[:, : rows.shape[1]]


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("rows", strided, "contiguous"),
        ("hbm", strided, "contiguous"),
        ("host", torch.Tensor.t, "contiguous"),
        ("hbm", torch.Tensor.half, "float16"),
        ("host", torch.Tensor.double, "float64"),
        ("host", lambda rows: rows[:, :-1].contiguous(), "width"),
        ("hot", lambda hot: hot.long(), "int64"),
        ("hot", lambda hot: hot[:-1], "39"),
    ],
)
def test_rows_that_lie_otherwise_than_they_are_read_are_refused(batch_of, part, change, said):
    """Kernels read by address: one pitch and one type for all rows of a table."""
    batch = batch_of()
    rewritten = ops_rows.rewrite_features(*batch.features_arguments())[:4]
    held = getattr(batch, part)
    held[0] = change(held[0])
    with pytest.raises(ValueError, match=said):
        GRACE.pooled_lookup(*batch.lookup_arguments())
    with pytest.raises(ValueError, match=said):
        GRACE.pooled_rows(
            *rewritten, [0, 1], [0, 1], batch.rows, batch.hbm, batch.host, [False, True],
            batch.hot, batch.num_hbm_sums, LABELS, GUARD,
        )  # fmt: skip
