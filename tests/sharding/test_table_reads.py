"""Table reads: sums are valued in blocks, and reads that make no sense are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.table_reads import SUM_BLOCKS, TableReads, blocks_of_sums

reads_lists = st.lists(st.integers(0, 50), max_size=40)


def table(reads, name="t", **kwargs):
    return TableReads(name, np.array(reads, np.int64), row_bytes=10, **kwargs)


@given(reads_lists)
def test_blocks_of_sums_fall_in_value_and_leave_out_only_sums_that_are_never_read(reads):
    rows_K, density_K = blocks_of_sums(np.array(reads, np.int64))
    assert (np.diff(density_K) < 0).all()
    assert (density_K > 0).all()
    covered = int(rows_K.sum())
    assert (rows_K * density_K).sum() == pytest.approx(sum(reads))
    assert not any(reads[covered:])


@given(reads_lists)
def test_no_prefix_is_worth_more_per_row_than_the_first_block(reads):
    rows_K, density_K = blocks_of_sums(np.array(reads, np.int64))
    best = max((sum(reads[:n]) / n for n in range(1, len(reads) + 1)), default=0.0)
    assert (density_K[0] if rows_K.size else 0.0) == pytest.approx(best)


def test_a_sum_read_often_pulls_the_unread_ones_before_it_along():
    rows_K, density_K = blocks_of_sums(np.array([0, 0, 9, 1]))
    assert rows_K.tolist() == [3, 1]
    assert density_K.tolist() == [3.0, 1.0]


def test_very_many_sums_are_valued_in_few_blocks():
    reads = np.random.default_rng(0).integers(0, 9, 10 * SUM_BLOCKS + 7)
    rows_K, density_K = blocks_of_sums(reads)
    assert rows_K.size <= SUM_BLOCKS
    assert (rows_K * density_K).sum() == pytest.approx(reads.sum())


@pytest.mark.parametrize(
    "bad",
    [
        lambda: table([-1]),
        lambda: TableReads("t", np.array([0.5])),
        lambda: TableReads("t", np.array([[1]])),
        lambda: table([]),
        lambda: table([1], metadata_bytes=-1),
        lambda: TableReads("t", np.array([1]), row_bytes=0),
        lambda: table([1], sum_reads_R=np.array([-1])),
    ],
)
def test_reads_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="table t"):
        bad()
