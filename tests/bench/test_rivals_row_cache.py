"""The counting LRU of the bench and the row cache of the scheduler find the same rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.rivals.lru import lru_found
from grace_torchrec.schedule.row_cache import CachedRows
from grace_torchrec.traces.trace import Trace

requests = st.lists(st.integers(0, 11), min_size=1, max_size=60)


@given(requests, st.integers(1, 12))
def test_hits_are_those_of_the_cache_that_holds_rows(ids, slots):
    rows = torch.arange(12.0)[:, None].repeat(1, 3)
    cache, hits = CachedRows(rows, slots, "t"), []
    for row in ids:
        hits.append(bool(cache.slot_of[row] >= 0))
        assert torch.equal(cache(torch.tensor([row])), rows[[row]])
    assert lru_found(Trace.from_bags([ids], 12), slots).tolist() == hits
