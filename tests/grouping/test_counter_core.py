"""Counters are read out whole, rising, and cleared; nothing beside the room given is touched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grace_torchrec.grouping._counter_core import GROUP, GROUP_SHIFT, read_all, read_marked

BESIDE = -7

counted = st.integers(0, 70).flatmap(
    lambda size: hnp.arrays(np.int32, size, elements=st.sampled_from([0, 0, 1, 2, 2**31 - 1]))
)


def marks_of(counters: np.ndarray) -> np.ndarray:
    """Return a bit for every group with a counter that is not 0."""
    marks = np.zeros((counters.size >> GROUP_SHIFT + 6) + 1, np.int64)
    for item in np.flatnonzero(counters):
        bit = np.uint64(1) << np.uint64((item >> GROUP_SHIFT) & 63)
        marks[item >> GROUP_SHIFT + 6] |= bit.astype(np.int64)
    return marks


@pytest.mark.parametrize("way", ["all", "marked"])
@settings(max_examples=60, deadline=None)
@given(counters=counted, spare=st.integers(0, 40), before=st.integers(0, 3))
def test_every_counter_is_read_once_into_its_room(way, counters, spare, before):
    items = np.flatnonzero(counters)
    counts = counters[items].copy()
    room = before + items.size + spare
    both = np.full((2, room + GROUP), BESIDE, np.int32)  # what lies behind the room is another's
    given_room = both[0, :room], both[1, :room]
    if way == "all":
        end = read_all(counters, *given_room, before)
    else:
        marks = marks_of(counters)
        end = read_marked(counters, marks, *given_room, before)
        assert not marks.any()
    assert end == before + items.size
    np.testing.assert_array_equal(both[0, before:end], items)
    np.testing.assert_array_equal(both[1, before:end], counts)
    assert not counters.any()
    assert (both[:, :before] == BESIDE).all()
    assert (both[:, room:] == BESIDE).all()


def test_marks_of_far_counters_are_found():
    counters = np.zeros(5000, np.int32)
    counters[[0, 63 * GROUP, 64 * GROUP, 4999]] = 3, 4, 5, 6
    items, counts = np.zeros((2, 4), np.int32)
    assert read_marked(counters, marks_of(counters), items, counts, 0) == 4
    assert items.tolist() == [0, 63 * GROUP, 64 * GROUP, 4999]
    assert counts.tolist() == [3, 4, 5, 6]
