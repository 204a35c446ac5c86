"""Plan files: what is saved comes back equal, and only a plan that fits the model is used."""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.files import check_plan_fits, plan_fingerprint
from grace_torchrec.plans.held import Extra
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.parse import BESIDE_SUMS, PARTS, parse_memory
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.versions import SCHEMA, prediction_of_today
from grace_torchrec.sums.arrays import ARRAY_TYPES
from grace_torchrec.traces.profile import Profile, TableProfile

KEY = "sparse.ebc.t_item"


def assert_equal(back, plan):
    """Both plans say the same, to the last byte of their arrays."""
    assert list(back.tables) == list(plan.tables)
    assert (back.memory, back.options) == (plan.memory, plan.options)
    assert back.profile_fingerprint == plan.profile_fingerprint
    for key, table in plan.tables.items():
        again = back.tables[key]
        for field in fields(table):
            if field.name not in ("sums", "placement", "sum_reads_R"):
                assert getattr(again, field.name) == getattr(table, field.name), field.name
        for name in ("originals", "num_hbm_sums", "metadata", "hbm", "host"):
            assert getattr(again.placement, name) == getattr(table.placement, name)
        assert np.array_equal(again.placement.hot_items, table.placement.hot_items)
        assert np.array_equal(again.sum_reads_R, table.sum_reads_R)
        assert (again.sums is None) == (table.sums is None)
        if table.sums is not None:
            assert_equal_sums(again.sums, table.sums)
    assert plan_fingerprint(back) == plan_fingerprint(plan)


def assert_equal_sums(again, sums):
    assert type(again.code) is type(sums.code)
    pairs = [
        (again.set_indptr_R1, sums.set_indptr_R1),
        (again.set_items_S, sums.set_items_S),
        *((getattr(again.code, f.name), getattr(sums.code, f.name)) for f in fields(sums.code)),
    ]
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_a_saved_plan_comes_back_equal(small_plan, tmp_path):
    small_plan.save(tmp_path / "plan")
    assert_equal(Plan.load(tmp_path / "plan"), small_plan)


@pytest.mark.parametrize("rewriting", ["in_line", "ahead"])
@pytest.mark.parametrize("method", ["grace", "grace_floor", "subsets", "set_merge"])
def test_a_plan_of_every_method_comes_back_equal(
    spec_of, grouped, two_memories, tmp_path, method, rewriting
):
    if method == "set_merge" and rewriting == "in_line":
        return
    profile = Profile({"t_item": TableProfile(grouped(), ("item",))})
    options = PlanOptions(methods=(method,), size_limits=(3, 4), rewriting=rewriting)
    plan = make_plan([spec_of()], profile, two_memories(130_000), options)
    table = plan.tables[KEY]
    assert (table.method, table.verdict) == (method, "use")
    assert table.lookup == ("ahead" if rewriting == "ahead" else "fused")
    assert table.curve
    assert table.cuts
    assert table.sum_reads_R.size == table.sums.num_sums
    plan.save(tmp_path / "plan")
    assert_equal(Plan.load(tmp_path / "plan"), plan)


VERSION_1 = Path(__file__).parent / "data" / "version_1"


def test_a_plan_of_version_1_is_read_with_what_it_decided(tmp_path):
    """Written by the code that knew method ``grace`` only."""
    written = json.loads((VERSION_1 / "plan.json").read_text())
    assert written["schema"] == 1
    plan = Plan.load(VERSION_1)
    assert plan.options.objective == "cut"
    assert plan.options.methods == ("grace",)
    item, user, new = plan.tables.values()
    for table, told in zip((item, user, new), written["tables"], strict=True):
        assert (table.verdict, table.method, table.reason) == (
            told["verdict"],
            told["method"],
            told["reason"],
        )
        assert (table.parameter, table.cuts, table.curve) == ("", {}, ())
        assert table.sum_reads_R.size == 0
        assert table.placement.hbm.bytes == told["placement"]["hbm"]["bytes"]
        kept = table.predicted.kept_bytes
        assert table.predicted.extra_bytes == told["predicted"]["extra_bytes"] + kept
    assert item.sums.num_sums == 400
    assert item.sums_for_95pct is None
    assert user.placement.hot_items.size == 40
    assert item.predicted.kept_bytes > user.predicted.kept_bytes > new.predicted.kept_bytes == 0
    for table, told in zip((item, user), written["tables"], strict=False):
        assert table.predicted.stock_hbm_s == 0  # 30 kB of HBM hold no table
        assert table.predicted.stock_host_s == told["predicted"]["stock_s"]
    plan.save(tmp_path / "plan")  # as today's
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["schema"] == SCHEMA
    assert_equal(Plan.load(tmp_path / "plan"), plan)


def test_a_plan_of_version_2_was_made_for_one_device(tmp_path):
    plan = Plan.load(VERSION_1.with_name("version_2"))
    assert plan.sharding is None
    assert [table.method for table in plan.tables.values()] == ["grace", "none", "none"]
    plan.save(tmp_path / "plan")
    document = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (document["schema"], document["sharding"]) == (SCHEMA, None)
    assert_equal(Plan.load(tmp_path / "plan"), plan)


def test_a_plan_of_version_3_knows_no_cache_and_no_launch(tmp_path):
    """What it says of gains in its reasons stays as it was written."""
    plan = Plan.load(VERSION_1.with_name("version_3"))
    assert (plan.memory.cache_bytes, plan.memory.launch_s) == (None, None)
    assert [table.method for table in plan.tables.values()] == ["grace", "none", "none"]
    plan.save(tmp_path / "plan")
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["schema"] == SCHEMA
    assert_equal(Plan.load(tmp_path / "plan"), plan)


def test_a_plan_of_version_4_knows_no_costs_of_lookups(tmp_path):
    plan = Plan.load(VERSION_1.with_name("version_4"))
    assert (plan.memory.cache_bytes, plan.memory.launch_s) == (4096, 3e-6)
    assert plan.memory.lookup_costs is None
    plan.save(tmp_path / "plan")
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["schema"] == SCHEMA
    assert_equal(Plan.load(tmp_path / "plan"), plan)


@pytest.mark.parametrize(
    ("schema", "key"),
    [(3, "cache_bytes"), (3, "launch_s"), (3, "lookup_costs"), (4, "lookup_costs")],
)
def test_keys_that_a_version_did_not_know_are_refused_in_it(schema, key):
    path = VERSION_1.with_name(f"version_{schema}") / "plan.json"
    document = json.loads(path.read_text())["memory"]
    parse_memory(document, "memory", schema)
    with pytest.raises(GraceError, match=f"memory: '{key}' unknown in schema {schema}"):
        parse_memory({**document, key: 1}, "memory", schema)


def test_costs_of_lookups_are_kept_and_checked():
    costs = LookupCosts(0.01, 0.03, 0.2, 7.0, 0.7)
    memory = MemoryModel("c", (Tier("host", 10**9, 1e9),), lookup_costs=costs)
    document = json.loads(json.dumps(asdict(memory)))
    assert parse_memory(document, "memory") == memory
    for wrong in (3, [], {}, {**asdict(costs), "more": 1}, {**asdict(costs), "codes_ns": -1}):
        with pytest.raises(GraceError, match="make the plan again"):
            parse_memory({**document, "lookup_costs": wrong}, "memory")


@pytest.mark.parametrize(
    ("hbm_share", "hbm_s", "host_s"),
    [(1.0, 100 * 64 / 4e9, 0.0), (0.0, 0.0, 100 * 64 / 1e9), (0.4, 40 * 64 / 4e9, 60 * 64 / 1e9)],
)
def test_versions_1_and_2_told_the_stock_time_by_its_slower_memory(hbm_share, hbm_s, host_s):
    """One number was written; rows, rates and ids say in which memory it was spent."""
    memory = MemoryModel("m", (Tier("hbm", 10**6, 4e9), Tier("host", 10**9, 1e9)))
    document = {"ids": 100, "extra_bytes": 0, "kept_bytes": 0, "stock_s": max(hbm_s, host_s)}
    nothing = Extra(0, 0, 0, 0)
    found = prediction_of_today(document, nothing, 64, memory, 2)
    assert found == pytest.approx(
        {
            "ids": 100,
            "extra_bytes": 0,
            "kept_bytes": 0,
            "stock_hbm_s": hbm_s,
            "stock_host_s": host_s,
        }
    )
    alone = MemoryModel("m", (Tier("host", 10**9, 1e9),))
    found = prediction_of_today(document, nothing, 64, alone, 2)
    assert (found["stock_hbm_s"], found["stock_host_s"]) == (0.0, max(hbm_s, host_s))


def test_damage_to_a_plan_of_version_1_is_seen(tmp_path):
    for change in ({"verdict": "leave stock"}, {"arrays_fingerprint": "0" * 16}, {"spec": {}}):
        folder = tmp_path / "plan"
        shutil.copytree(VERSION_1, folder)
        document = json.loads((folder / "plan.json").read_text())
        document["tables"][0] |= change
        (folder / "plan.json").write_text(json.dumps(document))
        with pytest.raises(GraceError, match="was changed after it was written"):
            Plan.load(folder)
        kept = {k: v for k, v in document.items() if k not in ("plan_sha256", "arrays_sha256")}
        sealed = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
        document["plan_sha256"] = sealed
        (folder / "plan.json").write_text(json.dumps(document))
        with pytest.raises(GraceError, match="table 0"):
            Plan.load(folder)
        shutil.rmtree(folder)


def test_a_document_says_what_made_it_and_for_what(small_plan, tmp_path):
    small_plan.save(tmp_path / "plan")
    document = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert document["schema"] == SCHEMA
    assert "numpy" in document["software"]
    assert document["memory"]["machine"] == "test machine"
    assert document["tables"][0]["spec"]["num_rows"] == 400


def test_what_is_no_plan_folder_is_refused_and_left_alone(tmp_path, small_plan):
    with pytest.raises(GraceError, match="no such file"):
        Plan.load(tmp_path / "nothing")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(GraceError, match="not a plan folder"):
        small_plan.save(tmp_path / "notes")
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"


def test_saving_over_a_plan_replaces_it(small_plan, tmp_path):
    Plan({}, small_plan.memory).save(tmp_path / "plan")
    small_plan.save(tmp_path / "plan")
    assert len(Plan.load(tmp_path / "plan").tables) == 3


def test_a_fingerprint_changes_with_what_a_plan_says(small_plan):
    other = Plan(small_plan.tables, small_plan.memory, small_plan.options, "another profile")
    assert plan_fingerprint(other) != plan_fingerprint(small_plan)


def test_a_fingerprint_tells_worse_splits_of_the_same_subsets(
    spec_of, grouped, two_memories, tmp_path
):
    profile = Profile({"t_item": TableProfile(grouped(), ("item",))})
    options = PlanOptions(methods=("subsets",))
    plan = make_plan([spec_of()], profile, two_memories(10**6), options)
    table = plan.tables[KEY]
    parts = table.sums.code.next_E.copy()
    split = np.flatnonzero(parts & (parts - 1))  # several items at once
    parts[split] &= -parts[split]  # one after the other: a way to split them, and the worst
    code = replace(table.sums.code, next_E=parts)
    worse = replace(plan, tables={KEY: replace(table, sums=replace(table.sums, code=code))})
    assert plan_fingerprint(worse) != plan_fingerprint(plan)
    for each in (plan, worse):
        each.save(tmp_path / "plan")
        assert plan_fingerprint(Plan.load(tmp_path / "plan")) == plan_fingerprint(each)


def test_the_page_names_every_array_and_its_type():
    page = (Path(__file__).parents[2] / "docs" / "plan_file.md").read_text()
    cells = [row.split(" | ") for row in page.split("\n| ")]
    rows = {cell[0]: cell[1].split(", ") for cell in cells if len(cell) > 1}
    types = {name: kinds for arrays in ARRAY_TYPES.values() for name, kinds in arrays.items()}
    for kind, arrays in ARRAY_TYPES.items():
        assert set(rows[kind]) == {*arrays, *([PARTS] if kind == "subsets" else [])}
    assert set(rows["all of these"]) == set(BESIDE_SUMS)
    told = page.split("Types: ")[1].split("all others are int64")[0]
    apart = {name for name, kinds in types.items() if kinds != (np.int64,)} | {PARTS}
    assert set(re.findall("`(.*?)`", told)) == apart


def test_a_plan_fits_the_model_it_was_made_for(small_plan):
    check_plan_fits(small_plan, [table.spec for table in small_plan.tables.values()])


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"num_rows": 500}, "num_rows 500 in the model, the plan was made for 400"),
        ({"dim": 32}, "dim 32 in the model, the plan was made for 64"),
        ({"dtype": "fp16"}, "dtype 'fp16' in the model, the plan was made for 'fp32'"),
        ({"pooling": "mean"}, "pooling 'mean' in the model, the plan was made for 'sum'"),
        (
            {"features": ("x",)},
            r"features \('x',\) in the model, the plan was made for \('item',\)",
        ),
        ({"is_weighted": True}, "is_weighted True in the model, the plan was made for False"),
    ],
)
def test_a_table_that_differs_is_named_with_both_values(small_plan, spec_of, change, both):
    item, *others = (table.spec for table in small_plan.tables.values())
    with pytest.raises(PlanMismatch, match=rf"'sparse\.ebc\.t_item' has {both}"):
        check_plan_fits(small_plan, [replace(item, **change), *others])


def test_a_table_that_is_missing_on_either_side_is_named(small_plan, spec_of):
    specs = [table.spec for table in small_plan.tables.values()]
    with pytest.raises(PlanMismatch, match=r"t_new' is in the plan and not in the model"):
        check_plan_fits(small_plan, specs[:2])
    with pytest.raises(PlanMismatch, match=r"t_more' is in the model and not in the plan"):
        check_plan_fits(small_plan, [*specs, spec_of("t_more")])
