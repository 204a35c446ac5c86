"""A trace refuses at the door what could only fail later, and carries everything along."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace

bags_of_ids = st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=12)


def bags_of(trace):
    offsets = trace.offsets_B1
    return [trace.ids_L[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@given(bags_of_ids)
def test_bags_come_back_in_order_with_repeats_and_empty_bags(bags):
    trace = Trace.from_bags(bags)
    assert bags_of(trace) == bags
    assert trace.num_bags == len(bags)
    assert trace.num_ids == sum(map(len, bags))
    assert trace.num_items == max((max(bag) for bag in bags if bag), default=-1) + 1


@given(bags_of_ids)
def test_counts_are_the_multiset_of_all_requests(bags):
    trace = Trace.from_bags(bags, num_items=31)
    flat = [item for bag in bags for item in bag]
    assert trace.counts().tolist() == [flat.count(item) for item in range(31)]


@given(bags_of_ids.filter(bool), st.data())
def test_take_carries_ids_weights_time_and_marks_of_a_bag(bags, data):
    trace = Trace.from_bags(bags, num_items=40)
    whole = Trace(
        trace.offsets_B1,
        trace.ids_L,
        40,
        np.arange(trace.num_ids, dtype=np.float32),
        np.arange(trace.num_bags) * 10,
        np.arange(trace.num_ids) % 3,
    )
    chosen = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=8))
    taken = whole.take(np.array(chosen, np.int64))
    where = [p for b in chosen for p in range(whole.offsets_B1[b], whole.offsets_B1[b + 1])]
    assert bags_of(taken) == [bags[b] for b in chosen]
    assert taken.num_items == 40
    assert taken.weights_L.tolist() == where
    assert taken.time_B.tolist() == [b * 10 for b in chosen]
    assert taken.split_L.tolist() == [p % 3 for p in where]


def test_ids_are_narrowed_only_where_they_fit():
    assert Trace(np.array([0, 1]), np.array([2**31 - 1])).ids_L.dtype == np.int32
    assert Trace(np.array([0, 1]), np.array([2**31])).ids_L.dtype == np.int64


def test_pooling_factor_counts_empty_bags():
    assert Trace.from_bags([[1, 2, 3], []]).pooling_factor == 1.5
    assert Trace.from_bags([]).pooling_factor == 0.0


GOOD = {"offsets_B1": np.array([0, 2, 3]), "ids_L": np.array([4, 1, 1])}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offsets_B1": np.array([0, 2, 4])}, "offsets run from 0 to 4, expected 0 to 3"),
        ({"offsets_B1": np.array([1, 2, 3])}, "offsets run from 1"),
        ({"offsets_B1": np.array([0, 4, 3])}, "offsets fall at bag 1"),
        ({"offsets_B1": np.array([0, -1, 3])}, "offsets fall at bag 0"),
        ({"offsets_B1": np.array([0.0, 2.0, 3.0])}, "offsets must be a vector of integers"),
        ({"offsets_B1": np.zeros(0, np.int64)}, "offsets must be a vector"),
        ({"offsets_B1": np.array([[0, 3]])}, "offsets must be a vector"),
        ({"offsets_B1": np.array([0, 2**64 - 1, 3], np.uint64)}, "offsets fall"),
        ({"ids_L": np.array([4, -1, 1])}, "id -1 at position 1 is negative"),
        ({"ids_L": np.array([4.0, 1.0, 1.0])}, "ids must be a vector of integers"),
        ({"ids_L": np.array([[4], [1], [1]])}, "ids must be a vector"),
        ({"ids_L": np.array([4, 1, 2**62])}, "is too large"),
        ({"ids_L": np.array([4, 1, 2**63], np.uint64)}, "is too large"),
        ({"ids_L": np.array(["a", "b", "c"])}, "ids must be a vector of integers"),
        ({"ids_L": np.array([True, False, True])}, "ids must be a vector of integers"),
        ({"num_items": 4}, "bag 0 holds id 4, the table has 4 rows"),
        ({"num_items": -3}, "num_items"),
        ({"weights_L": np.ones(2)}, "weights has shape (2,)"),
        ({"weights_L": np.array([1, np.nan, 1])}, "weight 1 is not finite"),
        ({"weights_L": np.array([1, 1, np.inf])}, "weight 2 is not finite"),
        ({"time_B": np.ones(3)}, "time has shape (3,)"),
        ({"time_B": np.array([1, np.inf])}, "time holds entries that are not finite"),
        ({"time_B": np.array(["a", "b"])}, "time holds entries that are not finite"),
        ({"split_L": np.ones(3)}, "split has type float64"),
        ({"split_L": np.ones(2, np.int8)}, "split has shape (2,)"),
    ],
)
def test_each_bad_array_is_named(change, said):
    with pytest.raises(GraceError) as caught:
        Trace(**{**GOOD, **change})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_bag_of_an_id_outside_the_table_is_found_behind_empty_bags():
    with pytest.raises(GraceError, match="bag 3 holds id 9"):
        Trace.from_bags([[1], [], [], [9]], num_items=5)


def test_no_size_is_below_zero_even_without_ids():
    with pytest.raises(GraceError, match="num_items"):
        Trace(np.array([0]), np.zeros(0, np.int64), -1)


def test_a_trace_over_a_larger_table_has_the_same_bags():
    trace = Trace.from_bags([[0, 1, 1], []])
    wider = trace.over(9)
    assert (trace.num_items, wider.num_items) == (2, 9)
    assert wider.counts().tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(GraceError, match="the table has 1 rows"):
        trace.over(1)
