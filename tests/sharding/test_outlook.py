"""Outlook: what held-out bags read of rows that were counted so often, and of those never read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.outlook import Outlook

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=60)


@given(pairs)
def test_expected_reads_never_fall_with_the_count(rows):
    counted, held_out = map(np.array, zip(*rows, strict=True))
    outlook = Outlook.fit(counted, held_out)
    expected = outlook.expected(np.arange(1, 100))
    assert (np.diff(expected) >= -1e-9).all()
    assert (expected >= 0).all()


@given(pairs, st.integers(0, 50))
def test_rows_never_read_are_priced_by_what_held_out_bags_read_of_them(rows, further):
    counted, held_out = map(np.array, zip(*rows, strict=True))
    outlook = Outlook.fit(counted, held_out, (further, 3 if further else 0))
    unread = counted == 0
    size = unread.sum() + further
    reads = held_out[unread].sum() + (3 if further else 0)
    assert outlook.unread == (reads / size if size else 0.0)
    assert outlook.expected(np.array([0]))[0] == outlook.unread


def test_sums_that_fit_bags_liked_too_much_are_worth_less_than_rows_of_the_same_count():
    counts = np.full(100, 4)
    rows, sums = Outlook.fit(counts, np.full(100, 3)), Outlook.fit(counts, np.full(100, 1))
    assert sums.expected(counts)[0] < rows.expected(counts)[0]


def test_counts_of_more_bags_are_scaled_back():
    outlook = Outlook.fit(np.array([2, 2, 8, 8]), np.array([1, 1, 4, 4]))
    assert np.isclose(outlook.expected(np.array([4]), scale=0.5), outlook.expected(np.array([2])))


def test_beyond_the_largest_count_reads_rise_in_proportion():
    outlook = Outlook.fit(np.array([10]), np.array([5]))
    assert np.isclose(outlook.expected(np.array([40])), 20.0, rtol=1e-4)


def test_a_class_that_contradicts_its_neighbours_is_pooled_and_keeps_their_order():
    outlook = Outlook.fit(np.array([1, 2]), np.array([5, 1]))
    low, high = outlook.expected(np.array([1, 2]))
    assert np.isclose(low, 3.0, atol=1e-4)
    assert low < high
