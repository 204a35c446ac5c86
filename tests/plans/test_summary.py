"""A summary says what the plan says, and its totals are those of its tables."""

import pytest

from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.summary import slack_s


def test_every_number_of_a_table_is_that_of_the_plan(small_plan):
    for table, told in zip(small_plan.tables.values(), summarise(small_plan).tables, strict=True):
        hbm, host = told.tiers
        placed = table.placement
        assert (hbm.tier, host.tier) == ("hbm", "host")
        assert (hbm.rows, host.rows) == (placed.hbm.rows, placed.host.rows)
        assert (hbm.bytes, host.bytes) == (placed.hbm.bytes, placed.host.bytes)
        assert (hbm.time_s, host.time_s) == (table.predicted.hbm_s, table.predicted.host_s)
        assert told.extra_rows == table.predicted.extra_rows
        assert told.time_s == table.predicted.time_s
        assert (hbm.stock_s, host.stock_s) == (
            table.predicted.stock_hbm_s,
            table.predicted.stock_host_s,
        )


def test_memories_hold_what_all_tables_hold_and_the_slower_one_waits_for_none(small_plan):
    summary = summarise(small_plan)
    hbm, host = summary.tiers
    assert hbm.rows == sum(table.placement.hbm.rows for table in small_plan.tables.values())
    assert host.bytes == sum(table.placement.host.bytes for table in small_plan.tables.values())
    assert summary.time_s == max(hbm.time_s, host.time_s)
    waits = [slack_s(part, summary.tiers) for part in summary.tiers]
    assert min(waits) == 0
    assert max(waits) == pytest.approx(abs(hbm.time_s - host.time_s))


def test_a_plan_without_tables_has_memories_and_no_verdicts(small_plan):
    summary = summarise(Plan({}, small_plan.memory))
    assert summary.verdicts() == {}
    assert [part.rows for part in summary.tiers] == [0, 0]
    assert summary.document()["tables"] == []
