"""The published schema of plan.json: good plans pass, and it knows exactly the keys that are read."""

import copy
import json
from dataclasses import fields
from importlib import resources
from typing import get_args

import jsonschema
import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier, TierName, Uvm
from grace_sharding.placement import Placement, TierUse
from grace_sharding.shards import Shard, Sharding, TableShards
from grace_torchrec.plans.curve import CurvePoint
from grace_torchrec.plans.files import KEYS
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.options import METHOD_CODES, BadIds, Lookup, Objective, Rewriting
from grace_torchrec.plans.parse import TABLE_KEYS
from grace_torchrec.plans.plan import Plan, PlanOptions, Prediction, TableLookup, Verdict
from grace_torchrec.plans.table_spec import Dtype, Pooling, TableSpec
from grace_torchrec.plans.versions import SCHEMA
from grace_torchrec.sums.arrays import CODE_KINDS
from grace_torchrec.traces.profile import Profile, TableProfile

TEXT = resources.files("grace_torchrec.plans").joinpath("plan.schema.json").read_text("utf-8")
PUBLISHED = json.loads(TEXT)
PARTS = PUBLISHED["$defs"]


def errors(document):
    """What the schema says against a document."""
    validator = jsonschema.Draft202012Validator(PUBLISHED)
    return [error.message for error in validator.iter_errors(document)]


def saved(plan, path):
    """plan.json of a saved plan."""
    plan.save(path)
    return json.loads((path / "plan.json").read_text())


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["properties"]["schema"]["const"] == SCHEMA
    assert PUBLISHED["$id"].endswith(f":{SCHEMA}")
    assert PUBLISHED["title"].endswith(f" {SCHEMA}")


@pytest.mark.parametrize("method", [None, *METHOD_CODES])
@pytest.mark.parametrize("rewriting", ["in_line", "ahead"])
def test_plans_of_every_method_pass(
    small_plan, spec_of, grouped, two_memories, tmp_path, method, rewriting
):
    plan = small_plan
    if method == "set_merge" and rewriting == "in_line":
        return  # sets need bags that arrive rewritten
    if method is not None:
        profile = Profile({"t_item": TableProfile(grouped(), ("item",))})
        options = PlanOptions(methods=(method,), size_limits=(3,), rewriting=rewriting)
        plan = make_plan([spec_of(), spec_of("t_new")], profile, two_memories(10**6), options)
    assert errors(saved(plan, tmp_path / "plan")) == []


def test_a_plan_without_tables_passes(small_plan, tmp_path):
    assert errors(saved(Plan({}, small_plan.memory), tmp_path / "plan")) == []


def test_plans_for_ranks_pass(sharded_plan, tmp_path):
    document = saved(sharded_plan, tmp_path / "plan")
    assert document["sharding"]["tables"]
    assert errors(document) == []


def test_it_knows_the_keys_that_are_read_and_no_others():
    def keys(part):
        assert part["additionalProperties"] is False
        assert set(part["required"]) == set(part["properties"])
        return set(part["properties"])

    def names(kind):
        return {field.name for field in fields(kind)}

    assert keys(PUBLISHED) == KEYS
    assert keys(PARTS["table"]) == TABLE_KEYS
    assert keys(PARTS["sharding"]) == names(Sharding)
    assert keys(PARTS["table_shards"]) == names(TableShards)
    assert keys(PARTS["table_shards"]["properties"]["shards"]["items"]) == names(Shard)
    assert keys(PARTS["memory"]) == names(MemoryModel)
    assert keys(PARTS["memory"]["properties"]["tiers"]["items"]) == names(Tier)
    assert keys(PARTS["options"]) == names(PlanOptions)
    assert keys(PARTS["spec"]) == names(TableSpec)
    assert keys(PARTS["tier_use"]) == names(TierUse)
    assert keys(PARTS["predicted"]) == names(Prediction)
    assert keys(PARTS["table"]["properties"]["curve"]["items"]) == names(CurvePoint)
    assert keys(PARTS["placement"]) == {*names(Placement), "num_hot_items"} - {"hot_items"}


def test_it_knows_the_words_that_are_read_and_no_others():
    def words(part, name):
        return set(PARTS[part]["properties"][name]["enum"])

    assert words("table", "verdict") == set(get_args(Verdict))
    assert words("table", "lookup") == set(get_args(TableLookup))
    assert words("table", "code") == {*CODE_KINDS, None}
    assert words("options", "objective") == set(get_args(Objective))
    assert words("options", "lookup") == set(get_args(Lookup))
    assert words("options", "rewriting") == set(get_args(Rewriting))
    assert words("options", "bad_ids") == set(get_args(BadIds))
    assert words("memory", "uvm") == set(get_args(Uvm))
    assert words("spec", "dtype") == set(get_args(Dtype))
    assert words("spec", "pooling") == set(get_args(Pooling))
    assert set(PARTS["tier_name"]["enum"]) == set(get_args(TierName))
    assert set(PARTS["method"]["enum"]) == set(METHOD_CODES)


def leaves(value, path=()):
    """Every place in a document that holds no object and no list."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("plan", ["small_plan", "sharded_plan"])
def test_a_value_of_another_type_does_not_pass_anywhere(plan, request, tmp_path):
    document = saved(request.getfixturevalue(plan), tmp_path / "plan")
    tried = 0
    for path in leaves(document):
        changed = copy.deepcopy(document)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        for wrong in ({"x": 1}, [1], -3.5, "a\nb"):
            inner[path[-1]] = wrong
            assert errors(changed), (path, wrong)
            tried += 1
    assert tried > 400


def test_every_part_says_what_it_is_for():
    assert all(
        PARTS[name].get("description")
        for name in ("memory", "options", "spec", "placement", "predicted", "sharding")
    )
