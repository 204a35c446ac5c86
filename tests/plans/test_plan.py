"""Plan values: options, predictions and table plans refuse what contradicts itself."""

from dataclasses import replace

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import CurvePoint, Plan, PlanOptions, Prediction

GOOD = Prediction(
    ids=100,
    rows_read=60,
    cut=0.4,
    extra_rows=5,
    extra_bytes=90,
    metadata_bytes=40,
    kept_bytes=30,
    hbm_s=1e-6,
    host_s=2e-6,
    stock_hbm_s=5e-6,
    stock_host_s=1e-6,
)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": -0.1}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"budget": True}, "budget"),
        ({"budget": "1"}, "budget"),
        ({"min_gain": 1.0}, "min_gain"),
        ({"min_gain": -1e-9}, "min_gain"),
        ({"methods": ("merci",)}, "methods"),
        ({"methods": "grace"}, "methods"),
        ({"methods": ("set_merge",)}, "methods"),
        ({"methods": ("set_merge",), "rewriting": "ahead", "lookup": "stock"}, "methods"),
        ({"objective": "rows"}, "objective"),
        ({"size_limits": (9,)}, "size_limits"),
        ({"size_limits": (1,)}, "size_limits"),
        ({"size_limits": (3.0,)}, "size_limits"),
        ({"size_limits": [3]}, "size_limits"),
        ({"size_limits": ()}, "size_limits"),
        ({"lookup": "ahead"}, "lookup"),
        ({"lookup": None}, "lookup"),
        ({"bad_ids": "ignore"}, "bad_ids"),
        ({"rewriting": "later"}, "rewriting"),
        ({"row_dtype": "int2"}, "row_dtype"),
    ],
)
def test_options_out_of_range_are_refused_by_name(change, named):
    with pytest.raises(GraceError, match=f"options: {named}"):
        PlanOptions(**change)


def test_usable_methods_are_those_whose_code_bags_can_use_as_they_arrive():
    in_line = ("grace", "grace_floor", "subsets")
    assert PlanOptions().usable_methods == in_line
    assert PlanOptions(rewriting="ahead").usable_methods == (*in_line, "set_merge")
    assert PlanOptions(rewriting="ahead", lookup="fused").usable_methods == in_line
    assert PlanOptions(methods=("subsets", "set_merge")).usable_methods == ("subsets",)


def test_a_time_is_that_of_the_slower_memory():
    assert GOOD.time_s == 2e-6
    assert GOOD.time_ratio == pytest.approx(2.5)
    assert replace(GOOD, hbm_s=0.0, host_s=0.0, stock_hbm_s=0.0, stock_host_s=0.0).time_ratio == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"ids": 59},
        {"ids": 100.0},
        {"rows_read": -1},
        {"rows_read": True},
        {"cut": 0.5},
        {"cut": float("nan")},
        {"cut": None},
        {"extra_bytes": 69},
        {"kept_bytes": -1},
        {"hbm_s": -1.0},
        {"host_s": float("inf")},
        {"stock_host_s": "1"},
    ],
)
def test_a_prediction_that_contradicts_itself_is_refused(change):
    with pytest.raises(GraceError, match="prediction"):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "maybe"},
        {"verdict": "leave stock"},
        {"sums": None},
        {"method": "none"},
        {"method": "merci"},
        {"method": "subsets"},
        {"lookup": "auto"},
        {"cuts": {"grace size_limit=3": 1.5}},
        {"cuts": {"grace size_limit=3": float("nan")}},
        {"curve": (CurvePoint(5, 0.1, 0.1), CurvePoint(4, 0.2, 0.2))},
        {"sum_reads_R": np.zeros(3, np.int64)},
        {"sum_reads_R": np.zeros(400, np.int32)},
        {"sum_reads_R": np.full(400, -1)},
        {"predicted": GOOD},
    ],
)
def test_a_table_plan_whose_parts_do_not_belong_together_is_refused(small_plan, change):
    table = small_plan.tables["sparse.ebc.t_item"]
    assert table.verdict == "use"
    with pytest.raises(GraceError, match=r"table sparse\.ebc\.t_item"):
        replace(table, **change)


def test_how_few_sums_take_most_reads_is_known_where_their_reads_are(small_plan):
    table = small_plan.tables["sparse.ebc.t_item"]
    reads = table.sum_reads_R
    most = table.sums_for_95pct
    assert np.sort(reads)[::-1][:most].sum() >= 0.95 * reads.sum()
    assert np.sort(reads)[::-1][: most - 1].sum() < 0.95 * reads.sum()
    assert replace(table, sum_reads_R=np.zeros(0, np.int64)).sums_for_95pct is None
    assert table.picked == f"{table.method} {table.parameter}"


@pytest.mark.parametrize("change", [{"num_sums": -1}, {"num_sums": 1.0}, {"in_line_cut": 0.5}, {"ahead_cut": 1.1}, {"in_line_cut": float("nan")}])  # fmt: skip
def test_a_point_of_the_curve_that_cannot_be_is_refused(change):
    with pytest.raises(GraceError, match="curve"):
        replace(CurvePoint(10, 0.1, 0.2), **change)


def test_a_table_plan_is_for_one_table(small_plan, spec_of):
    item, user = small_plan.tables["sparse.ebc.t_item"], small_plan.tables["sparse.ebc.t_user"]
    for change in (
        {"spec": spec_of(num_rows=401)},
        {"spec": spec_of(dim=32)},
        {"placement": user.placement},
    ):
        with pytest.raises(GraceError, match="t_item"):
            replace(item, **change)


def test_a_placement_holds_the_bytes_of_what_is_stored_and_no_more(small_plan):
    table = small_plan.tables["sparse.ebc.t_item"]
    more = replace(table.placement.host, bytes=table.placement.host.bytes + 1)
    with pytest.raises(GraceError, match="placed bytes are not its rows and what it stores"):
        replace(table, placement=replace(table.placement, host=more))


def test_a_plan_holds_tables_under_their_keys_and_no_more_than_its_memory(small_plan, two_memories):
    table = small_plan.tables["sparse.ebc.t_item"]
    with pytest.raises(GraceError, match="key 'other' holds"):
        Plan({"other": table}, small_plan.memory)
    with pytest.raises(GraceError, match="bytes in hbm, test machine has 10"):
        Plan({table.spec.key: table}, two_memories(10))
