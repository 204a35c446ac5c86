"""CPUs without AVX2: the same answers by torch's own sums, and told once."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels import plain_path
from grace_kernels.cpu import (
    BadId,
    BadRow,
    FeatureRows,
    look_up_features,
    pool_features,
    pooled_rows,
    rewrite_counted,
    warm_up,
)
from grace_kernels.reference import (
    DROP,
    RAISE,
    ZERO_ROW,
    pool_rewritten_reference,
)

POSITIONS, MEAN = (2, 0, 2), (True, False, False)
TYPES = st.sampled_from([torch.float32, torch.float16, torch.uint8])


@pytest.fixture(autouse=True)
def no_avx2(monkeypatch):
    monkeypatch.setattr(plain_path, "HAS_AVX2", False)


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.lists(st.integers(0, 25), min_size=3, max_size=3), max_size=6),
    dtype=TYPES,
    hbm_share=st.sampled_from([0.0, 0.4, 1.0]),
    num_hot=st.sampled_from([0, 9]),
    sums=st.booleans(),
    weighted=st.booleans(),
    policy=st.sampled_from([DROP, ZERO_ROW]),
    num_threads=st.sampled_from([1, 3]),
    id_type=st.sampled_from([np.int32, np.int64]),
)
@settings(max_examples=150)
def test_any_layout_of_rows_and_bags_is_looked_up_and_pooled_as_meant(
    table_of, offsets_of, seed, lengths, dtype, hbm_share, num_hot, sums, weighted, policy,
    num_threads, id_type,
) -> None:  # fmt: skip
    """Whole rows: the order of adding does not matter, so every bit must be right."""
    random = np.random.default_rng(seed)
    cases = [
        table_of(
            random,
            dim=dim,
            dtype=dtype,
            sums=sums,
            subsets=subsets,
            hbm_share=hbm_share,
            num_hot=num_hot,
        )
        for dim, subsets in ((5, False), (1, True), (3, False))
    ]
    features = FeatureRows([case.table for case in cases], POSITIONS, MEAN)
    stride = len(lengths)
    offsets = offsets_of(np.array(lengths, np.int64).reshape(-1, 3).T.ravel())
    ids = random.integers(-3, 43, offsets[-1]).astype(id_type)
    weights = random.choice(np.array([1, 2, 0.5], np.float32), ids.size) if weighted else None
    out = np.full((stride, 9), np.nan, np.float32)
    reads = look_up_features(
        features, ids, offsets, weights, stride, out, policy=policy, num_threads=num_threads
    )
    pooled = np.full((stride, 9), np.nan, np.float32)
    rewritten = [
        rewritten_feature(ids, offsets, weights, stride, f, cases, policy) for f in range(3)
    ]
    rows, row_weights, given = zip(*[part[:3] for part in rewritten], strict=True)
    ends = np.concatenate([[0], *[np.diff(part[3]) for part in rewritten]]).cumsum()
    in_order = FeatureRows([case.table for case in cases], (0, 1, 2), MEAN)
    pool_features(
        in_order, np.concatenate(rows), ends, np.concatenate(row_weights) if weighted else None,
        np.stack(given), pooled, num_threads=num_threads,
    )  # fmt: skip
    column = 0
    for feature, case in enumerate(cases):
        bounds = offsets[POSITIONS[feature] * stride :][: stride + 1]
        part = slice(bounds[0], bounds[-1])
        bag_weights = None if weights is None else weights[part]
        want, rows_read = case.pooled(
            ids[part], bounds - bounds[0], bag_weights, mean=MEAN[feature], policy=policy
        )
        for got in (out, pooled):
            columns = got[:, column : column + case.table.dim]
            np.testing.assert_array_equal(columns, want.numpy())
        inside = ids[part] != -1 if policy == ZERO_ROW else (ids[part] >= 0) & (ids[part] < 40)
        assert reads[feature].tolist() == [inside.sum(), rows_read]
        column += case.table.dim


def rewritten_feature(ids, offsets, weights, stride, feature, cases, policy):
    """Return rows, weights, given lengths and offsets of a feature's rewritten bags."""
    bounds = offsets[POSITIONS[feature] * stride :][: stride + 1]
    _, rows, ends, row_weights = rewrite_counted(
        ids, bounds, weights, cases[feature].table.codes, 40, policy, cases[feature].table.subsets
    )
    return rows, row_weights, np.diff(bounds), ends


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_real_numbers_differ_by_rounding_only(table_of, offsets_of, dtype) -> None:
    random = np.random.default_rng(1)
    case = table_of(random, num_items=300, dim=20, dtype=dtype, whole=False, hbm_share=0.5)
    offsets, row_ids = offsets_of([90, 0, 400]), random.integers(0, 300, 490)
    out = np.empty((3, 20), np.float32)
    lengths = np.diff(offsets)
    pooled_rows(row_ids, offsets, None, lengths, case.table, out, mean=False, num_threads=1)
    want = pool_rewritten_reference(
        torch.from_numpy(row_ids), torch.from_numpy(offsets), None, torch.from_numpy(lengths),
        case.rows_ND, case.stored_RD, mean=False,
    )  # fmt: skip
    np.testing.assert_allclose(out, want.numpy(), atol=1e-4)


def test_bad_ids_and_bad_rows_are_named(table_of, offsets_of) -> None:
    cases = [table_of(np.random.default_rng(n), hbm_share=0.5, num_hot=3) for n in range(2)]
    features = FeatureRows([case.table for case in cases], (1, 0), (False, False))
    ids, offsets = np.arange(20), offsets_of([4, 6, 5, 5])
    out = np.empty((2, 16), np.float32)
    ids[13] = 40
    with pytest.raises(BadId) as bad_id:
        look_up_features(features, ids, offsets, None, 2, out, policy=RAISE, num_threads=1)
    assert (bad_id.value.position, bad_id.value.id, bad_id.value.feature) == (13, 40, 0)
    ids[[3, 13]] = 40 + cases[1].stored_RD.shape[0], 13
    with pytest.raises(BadRow) as bad_row:
        pool_features(
            features, ids, offsets, None, np.diff(offsets).reshape(2, 2), out, num_threads=1
        )
    assert (bad_row.value.position, bad_row.value.row, bad_row.value.feature) == (3, ids[3], 1)


def test_it_is_told_once_and_only_where_it_is_taken(caplog, monkeypatch) -> None:
    plain_path._say_so.cache_clear()
    with caplog.at_level(logging.WARNING, logger="grace_kernels.plain_path"):
        for _ in range(3):
            warm_up(1)
            assert plain_path.is_taken()
        assert ["no AVX2" in record.message for record in caplog.records] == [True]
        monkeypatch.setattr(plain_path, "HAS_AVX2", True)
        assert not plain_path.is_taken()
    assert len(caplog.records) == 1


OLD_CPU = """
import numpy as np
from grace_kernels import _split_ids, plain_path
assert plain_path.is_taken() and not _split_ids.HAS_AVX512
"""
OLD_LOOKUP = """
from grace_kernels.cpu import TableRows, pooled_lookup
rows = np.arange(8, dtype=np.float32).reshape(8, 1)
table = TableRows(rows, rows[:0], np.array([[100]], np.float32),
                  np.array([-1, 0, 1, -1, -1, -1, -1, -1], np.int32), np.zeros(0, np.int32), 0)
out = np.empty((2, 1), np.float32)
ids, offsets = np.array([1, 7, 2, 0, 5, 6, 3, 4, 1, 1]), np.array([0, 9, 10])
print(pooled_lookup(ids, offsets, None, table, out, mean=False, policy=0, num_threads=1))
print(out.ravel().tolist())
"""


@pytest.mark.parametrize(
    "script",
    [OLD_CPU, pytest.param(OLD_CPU + OLD_LOOKUP, marks=pytest.mark.soak)],
    ids=["import", "lookup"],
)
def test_a_cpu_without_avx2_takes_it_by_itself(tmp_path, script) -> None:
    """Read from what numba compiles for, whatever the host has; a cold cache is slow."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() in ([], ["(10, 9)", "[126.0, 1.0]"])
    assert done.stderr.count("this CPU has no AVX2") == 1
