"""Filling: blocks of sums, and tables that must or may be whole in HBM."""

import numpy as np
import pytest
from hypothesis import strategies as st

from grace_sharding.filling import forced_to_hbm, list_units, stock_in_hbm
from grace_sharding.table_reads import DoesNotFit, TableReads

reads_lists = st.lists(st.integers(0, 50), max_size=40)


def table(reads, name="t", **kwargs):
    return TableReads(name, np.array(reads, np.int64), row_bytes=10, **kwargs)


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
