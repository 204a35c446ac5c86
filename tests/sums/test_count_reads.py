"""Read counts: every row read is counted once, against the ids that were asked for."""

import numpy as np

from grace_torchrec.sums.count_reads import RowReads, count_reads
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

SUMS = StoredSums.from_clusters(6, np.array([0, 3, 5]), np.array([1, 3, 0, 5, 2]))


def reads(stored, plain=(0,), before=100):
    return RowReads(np.array(plain, np.int64), np.array(stored, np.int64), before)


def test_reads_of_a_small_trace_by_hand():
    counted = count_reads(Trace.from_bags([[1, 3, 4], [0, 1, 3], [2, 5, 2], [4]]), SUMS)
    assert counted.plain_reads_N.tolist() == [0, 0, 1, 0, 2, 0]
    assert counted.stored_reads_R.tolist() == [1, 0, 0, 1, 1]  # {1,3} {1,0} {3,0} {1,3,0} {5,2}
    assert (counted.rows_before, counted.rows_after) == (10, 6)
    assert counted.cut == 1 - 6 / 10


def test_counted_rows_are_the_rewritten_rows():
    rng = np.random.default_rng(0)
    trace = Trace.from_bags([rng.integers(0, 6, n).tolist() for n in rng.integers(0, 9, 50)], 6)
    counted, rewritten = count_reads(trace, SUMS), rewrite(trace, SUMS)
    assert counted.rows_after == rewritten.num_rows_read <= counted.rows_before == trace.num_ids
    both = np.concatenate([counted.plain_reads_N, counted.stored_reads_R])
    np.testing.assert_array_equal(both, np.bincount(rewritten.rows, minlength=11))


def test_as_few_sums_as_take_95_percent_of_the_reads_of_sums():
    assert reads([1, 90, 5, 4]).sums_for_95pct == 2  # 90 + 5 of 100
    assert reads([1, 90, 4, 5]).sums_for_95pct == 2
    assert reads([10] * 10).sums_for_95pct == 10
    assert reads([100, 0, 0]).sums_for_95pct == 1
    assert reads([0, 0]).sums_for_95pct == reads([]).sums_for_95pct == 0


def test_nothing_requested_cuts_nothing():
    assert count_reads(Trace.from_bags([[], []], 6), SUMS).cut == 0
