"""Plan files: what is saved comes back equal, and only a plan that fits the model is used."""

import json
from dataclasses import replace

import numpy as np
import pytest

from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.files import check_plan_fits, plan_fingerprint
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.traces.profile import Profile, TableProfile

KEY = "sparse.ebc.t_item"


def test_a_saved_plan_comes_back_equal(small_plan, tmp_path):
    small_plan.save(tmp_path / "plan")
    back = Plan.load(tmp_path / "plan")
    assert list(back.tables) == list(small_plan.tables)
    assert (back.memory, back.options) == (small_plan.memory, small_plan.options)
    assert back.profile_fingerprint == small_plan.profile_fingerprint
    for key, table in small_plan.tables.items():
        again = back.tables[key]
        for name in ("spec", "verdict", "reason", "method", "lookup", "lookup_reason", "predicted"):
            assert getattr(again, name) == getattr(table, name)
        for name in ("originals", "num_hbm_sums", "metadata", "hbm", "host"):
            assert getattr(again.placement, name) == getattr(table.placement, name)
        assert np.array_equal(again.placement.hot_items, table.placement.hot_items)
        assert (again.sums is None) == (table.sums is None)
        if table.sums is not None:
            assert np.array_equal(again.sums.set_indptr_R1, table.sums.set_indptr_R1)
            assert np.array_equal(again.sums.set_items_S, table.sums.set_items_S)
            assert np.array_equal(again.sums.code.item_code_N, table.sums.code.item_code_N)
            assert again.sums.code.item_code_N.dtype == table.sums.code.item_code_N.dtype
    assert plan_fingerprint(back) == plan_fingerprint(small_plan)


def test_a_plan_for_rewritten_bags_comes_back_equal(spec_of, grouped, two_memories, tmp_path):
    profile = Profile({"t_item": TableProfile(grouped(), ("item",))})
    options = PlanOptions(size_limits=(3, 4), rewriting="ahead")
    plan = make_plan([spec_of()], profile, two_memories(30_000), options)
    assert plan.tables[KEY].lookup == "ahead"
    plan.save(tmp_path / "plan")
    back = Plan.load(tmp_path / "plan")
    assert back.options == options
    assert back.tables[KEY].lookup == "ahead"
    assert plan_fingerprint(back) == plan_fingerprint(plan)


def test_a_document_says_what_made_it_and_for_what(small_plan, tmp_path):
    small_plan.save(tmp_path / "plan")
    document = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert document["schema"] == 1
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
