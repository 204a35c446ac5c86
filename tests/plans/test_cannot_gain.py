"""Cannot gain: the bound holds for all sums that could ever be stored."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.plans.cannot_gain import merge_bound
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

bag_lists = st.lists(st.lists(st.integers(0, 7), max_size=6), min_size=10, max_size=30)


@given(bag_lists, st.booleans(), st.data())
def test_no_sums_save_more_than_the_bound(bags, with_weights, data):
    trace = Trace.from_bags(bags, 8)
    if with_weights:
        weights = data.draw(
            st.lists(st.integers(0, 2), min_size=trace.num_ids, max_size=trace.num_ids)
        )
        trace = Trace(
            trace.offsets_B1, trace.ids_L, trace.num_items, np.asarray(weights, np.float32)
        )
    sums = StoredSums.from_clusters(8, np.array([0, 8]), np.arange(8))
    assert count_reads(trace, sums).cut <= merge_bound(trace) + 1e-12
