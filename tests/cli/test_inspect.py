"""``inspect`` and ``diff``: plan folders, sharding plans, and what is neither."""

import json
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.cli.diff import diff
from grace_torchrec.cli.inspect import inspect
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.sharding import Ranks, make_sharded_plan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate

SHARDING = """
from types import SimpleNamespace as Plan

def stock():
    shard = Plan(shard_offsets=[0, 0], shard_sizes=[900, 32], placement="rank:0/cuda:0")
    table = Plan(sharding_type="table_wise", compute_kernel="fused", ranks=[0],
                 sharding_spec=Plan(shards=[shard]))
    return Plan(plan={"sparse.ebc": {"t_item": table}})

def nothing():
    return 7
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two plans of the same tables, one for more HBM."""
    root = tmp_path_factory.mktemp("plans")
    specs = [
        TableSpec("sparse.ebc", name, 900, 32, "fp32", "sum", (name[2:],), False)
        for name in ("t_item", "t_other")
    ]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("item",))})
    for name, hbm_bytes in (("small", 40_000), ("large", 80_000)):
        memory = MemoryModel.named("a40", hbm_bytes=hbm_bytes)
        make_plan(specs, profile, memory, PlanOptions(size_limits=(3,))).save(root / name)
    return root


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user with functions that return plans."""
    (tmp_path / "user_sharding.py").write_text(SHARDING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_sharding", raising=False)
    return "user_sharding"


def run(command, *args, columns=80):
    return CliRunner().invoke(command, [str(arg) for arg in args], env={"COLUMNS": str(columns)})


def test_the_head_says_what_the_plan_gains(folders):
    told = json.loads(run(inspect, folders / "small", "--json").stdout)
    assert 0 < told["time_s"] <= told["stock_s"]
    ratio = f"{told['stock_s'] / told['time_s']:.2f} times the speed"
    assert ratio in " ".join(run(inspect, folders / "small").stdout.split())


def test_every_table_memory_verdict_and_reason_is_shown_in_80_columns(folders):
    result = run(inspect, folders / "small")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    words = " ".join(result.stdout.split())
    assert "t_other: leave stock: the profile does not hold this table" in words
    assert "2 tables" in words
    document = json.loads(run(inspect, folders / "small", "--json").stdout)
    for part in document["tables"][0]["tiers"].values():
        assert f"{part['rows']:,}" in words
    assert "\u2026" not in words  # no number is cut short


def test_wide_shows_all_columns_and_the_settings(folders):
    shown = run(inspect, folders / "small", "--wide").stdout
    for heading in ("originals", "sums", "hot rows", "lookup", "reason", "size_limits", "beta"):
        assert heading in shown


def test_markdown_is_tables_of_equal_rows(folders):
    shown = run(inspect, folders / "small", "--format", "markdown").stdout
    blocks = [block.splitlines() for block in shown.split("\n\n") if block.startswith("|")]
    assert [len({line.count("|") for line in block}) for block in blocks] == [1, 1, 1]
    assert [block[0].count("|") for block in blocks] == [9, 17, 3]
    assert "| :-- | :-- | --: |" in shown


def test_json_is_one_object_with_times_and_slack(folders):
    document = json.loads(run(inspect, folders / "small", "--json").stdout)
    assert document["kind"] == "grace"
    assert document["time_s"] == max(part["time_s"] for part in document["tiers"].values())
    assert min(part["slack_s"] for part in document["tiers"].values()) == 0
    assert document["tiers"]["hbm"]["room_bytes"] == 40_000
    assert document["tables"][1]["verdict"] == "leave stock"


@pytest.fixture
def for_ranks(tmp_path):
    """A plan folder for two ranks."""
    specs = [TableSpec("sparse.ebc", "t_item", 900, 32, "fp32", "sum", ("item",), False)]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("item",))})
    options = PlanOptions(methods=("grace",), size_limits=(3,))
    memory = MemoryModel.named("a40", hbm_bytes=60_000)
    plan = make_sharded_plan(specs, profile, memory, options, Ranks(2, batch_size=8))
    plan.save(tmp_path / "for-ranks")
    return str(tmp_path / "for-ranks"), plan.sharding


def test_which_rank_holds_what_is_shown(for_ranks, folders) -> None:
    folder, sharding = for_ranks
    shown = run(inspect, folder, "--format", "markdown").stdout
    assert all(table.told in shown for table in sharding.tables)
    told = json.loads(run(inspect, folder, "--json").stdout)["sharding"]
    assert [table["table"] for table in told["tables"]] == [t.table for t in sharding.tables]
    narrow = run(inspect, folder).stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(f"rank {shard.rank}" in narrow for t in sharding.tables for shard in t.shards)
    other = run(diff, folder, folders / "small", "--format", "markdown").stdout
    assert all(table.told in other for table in sharding.tables)
    assert "on no rank" in other


def test_equal_plans_end_with_0_and_different_ones_with_1(folders):
    same = run(diff, folders / "small", folders / "small")
    assert (same.exit_code, "the same plan" in same.stdout) == (0, True)
    result = CliRunner().invoke(diff, [str(folders / "small"), str(folders / "large"), "--json"])
    assert json.loads(result.stdout)["differs"] is True


@pytest.mark.parametrize("how", [(), ("--json",), ("--format", "markdown")])
def test_different_plans_end_with_1_in_every_form(folders, how):
    """A click command returns its exit code to the group that runs it."""
    result = diff.main(
        [str(folders / "small"), str(folders / "large"), *how], standalone_mode=False
    )
    assert result == 1


def test_what_moved_and_its_cost_are_shown_in_80_columns(folders):
    shown = run(diff, folders / "small", folders / "large").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "held-out bags, modelled:" in " ".join(shown.split())
    assert "hbm bytes" in shown
    assert "t_item" in shown
    assert "1 of 2 tables differ" in shown


def test_a_sharding_plan_from_a_function_is_inspected_and_compared(folders, module):
    document = json.loads(run(inspect, f"{module}:stock", "--json").stdout)
    assert document["kind"] == "torchrec"
    assert document["tables"][0]["tiers"]["hbm"]["bytes"] == 900 * 32 * 4
    assert run(inspect, f"{module}:stock").exit_code == 0
    assert run(inspect, f"{module}:stock", "--format", "markdown").exit_code == 0
    result = run(diff, f"{module}:stock", folders / "small")
    assert "only after: sparse.ebc.t_other" in result.stdout


def test_a_model_beside_the_sharding_plan_tells_the_types(module, tmp_path):
    pytest.importorskip("torchrec")
    (tmp_path / "user_sharding.py").write_text(
        SHARDING
        + """
def with_model():
    import torch, torchrec
    table = torchrec.EmbeddingBagConfig(name="t_item", embedding_dim=32, num_embeddings=900,
        feature_names=["item"], data_type=torchrec.modules.embedding_configs.DataType.FP16)
    ebc = torchrec.EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
    return stock(), torch.nn.ModuleDict({"sparse": torch.nn.ModuleDict({"ebc": ebc})})
"""
    )
    document = json.loads(run(inspect, f"{module}:with_model", "--json").stdout)
    assert document["tables"][0]["tiers"]["hbm"]["bytes"] == 900 * 32 * 2


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("nowhere", "no such folder or file"),
        ("no_module_of_this_name:stock", "no module no_module_of_this_name in the current folder"),
        ("user_sharding:missing", "has no missing; check the name"),
        ("user_sharding:nothing", "returns an int; return a ShardingPlan"),
        ("user_sharding:Plan.__name__", "names no function of a module; write user_sharding:Plan"),
    ],
)
def test_what_is_no_plan_is_one_line(module, plan, words):
    result = run(inspect, plan)
    assert result.exit_code != 0
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)


def test_plans_for_other_machines_are_told_apart_before_any_time(folders, tmp_path):
    plan = Plan.load(folders / "small")
    replace(plan, memory=replace(plan.memory, machine="another")).save(tmp_path / "other")
    for how in ((), ("--format", "markdown")):
        words = " ".join(run(diff, folders / "small", tmp_path / "other", *how).stdout.split())
        assert "the plans are for different machines" in words
        assert "times as" not in words
