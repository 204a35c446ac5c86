"""Stored rows equal the sums of their sets, in any chunk, in float32 and in half."""

import numpy as np
import pytest
import torch

from grace_kernels.reference import build_rows_reference
from grace_torchrec.sums import build_rows as module
from grace_torchrec.sums.build_rows import build_rows, sum_sets
from grace_torchrec.sums.stored_sums import StoredSums


def sets_of(bags, dtype=torch.int32):
    """CSR of sets."""
    indptr = torch.from_numpy(np.cumsum([0, *map(len, bags)]))
    return indptr, torch.tensor([item for bag in bags for item in bag], dtype=dtype)


def random_sets(num_sets, num_items, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.permutation(num_items)[: rng.integers(2, 9)].tolist() for _ in range(num_sets)]


def built(weight, indptr, items, **options):
    out = torch.full((indptr.numel() - 1, weight.shape[1]), torch.nan, dtype=weight.dtype)
    build_rows(weight, indptr, items, out, **options)
    return out


@pytest.mark.parametrize("items_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_float_rows_are_added_up_in_the_order_of_the_set(dim, items_dtype) -> None:
    weight = torch.randn(50, dim, generator=torch.Generator().manual_seed(1))
    bags = random_sets(300, 50)
    rows = built(weight, *sets_of(bags, items_dtype))
    for row, bag in zip(rows, bags, strict=True):
        total = torch.zeros(dim)
        for item in bag:
            total = total + weight[item]
        assert torch.equal(row, total)  # bit by bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_are_those_of_the_reference(dtype) -> None:
    weight = torch.randn(50, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    indptr, items = sets_of(random_sets(200, 50))
    rows = built(weight, indptr, items)
    assert rows.dtype == dtype
    wanted = build_rows_reference(weight, indptr, items)
    rounding = {
        torch.float32: {"rtol": 1e-6, "atol": 1e-6},
        torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    }
    torch.testing.assert_close(rows, wanted, **rounding[dtype])


def test_half_rows_are_rounded_once() -> None:
    weight = torch.tensor([[2048.0], [1.0], [1.0]], dtype=torch.float16)
    rows = built(weight, *sets_of([[0, 1, 2], [0, 1]]))
    assert rows.flatten().tolist() == [2050.0, 2048.0]  # in half 2048 + 1 + 1 stays 2048


def test_the_sums_of_clusters_are_those_of_their_sets() -> None:
    sums = StoredSums.from_clusters(9, np.array([0, 3, 5]), np.array([8, 2, 5, 0, 1]))
    weight = 2.0 ** torch.arange(9)[:, None]  # a sum tells its items
    rows = built(weight, torch.from_numpy(sums.set_indptr_R1), torch.from_numpy(sums.set_items_S))
    sets = np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])
    assert rows.flatten().tolist() == [sum(2.0**item for item in items) for items in sets]


@pytest.mark.parametrize("chunk", [1, 2, 7, 99, 100, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_chunks_change_nothing(monkeypatch, chunk, dtype) -> None:
    weight = torch.randn(40, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    indptr, items = sets_of(random_sets(100, 40))
    whole = built(weight, indptr, items)
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    finished = []
    assert torch.equal(built(weight, indptr, items, progress=finished.append), whole)
    assert sum(finished) == 100
    assert len(finished) == -(-100 // chunk)


def test_a_run_of_sets_may_start_in_the_middle() -> None:
    weight = torch.arange(10.0)[:, None]
    indptr, items = sets_of([[0, 1], [2, 3, 4], [5, 9]])
    assert sum_sets(weight, indptr[1:], items).flatten().tolist() == [9.0, 14.0]
    assert sum_sets(weight, indptr[1:3], items).flatten().tolist() == [9.0]


def test_nothing_stored_builds_nothing() -> None:
    finished = []
    assert built(torch.ones(3, 4), *sets_of([]), progress=finished.append).shape == (0, 4)
    assert finished == []


def test_no_graph_is_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    out = torch.empty(1, 4)
    build_rows(weight, *sets_of([[0, 2]]), out)
    assert not out.requires_grad
    assert out.tolist() == [[2.0] * 4]
