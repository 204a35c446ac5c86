"""Rungs: rows in steps of falling worth; nothing is lost on the way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.variants import GROUPS, Rungs, climb

worths = st.lists(st.floats(0, 50), max_size=200)


@given(worths, st.integers(0, 40), st.floats(0, 3), st.integers(0, 2**32 - 1), st.integers(2, 96))
def test_rungs_hold_every_row_and_every_read(worth, outside, each, seed, most):
    rng = np.random.default_rng(seed)
    worth_R = np.array(worth)
    size = worth_R.size + (outside > 0)
    row_P = rng.integers(0, size, 300) if size else np.zeros(0, np.int64)
    group_P = rng.integers(0, GROUPS, row_P.size)
    counted_R = rng.integers(0, 9, worth_R.size)
    rungs = Rungs.of(worth_R, counted_R, row_P, group_P, (outside, each), most)
    assert rungs.rows_K.sum() == worth_R.size + outside
    assert np.allclose(rungs.reads_GK.sum(axis=1), np.bincount(group_P, minlength=GROUPS))
    assert rungs.counted_K.sum() == counted_R.sum()
    assert (np.diff(rungs.worth_K) <= 1e-9).all()
    assert np.isclose((rungs.worth_K * rungs.rows_K).sum(), worth_R.sum() + outside * each)


def test_kinds_of_rows_are_merged_by_worth_a_byte():
    row_P, group_P = np.zeros(1, np.int64), np.zeros(1, np.int64)
    low = Rungs.of(np.array([1.0]), np.array([7]), row_P, group_P)
    high = Rungs.of(np.array([4.0, 2.0]), np.array([5, 6]), row_P, group_P)
    worth, sizes, reads, counted = climb((low, high), row_bytes=100, read_bytes=128)
    assert np.allclose(worth, [5.12, 2.56, 1.28])
    assert sizes.tolist() == [100, 100, 100]
    assert reads[0].tolist() == [128, 0, 128]
    assert counted.tolist() == [5 * 128, 6 * 128, 7 * 128]


def test_no_rows_make_no_rungs():
    worth, sizes, reads, counted = climb((Rungs.none(),), 10, 10)
    assert (worth.size, sizes.size, reads.shape, counted.size) == (0, 0, (GROUPS, 0), 0)
