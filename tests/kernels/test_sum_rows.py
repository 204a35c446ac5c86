"""int8 rows are summed where they lie: the numbers that scale, bias and values stand for."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from grace_kernels.cpu import FeatureRows, TableRows, pooled_lookup
from grace_kernels.reference import RAISE, pooled_lookup_reference

DIMS = [1, 3, 5, 7, 20, 33, 64, 100, 129, 300]  # odd ones: the head of every other row is unaligned
NONE = np.zeros(0, np.int32)


def look_up(case, ids, offsets, weights=None, *, mean=False):
    """Look up into the middle of a buffer of NaN: what is not the output must stay NaN."""
    dim = case.rows_ND.shape[1]
    buffer = np.full((offsets.size + 1, dim + 5), np.nan, np.float32)
    out = buffer[1:-1, 2 : 2 + dim]
    counts = pooled_lookup(
        ids, offsets, weights, case.table, out, mean=mean, policy=RAISE, num_threads=1
    )
    assert np.isnan(buffer).sum() == buffer.size - out.size
    return out, counts


@pytest.mark.parametrize("dim", DIMS)
def test_whole_int8_rows_are_added_without_error(table_of, offsets_of, dim) -> None:
    random = np.random.default_rng(dim)
    case = table_of(random, dim=dim, dtype=torch.uint8, hbm_share=0.5, num_hot=5)
    assert case.table.dim == dim
    assert case.table.rows_ND.shape == (40, dim + 4)
    offsets = offsets_of([0, 1, 2, 30, 0, 7, 1])
    ids = random.integers(0, 40, offsets[-1])
    weights = random.choice(np.array([1, 2, -3], np.float32), ids.size)
    for bag_weights, mean in ((None, False), (None, True), (weights, False), (weights, True)):
        out, counts = look_up(case, ids, offsets, bag_weights, mean=mean)
        want, rows_read = pooled_lookup_reference(
            torch.from_numpy(ids), torch.from_numpy(offsets),
            None if bag_weights is None else torch.from_numpy(bag_weights),
            case.rows_ND, case.stored_RD, case.item_code_N, mean=mean, policy=RAISE,
        )  # fmt: skip
        np.testing.assert_array_equal(out, want.numpy())
        assert counts == (ids.size, rows_read)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [5, 64])
def test_int8_rows_are_dequantised_then_summed(
    table_of, offsets_of, float_rows_of, dim, weighted, mean
) -> None:
    """Scales and biases that are no whole numbers, against float64: rounding only."""
    random = np.random.default_rng(dim)
    case = table_of(random, num_items=300, dim=dim, dtype=torch.uint8, whole=False, sums=False)
    rows = float_rows_of(torch.from_numpy(case.table.rows_ND)).numpy()
    offsets = offsets_of(random.integers(0, 60, 50))
    ids = random.integers(0, 300, offsets[-1])
    weights = random.normal(size=ids.size).astype(np.float32)
    out, _ = look_up(case, ids, offsets, weights if weighted else None, mean=mean)
    terms = rows[ids] * (weights.astype(np.float64)[:, None] if weighted else 1)
    # what values and biases add is summed up apart, so their sizes count apart
    bias = case.table.rows_ND[:, 2:4].copy().view(np.float16).astype(np.float64)
    sizes = (abs(rows - bias) + abs(bias))[ids] * (abs(weights)[:, None] if weighted else 1)
    for bag, (begin, end) in enumerate(pairwise(offsets)):
        by = max(end - begin, 1) if mean else 1
        wrong = abs(out[bag] - terms[begin:end].sum(0) / by)
        assert (wrong <= 2e-6 * sizes[begin:end].sum(0) / by).all()


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dim", [4, 64])
def test_the_rows_of_fbgemm_are_read_in_place(offsets_of, dim, mean) -> None:
    """The same memory, looked up by fbgemm's own table batch and by ours."""
    pytest.importorskip("fbgemm_gpu")
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    random = np.random.default_rng(dim)
    batch = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("t", 200, dim, SparseType.INT8, EmbeddingLocation.HOST)],
        device="cpu",
        pooling_mode=PoolingMode.MEAN if mean else PoolingMode.SUM,
        output_dtype=SparseType.FP32,
    )
    batch.fill_random_weights()
    rows = batch.split_embedding_weights(split_scale_shifts=False)[0][0]
    rows[:, 4:] = torch.from_numpy(random.integers(0, 256, (200, dim), np.uint8))
    scale_and_bias = random.normal(size=(200, 2)).astype(np.float16)
    rows[:, :4] = torch.from_numpy(scale_and_bias.view(np.uint8))
    assert rows.shape[1] == dim + 4
    offsets = offsets_of(random.integers(0, 40, 30))
    ids = random.integers(0, 200, offsets[-1])
    want = batch(torch.from_numpy(ids).int(), torch.from_numpy(offsets).int())
    table = TableRows(rows.numpy(), rows[:0].numpy(), rows[:0].numpy(), NONE, NONE, 0)
    assert table.rows_ND.ctypes.data == rows.data_ptr()
    out = np.empty((30, dim), np.float32)
    pooled_lookup(ids, offsets, None, table, out, mean=mean, policy=RAISE, num_threads=1)
    sizes = abs(scale_and_bias.astype(np.float64)) @ [255, 1]
    for bag, (begin, end) in enumerate(pairwise(offsets)):
        by = max(end - begin, 1) if mean else 1
        assert (abs(out[bag] - want[bag].numpy()) <= 2e-6 * sizes[ids[begin:end]].sum() / by).all()


def test_dimensions_of_tables_of_every_type_stand_side_by_side(table_of) -> None:
    """The head of int8 rows is no column of the output."""
    random = np.random.default_rng(0)
    types = (torch.float32, torch.uint8, torch.float16)
    tables = [table_of(random, dim=6, dtype=dtype).table for dtype in types]
    features = FeatureRows(tables, [0, 1, 2], [False] * 3)
    assert features.dims == [6, 6, 6]
    assert features.width == 18
