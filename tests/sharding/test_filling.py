"""Filling: blocks of sums, and tables that must or may be whole in HBM."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.filling import SUM_BLOCKS, forced_to_hbm, list_units, stock_in_hbm, sum_blocks
from grace_sharding.table_reads import DoesNotFit, TableReads

reads_lists = st.lists(st.integers(0, 50), max_size=40)


def table(reads, name="t", **kwargs):
    return TableReads(name, np.array(reads, np.int64), row_bytes=10, **kwargs)


@given(reads_lists)
def test_blocks_of_sums_fall_in_value_and_leave_out_only_sums_that_are_never_read(reads):
    rows_K, density_K = sum_blocks(np.array(reads, np.int64))
    assert (np.diff(density_K) < 0).all()
    assert (density_K > 0).all()
    covered = int(rows_K.sum())
    assert (rows_K * density_K).sum() == pytest.approx(sum(reads))
    assert not any(reads[covered:])


@given(reads_lists)
def test_no_prefix_is_worth_more_per_row_than_the_first_block(reads):
    rows_K, density_K = sum_blocks(np.array(reads, np.int64))
    best = max((sum(reads[:n]) / n for n in range(1, len(reads) + 1)), default=0.0)
    assert (density_K[0] if rows_K.size else 0.0) == pytest.approx(best)


def test_a_sum_read_often_pulls_the_unread_ones_before_it_along():
    rows_K, density_K = sum_blocks(np.array([0, 0, 9, 1]))
    assert rows_K.tolist() == [3, 1]
    assert density_K.tolist() == [3.0, 1.0]


def test_very_many_sums_are_valued_in_few_blocks():
    reads = np.random.default_rng(0).integers(0, 9, 10 * SUM_BLOCKS + 7)
    rows_K, density_K = sum_blocks(reads)
    assert rows_K.size <= SUM_BLOCKS
    assert (rows_K * density_K).sum() == pytest.approx(reads.sum())


def test_units_come_best_first_and_sums_of_a_table_in_order():
    tables = [table([5, 0, 1], sum_reads_R=np.array([4, 3])), table([9, 9], "u", stock=True)]
    units = list_units(tables, mapped={0})
    assert units.reads_per_row_U.tolist() == [5.0, 4.0, 3.0, 1.0]
    assert units.item_U.tolist() == [0, -1, -1, 2]
    assert units.bytes_U1.tolist() == [0, 10, 20, 30, 40]


def test_a_table_goes_to_hbm_when_host_memory_cannot_hold_all():
    tables = [table([1] * 4, "cold"), table([9] * 4, "hot")]
    assert forced_to_hbm(tables, hbm_bytes=40, host_bytes=80) == set()
    assert forced_to_hbm(tables, hbm_bytes=40, host_bytes=40) == {1}


def test_the_order_of_value_gives_way_to_one_that_fits():
    tables = [table([9], "small"), table([1] * 5, "large")]
    # the small one first would leave no HBM for the large one, and host has room for the small only
    assert forced_to_hbm(tables, hbm_bytes=50, host_bytes=10) == {1}


def test_originals_that_fit_nowhere_are_named_with_need_and_have():
    with pytest.raises(
        DoesNotFit, match=r"table large: its originals need 50 bytes, 40 are left"
    ) as error:
        forced_to_hbm([table([1] * 5, "large")], hbm_bytes=20, host_bytes=40)
    assert (error.value.table, error.value.what) == ("large", "originals")
    assert (error.value.need_bytes, error.value.have_bytes) == (50, 40)


def test_a_stock_table_is_taken_whole_or_not_after_rows_that_are_read_more():
    hot = table([9, 9, 1], "split")
    stock = table([5, 5], "stock", stock=True)
    units = list_units([hot, stock], mapped={0})
    assert stock_in_hbm([hot, stock], units, set(), left=40) == {1}
    assert stock_in_hbm([hot, stock], units, set(), left=39) == set()


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
