"""The meaning of the ops is itself checked, against plain PyTorch and against brute force."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from grace_kernels.reference import (
    DROP,
    RAISE,
    ZERO_ROW,
    apply_bad_id_policy_reference,
    build_rows_reference,
    pool_rows_reference,
    pooled_lookup_reference,
    rewrite_clusters_reference,
)
from grace_torchrec.sums import build_rows as building
from grace_torchrec.sums.stored_sums import StoredSums

CODE = torch.tensor([-1, 0, 1, -1, 8, 9, 10])  # items 1, 2 own sum 0; items 4, 5, 6 own 1 .. 4


def rewrite(bags, weights=None):
    ids = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])])
    rows, ends, row_weights = rewrite_clusters_reference(
        ids, offsets, None if weights is None else torch.tensor(weights), CODE
    )
    split = [rows[a:b].tolist() for a, b in pairwise(ends.tolist())]
    return split, row_weights


@pytest.mark.parametrize(
    ("bag", "rows"),
    [
        ([1, 2], [7]),
        ([2, 0, 1], [0, 7]),  # ids in no cluster come first
        ([1], [1]),
        ([4, 5], [8]),
        ([6, 4], [9]),
        ([6, 5], [10]),
        ([5, 6, 4], [11]),
        ([1, 1, 2], [7, 1]),  # a copy is used once
        ([1, 4, 2, 5], [7, 8]),
        ([], []),
    ],
)
def test_an_address_is_the_pattern_of_the_items_asked_for(bag, rows):
    assert rewrite([bag])[0] == [rows]


def test_items_of_different_weight_share_no_row():
    rows, weights = rewrite([[1, 2, 4, 5]], [1.0, 2.0, 3.0, 3.0])
    assert (rows, weights.tolist()) == ([[1, 2, 8]], [1.0, 2.0, 3.0])


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=5),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_with_sums_a_lookup_returns_what_pytorch_returns(bags, mean, dtype):
    rows = torch.from_numpy(np.random.default_rng(0).integers(-8, 9, (10, 3))).to(dtype)
    sums = StoredSums.from_clusters(10, np.array([0, 3, 8]), np.array([2, 9, 4, 0, 7, 1, 5, 3]))
    stored = build_rows_reference(
        rows, torch.from_numpy(sums.set_indptr_R1), torch.from_numpy(sums.set_items_S)
    )
    ids = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags], dtype=np.int64)])
    pooled, rows_read = pooled_lookup_reference(
        ids,
        offsets,
        None,
        rows,
        stored,
        torch.from_numpy(sums.code.item_code_N),
        mean=mean,
        policy=RAISE,
    )
    mode = "mean" if mean else "sum"
    plain = F.embedding_bag(ids, rows.float(), offsets, mode=mode, include_last_offset=True)
    assert torch.equal(pooled, plain)
    assert rows_read <= ids.numel()


@pytest.mark.parametrize(
    ("policy", "ids", "offsets"),
    [(DROP, [3, 0], [0, 1, 2, 2]), (ZERO_ROW, [3, -2, -2, 0, -2], [0, 3, 5, 5])],
)
def test_what_becomes_of_ids_outside_the_table(policy, ids, offsets):
    given_ids = torch.tensor([3, 4, -1, 99, 0, -7, -1])
    got = apply_bad_id_policy_reference(given_ids, torch.tensor([0, 4, 6, 7]), None, 4, policy)
    assert (got[0].tolist(), got[1].tolist()) == (ids, offsets)


@pytest.mark.parametrize("bad", [4, -2])
def test_raise_raises(bad):
    with pytest.raises(ValueError, match=f"id {bad} is outside 0..3"):
        apply_bad_id_policy_reference(torch.tensor([-1, bad]), torch.tensor([0, 2]), None, 4, RAISE)


def test_pooling_adds_rows_times_weights():
    rows = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    ids, offsets = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1, 3])
    pooled = pool_rows_reference(rows, ids, offsets, torch.tensor([2.0, 1.0, 3.0]))
    assert pooled.tolist() == [[2.0, 4.0], [0.0, 0.0], [40.0, 80.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("whole", [True, False])
def test_stored_rows_are_built_as_the_reference_says(
    clusters_of, monkeypatch, dtype, id_type, whole
):
    monkeypatch.setattr(building, "CHUNK_ROWS", 7)
    random = np.random.default_rng(1)
    sums = clusters_of(random, 30)
    values = random.integers(-8, 9, (30, 5)) if whole else random.normal(size=(30, 5))
    rows = torch.from_numpy(values).to(dtype)
    indptr, items = torch.from_numpy(sums.set_indptr_R1), torch.from_numpy(sums.set_items_S)
    out = torch.full((sums.num_sums, 5), torch.nan, dtype=dtype)
    done = []
    building.build_rows(rows, indptr, items.to(id_type), out, progress=done.append)
    want = build_rows_reference(rows, indptr, items)
    if whole:
        assert torch.equal(out, want)
    else:  # the order of adding differs by rounding
        torch.testing.assert_close(out, want, rtol=0, atol=1e-6 if dtype == torch.float32 else 4e-3)
    assert sum(done) == sums.num_sums
