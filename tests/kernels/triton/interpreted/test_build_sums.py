"""Building stored rows in Triton: every row is the sum of its set, added up in the order of the set."""

import numpy as np
import pytest
import torch

from grace_kernels.build_sums import build_rows
from grace_kernels.reference import build_rows_reference


def sets_of(random, num_items, num_sets=37):
    lengths = random.integers(2, 9, num_sets)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    items = [random.permutation(num_items)[:length] for length in lengths]
    return indptr, torch.from_numpy(np.concatenate(items))


@pytest.mark.parametrize(
    ("dim", "dtype", "item_type"),
    [
        (4, torch.float32, torch.int32),
        (10, torch.float16, torch.int64),
        (64, torch.bfloat16, torch.int32),
    ],
)
def test_rows_are_those_of_the_reference(dim, dtype, item_type) -> None:
    random = np.random.default_rng(dim)
    rows = torch.from_numpy(random.integers(-8, 9, (50, dim))).to(dtype)
    indptr, items = sets_of(random, 50)
    out = torch.full((37, dim), torch.nan, dtype=dtype)
    build_rows(rows, indptr, items.to(item_type), out)
    torch.testing.assert_close(out, build_rows_reference(rows, indptr, items), rtol=0, atol=0)


def test_the_order_of_the_set_decides_the_last_bit() -> None:
    random = np.random.default_rng(1)
    rows = torch.from_numpy(random.normal(size=(50, 16))).float()
    indptr, items = sets_of(random, 50)
    out = torch.full((37, 16), torch.nan)
    build_rows(rows, indptr, items, out)
    for j in range(37):
        total = torch.zeros(16)
        for item in items[indptr[j] : indptr[j + 1]]:
            total += rows[item]
        assert torch.equal(out[j], total)


def test_a_slice_of_the_sets() -> None:
    random = np.random.default_rng(2)
    rows = torch.from_numpy(random.integers(-8, 9, (50, 8))).float()
    indptr, items = sets_of(random, 50)
    out = torch.full((5, 8), torch.nan)
    build_rows(rows, indptr[20:26], items, out)
    want = build_rows_reference(rows, indptr, items)[20:25]
    torch.testing.assert_close(out, want, rtol=0, atol=0)


@pytest.mark.parametrize("num_items", [0, 2])
def test_no_sets_write_nothing(num_items) -> None:
    """The output may lie inside of a buffer whose rows are not ours."""
    around = torch.full((2, 8), torch.nan)
    items = torch.arange(num_items)
    build_rows(torch.ones(5, 8), torch.tensor([num_items]), items, around[1:1])
    assert around.isnan().all()


@pytest.mark.parametrize(
    ("out", "what"),
    [
        (torch.zeros(1, 8).half(), "sums of torch.float32 rows cannot be written as torch.float16"),
        (torch.zeros(2, 8), r"output must be \[1, 8\], got \[2, 8\]"),
        (torch.zeros(1, 16)[:, ::2], "must be contiguous"),
    ],
)
def test_wrong_calls_are_refused(out, what) -> None:
    with pytest.raises(ValueError, match=what):
        build_rows(torch.zeros(5, 8), torch.tensor([0, 2]), torch.tensor([0, 1]), out)
