"""Plans print on one line: what they hold is for ``inspect``."""

from grace_torchrec.plans.plan import Plan


def test_a_plan_prints_on_one_short_line(small_plan):
    shown = repr(small_plan)
    assert shown == str(small_plan)
    assert "\n" not in shown
    assert len(shown) < 120
    extra = sum(table.predicted.extra_bytes for table in small_plan.tables.values())
    for text in ("3 tables: 2 use, 1 leave stock", "test machine", f"{extra:,} extra bytes"):
        assert text in shown
    for table in small_plan.tables.values():
        assert table.verdict in repr(table)
        assert len(repr(table)) < 140
    assert repr(Plan({}, small_plan.memory)).startswith("Plan(0 tables; for test machine;")
