"""The comparison of stored rows with the rows they were built from."""

import numpy as np
import pytest

from grace_kernels._stale import first_stale_row

INDPTR = np.array([0, 2, 5, 7])
ITEMS = np.array([0, 1, 2, 3, 4, 1, 3], np.int32)


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def build(rows):
    sets = np.split(ITEMS, INDPTR[1:-1])
    return np.stack([rows[items].astype(np.float64).sum(0) for items in sets]).astype(np.float32)


def stale(rows, stored, first=0, last=3):
    return first_stale_row(rows, stored, INDPTR, ITEMS, first, last)


def test_rows_just_built_are_fresh(rows):
    assert stale(rows, build(rows)) == -1


@pytest.mark.parametrize(("item", "first_wrong"), [(0, 0), (2, 1), (3, 1), (4, 1), (1, 0)])
@pytest.mark.parametrize("column", [0, 5])
def test_a_changed_row_is_seen_in_the_first_sum_that_holds_it(rows, item, first_wrong, column):
    stored = build(rows)
    rows[item, column] += 1e-3
    assert stale(rows, stored) == first_wrong


def test_only_the_rows_asked_for_are_compared(rows):
    stored = build(rows)
    stored[1] += 1
    assert (stale(rows, stored, 0, 1), stale(rows, stored, 2, 3), stale(rows, stored, 1, 2)) == (
        *(-1, -1),
        1,
    )


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_equal_themselves_and_nothing_else(rows, special):
    rows[0, 2] = special
    stored = build(rows)
    assert stale(rows, stored) == -1
    stored[0, 2] = 0
    assert stale(rows, stored) == 0


def test_opposite_infinities_make_a_nan_that_is_fresh(rows):
    rows[0, 2], rows[1, 2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        assert stale(rows, build(rows)) == -1


def test_rounding_of_large_terms_that_cancel_is_no_change(rows):
    rows[0], rows[1] = 1e6, -1e6 + 0.1
    stored = build(rows)
    stored[0] += 0.5  # 2.5e-7 of the sum of absolute values
    assert stale(rows, stored) == -1
