"""Placement: nothing exceeds a memory, what is read most is in HBM, more HBM never hurts."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse, place, place_tables
from grace_sharding.table_reads import HOT_MAP_BYTES, DoesNotFit, TableReads

ROW = 64
PLENTY = 10**9
counts = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(lambda x: np.array(x, np.int64))
sum_counts = st.lists(st.integers(0, 30), max_size=12).map(lambda x: np.array(x, np.int64))


def machine(hbm_bytes, host_bytes=PLENTY):
    return MemoryModel("m", (Tier("hbm", hbm_bytes, 100.0), Tier("host", host_bytes, 10.0)))


any_table = st.booleans()


@st.composite
def tables(draw, stock=any_table):
    made = []
    for index in range(draw(st.integers(1, 4))):
        is_stock = draw(stock)
        sums = np.zeros(0, np.int64) if is_stock else draw(sum_counts)
        metadata = 0 if is_stock or not sums.size else draw(st.integers(1, 50))
        row_bytes = draw(st.sampled_from([16, ROW, 100]))
        made.append(TableReads(f"t{index}", draw(counts), sums, row_bytes, metadata, is_stock))
    return made


@given(tables(), st.integers(0, 5000), st.integers(0, 6000))
def test_no_memory_ever_holds_more_than_it_has(made, hbm_bytes, host_bytes):
    memory = machine(hbm_bytes, host_bytes)
    with contextlib.suppress(DoesNotFit):
        placements = place_tables(made, memory)
        assert sum(p.hbm.bytes for p in placements) <= hbm_bytes
        assert sum(p.host.bytes for p in placements) <= host_bytes


@given(tables(), st.integers(0, 5000))
def test_every_row_sum_byte_and_read_is_somewhere(made, hbm_bytes):
    for table, placement in zip(made, place_tables(made, machine(hbm_bytes)), strict=True):
        rows = table.plain_reads_N.size + table.sum_reads_R.size
        copies = placement.hot_items.size
        assert placement.hbm.rows + placement.host.rows == rows + copies
        stored = (rows + copies) * table.row_bytes + table.metadata_bytes + placement.hot_map_bytes
        assert placement.hbm.bytes + placement.host.bytes == stored
        assert placement.hbm.reads + placement.host.reads == table.total_reads
        by_tier = placement.reads_by_tier(table.plain_reads_N, table.sum_reads_R)
        assert by_tier == {"hbm": placement.hbm.reads, "host": placement.host.reads}
        assert not (table.stock and copies)


@given(tables(stock=st.just(False)), st.integers(0, 3000), st.integers(0, 3000))
def test_more_hbm_never_means_more_host_reads(made, hbm_bytes, more):
    metadata = sum(t.metadata_bytes + t.hot_map_bytes for t in made)
    less = place_tables(made, machine(metadata + hbm_bytes))
    larger = place_tables(made, machine(metadata + hbm_bytes + more))
    assert sum(p.host.reads for p in larger) <= sum(p.host.reads for p in less)


@given(counts, st.integers(0, 12))
def test_without_sums_hbm_holds_exactly_the_most_read_rows(plain, rows):
    memory = machine(rows * ROW + plain.size * HOT_MAP_BYTES)
    placement = place(plain, np.zeros(0, np.int64), ROW, memory)
    assert placement.hbm.reads == np.sort(plain)[::-1][:rows].sum()


@given(counts, sum_counts, st.integers(0, 25))
def test_an_item_in_host_memory_is_read_no_more_than_any_hot_row(plain, sums, rows):
    placement = place(plain, sums, ROW, machine(rows * ROW + plain.size * HOT_MAP_BYTES))
    if placement.hot_items.size:
        cold = np.delete(plain, placement.hot_items)
        assert plain[placement.hot_items].min() >= cold.max(initial=0)


def test_sums_and_items_share_hbm_by_their_reads():
    plain, sums = np.array([8, 6, 4]), np.array([7, 5, 3])
    placement = place(plain, sums, ROW, machine(4 * ROW + 12))
    assert placement.hot_items.tolist() == [0, 1]
    assert placement.num_hbm_sums == 2


def test_a_table_that_fits_with_its_sums_is_whole_in_hbm_without_copies():
    plain, sums = np.array([3, 0, 1]), np.array([2, 0])
    placement = place(plain, sums, ROW, machine(5 * ROW))
    assert (placement.originals, placement.num_hbm_sums, placement.hot_items.size) == ("hbm", 2, 0)
    assert placement.host == TierUse(0, 0, 0)
    smaller = place(plain, sums, ROW, machine(5 * ROW - 1))
    assert smaller.originals == "host"


def test_sums_in_hbm_are_a_prefix_even_where_the_first_ones_are_not_read():
    plain = np.array([1, 1, 1, 1])
    placement = place(plain, np.array([0, 0, 90, 0]), ROW, machine(3 * ROW + 4 * HOT_MAP_BYTES))
    assert placement.num_hbm_sums == 3
    assert placement.hbm.reads == 90


def test_rows_that_nobody_reads_are_not_copied():
    placement = place(np.array([0, 7, 0, 0]), np.zeros(0, np.int64), ROW, machine(3 * ROW + 16))
    assert placement.hot_items.tolist() == [1]


@given(counts, sum_counts, st.integers(0, 40))
def test_without_hbm_everything_is_in_host_memory(plain, sums, metadata):
    for memory in (machine(0), MemoryModel.named("cpu")):
        placement = place(plain, sums, ROW, memory, metadata)
        assert (placement.originals, placement.metadata) == ("host", "host")
        assert (placement.num_hbm_sums, placement.hot_items.size) == (0, 0)
        assert placement.hbm == TierUse(0, 0, 0)
        assert placement.host.bytes == (plain.size + sums.size) * ROW + metadata


def test_the_table_that_is_read_more_per_byte_gets_the_hbm_they_share():
    busy = TableReads("busy", np.array([50, 50]), row_bytes=ROW)
    idle = TableReads("idle", np.array([1, 1]), row_bytes=ROW)
    maps = 4 * HOT_MAP_BYTES
    placements = place_tables([idle, busy], machine(2 * ROW + maps))
    assert [p.hbm.reads for p in placements] == [0, 100]


def test_metadata_takes_hbm_before_rows_do():
    table = TableReads("t", np.array([9, 9, 9, 9]), np.array([5]), ROW, metadata_bytes=60)
    (placement,) = place_tables([table], machine(60 + 16 + ROW))
    assert placement.metadata == "hbm"
    assert placement.hbm.bytes == 60 + 16 + ROW
    (placement,) = place_tables([table], machine(59))
    assert placement.metadata == "host"


def test_stored_sums_that_fit_nowhere_are_named():
    table = TableReads("t", np.array([1, 1]), np.array([1, 1, 1]), ROW)
    with pytest.raises(
        DoesNotFit, match=r"table t: its sums need 192 bytes, 128 are left"
    ) as error:
        place_tables([table], machine(0, 4 * ROW))
    assert error.value.what == "sums"


@pytest.mark.parametrize("host_bytes", [PLENTY, 6 * ROW])
def test_all_sums_of_one_table_push_no_rows_of_another_out(host_bytes):
    sums = TableReads("sums", np.array([1, 1]), np.array([9] * 6), ROW, layout="all")
    rows = TableReads("rows", np.array([50, 50]), row_bytes=ROW, layout="whole")
    for sums_in_hbm in range(7):
        placed = place_tables([sums, rows], machine((4 + sums_in_hbm) * ROW, host_bytes))
        assert [one.originals for one in placed] == ["hbm", "hbm"]
        assert placed[0].num_hbm_sums == sums_in_hbm


def test_no_tables_need_no_place():
    assert place_tables([], machine(10)) == ()


def test_reads_of_other_bags_are_split_by_the_same_layout():
    placement = place(np.array([5, 0, 9]), np.array([4, 1]), ROW, machine(3 * ROW + 12))
    assert placement.hot_items.tolist() == [0, 2]
    assert placement.reads_by_tier(np.array([1, 10, 100]), np.array([1000, 10000])) == {
        "hbm": 1 + 100 + 1000,
        "host": 10 + 10000,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"originals": "disk"},
        {"metadata": "gpu"},
        {"originals": "hbm"},
        {"num_hbm_sums": 3},
        {"num_hbm_sums": -1},
        {"num_hbm_sums": 0},
        {"hot_items": np.array([2, 0])},
        {"hot_items": np.array([0, 0])},
        {"hot_items": np.array([0, 3])},
        {"hot_items": np.array([-1, 2])},
        {"hot_items": np.array([0, 2], np.int32)},
        {"hot_items": np.array([[0, 2]])},
        {"num_rows": 2},
        {"row_bytes": 10**6},
        {"hbm": TierUse(3, 0, 18)},
        {"host": TierUse(4, 4 * ROW, -1)},
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(change):
    good = place(np.array([5, 0, 9]), np.array([4, 1]), ROW, machine(3 * ROW + 12))
    assert isinstance(good, Placement)
    with pytest.raises(ValueError, match="placement"):
        replace(good, **change)
