"""The ops over tables of any code: schema, shapes, answers of the references, messages."""

import itertools

import numpy as np
import pytest
import torch

from grace_kernels import ops_codes  # noqa: F401  # registers them
from grace_kernels.reference import DROP, RAISE, ZERO_ROW
from grace_kernels.reference_subsets import rewrite_subsets_reference
from grace_kernels.table_codes import SetTensors, SubsetTensors, as_arguments, from_arguments
from grace_torchrec.sums.stored_sums import StoredSums

GRACE = torch.ops.grace
GUARD = torch.empty(0, dtype=torch.int8)
LABELS = ["table 'a', feature 'x'", "table 'b', feature 'y'"]
NUM_ROWS = 16


def clusters():
    """Codes of three clusters of 16 items."""
    sums = StoredSums.from_clusters(NUM_ROWS, np.array([0, 2, 5, 13]), np.arange(13))
    return torch.from_numpy(sums.code.item_code_N), sums


def subsets():
    """A subset code over the same clusters that stores some of their subsets."""
    random = np.random.default_rng(0)
    starts = np.cumsum([0, 4, 8])
    entries = [
        int(start) + mask
        for start, size in zip(starts, (2, 3, 8), strict=True)
        for mask in range(1 << size)
        if mask.bit_count() > 1 and random.random() < 0.4
    ]
    sums = StoredSums.from_subsets(
        NUM_ROWS, np.array([0, 2, 5, 13]), np.arange(13), np.array(entries)
    )
    code = sums.code
    tensors = SubsetTensors(
        torch.from_numpy(code.item_code_N),
        torch.from_numpy(code.next_E),
        torch.from_numpy(code.stored_W.view(np.int64)),
        torch.from_numpy(code.ranks_W),
    )
    return tensors, sums


def sets():
    """A set code of overlapping sets."""
    items = [[0, 1], [1, 2], [1, 2, 3], [5, 9, 11]]
    indptr = np.cumsum([0, *map(len, items)])
    sums = StoredSums.from_sets(NUM_ROWS, indptr, np.concatenate(items))
    code = sums.code
    arrays = (code.home_indptr_N1, code.set_row_R, code.others_indptr_R1, code.others_S)
    return SetTensors(*(torch.from_numpy(array) for array in arrays)), sums


def rows_of(sums, dim, dtype):
    """Whole rows, and the sums of the sets."""
    rows = torch.randint(-8, 9, (NUM_ROWS, dim), generator=torch.Generator().manual_seed(dim))
    bounds = sums.set_indptr_R1.tolist()
    sets = [sums.set_items_S[a:b] for a, b in itertools.pairwise(bounds)]
    stored = torch.stack([rows[torch.from_numpy(items)].sum(0) for items in sets])
    return rows.to(dtype), stored.to(dtype)


class Batch:
    """Two tables of different codes; feature 'y' stands first in the batch."""

    def __init__(self, *codes, stride=3, weighted=False, dtype=torch.float32, high=NUM_ROWS):
        random = np.random.default_rng(stride)
        self.codes, self.sums = zip(*(make() for make in codes), strict=True)
        lengths = torch.from_numpy(random.integers(0, 14, 2 * stride))
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        self.ids = torch.from_numpy(random.integers(0, high, int(self.offsets[-1])))
        self.weights = torch.ones(self.ids.numel()) if weighted else None
        self.stride = stride
        tables = [rows_of(sums, dim, dtype) for sums, dim in zip(self.sums, (3, 5), strict=True)]
        self.rows = [rows for rows, _ in tables]
        self.hbm = [stored[:2] for _, stored in tables]
        self.host = [stored[2:] for _, stored in tables]
        self.hot = [torch.empty(0, dtype=torch.int32)] * 2

    def arguments(self, before, policy, between):
        tensors, kinds = as_arguments(self.codes)
        bags = (self.ids, self.offsets, self.weights, self.stride, [1, 0], [0, 1])
        return (
            *bags, *before, tensors, self.hot, [2, 2], policy, LABELS, *between, kinds, GUARD,
        )  # fmt: skip

    def lookup_arguments(self, policy=RAISE):
        return self.arguments((self.rows, self.hbm, self.host, [False, True]), policy, ())

    def rewrite_arguments(self, policy=RAISE, num_others=0):
        return self.arguments(([NUM_ROWS, NUM_ROWS],), policy, (num_others,))


PAIRS = [(subsets, clusters), (clusters, subsets), (sets, subsets)]


@pytest.mark.parametrize("codes", PAIRS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_the_schema_and_the_shapes_are_kept(codes, stride, weighted):
    batch = Batch(*codes, stride=stride, weighted=weighted)
    torch.library.opcheck(GRACE.coded_lookup.default, batch.lookup_arguments())
    for num_others in (0, 2):
        torch.library.opcheck(
            GRACE.rewrite_coded_bags.default, batch.rewrite_arguments(num_others=num_others)
        )


@pytest.mark.parametrize("codes", PAIRS)
@pytest.mark.parametrize("policy", [RAISE, DROP, ZERO_ROW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_pooled_rows_are_those_of_the_bags(codes, policy, dtype):
    batch = Batch(*codes, dtype=dtype, high=NUM_ROWS if policy == RAISE else NUM_ROWS + 9)
    pooled, reads = GRACE.coded_lookup(*batch.lookup_arguments(policy))
    columns = pooled.split([3, 5], dim=1)
    for feature, (position, mean) in enumerate(((1, False), (0, True))):
        rows = batch.rows[feature].float()
        for bag in range(3):
            begin, end = batch.offsets[position * 3 + bag : position * 3 + bag + 2].tolist()
            ids = batch.ids[begin:end].clone()
            inside = ids < NUM_ROWS
            ids = torch.where(inside, ids, 0) if policy == ZERO_ROW else ids[inside]
            want = rows[ids].sum(0) / (max(end - begin, 1) if mean else 1)
            assert torch.equal(columns[feature][bag], want)
    assert (reads[:, 1] <= reads[:, 0]).all()
    assert int(reads[:, 1].sum()) < int(reads[:, 0].sum())


def test_reads_of_subsets_are_those_of_the_reference():
    batch = Batch(subsets, clusters)
    _, reads = GRACE.coded_lookup(*batch.lookup_arguments())
    code = batch.sums[0].code
    begin, end = int(batch.offsets[3]), int(batch.offsets[6])
    asked, rows, *_ = rewrite_subsets_reference(
        batch.ids[begin:end], batch.offsets[3:7] - begin, None,
        *(torch.from_numpy(part) for part in (code.item_code_N, code.next_E)),
        torch.from_numpy(code.stored_W.view(np.int64)), torch.from_numpy(code.ranks_W), RAISE,
    )  # fmt: skip
    assert reads[0].tolist() == [asked, rows.numel()]


@pytest.mark.parametrize("op", ["coded_lookup", "rewrite_coded_bags"])
def test_a_bad_id_names_table_feature_sample_id_and_rows(op):
    batch = Batch(subsets, clusters)
    batch.ids[int(batch.offsets[4])] = 77
    arguments = batch.lookup_arguments() if op == "coded_lookup" else batch.rewrite_arguments()
    message = r"table 'a', feature 'x': sample 1 holds id 77, the table has 16 rows"
    with pytest.raises(ValueError, match=message):
        getattr(GRACE, op)(*arguments)


def test_a_backward_is_refused():
    batch = Batch(subsets, clusters)
    batch.rows[0].requires_grad_()
    with pytest.raises(NotImplementedError, match="inference only"):
        GRACE.coded_lookup(*batch.lookup_arguments())[0].sum().backward()


def test_codes_of_another_table_are_refused():
    batch = Batch(subsets, sets)
    batch.rows[0] = batch.rows[0][:15].contiguous()
    with pytest.raises(ValueError, match="codes are for 16 items, the table has 15 rows"):
        GRACE.coded_lookup(*batch.lookup_arguments())


def test_codes_come_back_from_the_arguments_of_an_op():
    codes = [make()[0] for make in (sets, clusters, subsets)]
    tensors, kinds = as_arguments(codes)
    again = from_arguments(tensors, kinds)
    assert [type(code) for code in again] == [type(code) for code in codes]
    assert as_arguments(again)[1] == kinds
    assert all(one is other for one, other in zip(as_arguments(again)[0], tensors, strict=True))


@pytest.mark.parametrize(
    ("count", "kinds"), [(1, [1]), (5, [1]), (2, [0]), (4, [3]), (3, [0, 1]), (0, [0])]
)
def test_arguments_that_do_not_fit_are_refused(count, kinds):
    with pytest.raises(ValueError, match=r"tensors are not those|code of kind 3"):
        from_arguments([torch.empty(0)] * count, kinds)
