"""Splits: nothing lost, nothing twice, and the orders that others can recompute."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import read_npz
from grace_torchrec.traces.split import repeated_share, split_bags, split_column, split_time
from grace_torchrec.traces.trace import Trace


def numbered(num_bags, **more):
    """Bag ``b`` holds the id ``b`` alone, so that bags can be told apart."""
    return Trace(np.arange(num_bags + 1), np.arange(num_bags), num_bags + 3, **more)


@given(n=st.integers(6, 300), seed=st.integers(0, 2**32))
def test_bags_follow_the_published_protocol(n, seed):
    split = split_bags(numbered(n), seed)
    perm = np.random.default_rng(seed).permutation(n)
    train = perm[: n - n // 5]
    fifth = len(train) // 5
    assert split.test.ids_L.tolist() == perm[n - n // 5 :].tolist()
    assert split.train.ids_L.tolist() == train.tolist()
    assert split.validation.ids_L.tolist() == train[len(train) - fifth :].tolist()
    assert split.fit.ids_L.tolist() == train[: len(train) - fifth].tolist()


@given(n=st.integers(3, 100), parts=st.integers(2, 9), by_time=st.booleans())
def test_every_bag_is_in_exactly_one_part_and_no_part_is_empty(n, parts, by_time):
    trace = numbered(n, time_B=np.arange(n) % 7)
    if n < parts + 1:
        with pytest.raises(GraceError, match="too few"):
            split_bags(trace, parts=parts)
        return
    split = split_time(trace, parts) if by_time else split_bags(trace, parts=parts)
    together = [*split.fit.ids_L, *split.validation.ids_L, *split.test.ids_L]
    assert sorted(together) == list(range(n))
    assert [*split.fit.ids_L, *split.validation.ids_L] == split.train.ids_L.tolist()
    assert split.test.num_bags == n // parts
    assert min(split.fit.num_bags, split.validation.num_bags, split.test.num_bags) >= 1


def test_rows_stay_those_of_the_whole_table():
    split = split_bags(numbered(20))
    assert {part.num_items for part in (split.train, split.fit, split.validation, split.test)} == {
        23
    }


@given(st.lists(st.integers(-5, 5), min_size=6, max_size=60))
def test_time_order_is_stable_and_the_latest_are_held_out(times):
    trace = numbered(len(times), time_B=np.array(times))
    split = split_time(trace)
    order = sorted(range(len(times)), key=lambda bag: times[bag])
    assert [*split.train.ids_L, *split.test.ids_L] == order
    assert max(split.fit.time_B) <= min(split.validation.time_B)
    assert max(split.train.time_B) <= min(split.test.time_B)


marked_bags = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=6), min_size=8, max_size=30
)


def marked(bags):
    flat = [pair for bag in bags for pair in bag]
    lengths = np.cumsum([0, *map(len, bags)])
    ids, marks = (np.array([pair[k] for pair in flat], np.int64) for k in (0, 1))
    weights = np.arange(len(flat), dtype=np.float32)
    return Trace(lengths, ids, 10, weights, np.arange(len(bags)), marks)


@given(marked_bags)
def test_marks_cut_every_bag_by_interaction(bags):
    marks = [mark for bag in bags for _, mark in bag]
    trace = marked(bags)
    if not marks or min(marks) != 0 or max(marks) < 2 or 1 not in marks:
        return
    highest = max(marks)
    split = split_column(trace)
    for part, inside in (
        (split.fit, {0}),
        (split.validation, set(range(1, highest))),
        (split.train, set(range(highest))),
        (split.test, {highest}),
    ):
        kept = [[item for item, mark in bag if mark in inside] for bag in bags]
        alive = [b for b, bag in enumerate(kept) if bag]
        assert np.diff(part.offsets_B1).tolist() == [len(kept[b]) for b in alive]
        assert part.ids_L.tolist() == [item for b in alive for item in kept[b]]
        assert part.time_B.tolist() == alive
        assert set(part.split_L.tolist()) <= inside
        assert part.num_items == 10
    in_parts = [*split.train.weights_L, *split.test.weights_L]
    assert sorted(in_parts) == trace.weights_L.tolist()


def test_two_marks_leave_validation_to_the_last_train_bags():
    trace = marked([[(user % 10, 0), (3, 0), (5, 1)] for user in range(12)])
    split = split_column(trace, seed=4)
    perm = np.random.default_rng(4).permutation(12)
    assert split.train.time_B.tolist() == perm.tolist()
    assert split.validation.time_B.tolist() == perm[-2:].tolist()
    assert split.fit.time_B.tolist() == perm[:-2].tolist()
    assert split.test.ids_L.tolist() == [5] * 12
    assert (split.train.split_L == 0).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: split_bags(numbered(5)), "5 bags are too few for parts=5; give at least 6"),
        (lambda: split_bags(Trace.from_bags([])), "0 bags are too few"),
        (lambda: split_bags(numbered(9), parts=1), "parts is 1"),
        (lambda: split_time(numbered(9)), "has no time"),
        (lambda: split_time(numbered(5, time_B=np.arange(5))), "too few"),
        (lambda: split_column(numbered(9)), "has no mark"),
        (lambda: split_column(marked([[(1, 0)]] * 9)), "marks run from 0 to 0"),
        (lambda: split_column(marked([[(1, 1), (1, 2)]] * 9)), "marks run from 1 to 2"),
        (lambda: split_column(marked([[]])), "marks run from 0 to 0"),
        (lambda: split_column(marked([[(1, 0), (2, 1)]] * 4)), "4 train bags are too few"),
    ],
)
def test_a_split_that_cannot_be_made_says_why(call, said):
    with pytest.raises(GraceError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "items", "train", "test", "test_ids", "mean"),
    [
        ("ml100k", 1682, 755, 188, 21409, 113.9),
        ("ml1m", 3706, 4832, 1208, 190036, 157.3),
        ("retail", 16470, 70530, 17632, 182363, 10.3),
        ("youshu_bundles", 28074, 3817, 954, 35893, 37.6),
    ],
)
def test_real_traces_split_as_the_reference_does(
    trace_path, name, items, train, test, test_ids, mean
):
    split = split_bags(read_npz(trace_path(name)))
    assert (split.train.num_bags, split.test.num_bags) == (train, test)
    assert (split.train.num_items, split.test.num_ids) == (items, test_ids)
    assert round(split.test.pooling_factor, 1) == mean


def test_real_marks_keep_every_interaction(trace_path):
    for name, has_tune in (("gowalla_full", False), ("gowalla_poi", True)):
        trace = read_npz(trace_path(name))
        split = split_column(trace)
        assert split.train.num_ids + split.test.num_ids == trace.num_ids
        assert split.fit.num_ids + split.validation.num_ids == split.train.num_ids
        assert set(np.unique(split.validation.split_L)) == ({1} if has_tune else {0})
        assert (split.test.split_L == trace.split_L.max()).all()
        assert np.diff(split.test.offsets_B1).min() >= 1


def test_bags_that_come_again_are_seen_in_any_order():
    earlier = Trace.from_bags([[5, 3, 9], [1, 2, 2], [7, 8], [4, 4, 6]], 10)
    again = Trace.from_bags([[9, 5, 3], [2, 1, 2], [1, 1, 2], [8, 7], [0, 1, 2], [6, 4, 4]], 10)
    assert repeated_share(again, earlier) == pytest.approx(3 / 5)  # [8, 7] is too short to count
    assert repeated_share(again, Trace.from_bags([], 10)) == 0
    assert repeated_share(Trace.from_bags([[1], [1, 2]], 10), earlier) == 0


def test_every_part_of_every_split_keeps_the_note():
    """A figure on a part must be read with what the reader of the whole was told."""
    trace = Trace(
        np.arange(0, 41, 2),
        np.arange(40) % 7,
        time_B=np.arange(20),
        split_L=np.arange(40) % 2,
        note="drawn, not recorded",
    )
    for split in (split_bags(trace), split_time(trace), split_column(trace)):
        for part in (split.train, split.fit, split.validation, split.test):
            assert part.note == "drawn, not recorded"
