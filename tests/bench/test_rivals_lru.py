"""LRU row cache: hits are those of an OrderedDict, request by request."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rivals.lru import lru_found
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.trace import Trace


def lru_hits(trace, capacity, warm=None):
    found = lru_found(trace, capacity, warm)
    return np.bincount(trace.ids_L[found], minlength=trace.num_items)


def hits_by_hand(cache, ids, capacity, num_items):
    hits = np.zeros(num_items, np.int64)
    for row in ids:
        if row in cache:
            hits[row] += 1
            cache.move_to_end(row)
        elif capacity:
            if len(cache) == capacity:
                cache.popitem(last=False)
            cache[row] = None
    return hits


bags = st.lists(st.lists(st.integers(0, 11), max_size=8), max_size=30)


@given(warm=bags, served=bags, capacity=st.integers(0, 14))
def test_hits_are_those_of_an_ordered_dict(warm, served, capacity):
    before, trace = Trace.from_bags(warm, 12), Trace.from_bags(served, 12)
    cache = OrderedDict()
    wanted = hits_by_hand(cache, trace.ids_L.tolist(), capacity, 12)
    assert lru_hits(trace, capacity).tolist() == wanted.tolist()
    cache = OrderedDict()
    hits_by_hand(cache, before.ids_L.tolist(), capacity, 12)
    wanted = hits_by_hand(cache, trace.ids_L.tolist(), capacity, 12)
    assert lru_hits(trace, capacity, warm=before).tolist() == wanted.tolist()


def test_a_cache_of_the_whole_table_misses_each_row_once():
    trace = Trace.from_bags([[4, 4, 0], [2, 4], [0]], 6)
    assert (lru_hits(trace, 6) == np.maximum(trace.counts() - 1, 0)).all()


def test_a_real_trace(trace_path):
    trace = read_npz(trace_path("steam200k"))
    wanted = hits_by_hand(OrderedDict(), trace.ids_L.tolist(), 500, trace.num_items)
    assert (lru_hits(trace, 500) == wanted).all()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(GraceError, match="capacity -1"):
        lru_hits(Trace.from_bags([[0]]), -1)
    with pytest.raises(GraceError, match="warm bags are over 3 items"):
        lru_hits(Trace.from_bags([[0]]), 1, warm=Trace.from_bags([[2]]))
