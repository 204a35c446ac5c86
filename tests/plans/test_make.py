"""Make: a plan for every table of a model, checked against the profile before anything is done."""

import numpy as np
import pytest

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

QUICK = PlanOptions(methods=("grace",), size_limits=(3, 4))
H200 = MemoryModel.named("h200")


def test_every_table_of_the_model_is_in_the_plan_in_order(small_plan, spec_of):
    assert list(small_plan.tables) == [
        f"sparse.ebc.{name}" for name in ("t_item", "t_user", "t_new")
    ]
    assert small_plan.options == QUICK
    item, user, new = small_plan.tables.values()
    assert item.verdict == "use"
    assert user.predicted.cut == 0
    assert (new.verdict, new.reason) == ("leave stock", "the profile does not hold this table")
    assert new.spec == spec_of("t_new")
    assert new.predicted.ids == 0


def test_the_plan_remembers_its_profile(grouped, spec_of):
    profile = Profile.from_trace("t_item", grouped(), ("item",))
    assert make_plan([spec_of()], profile, H200, QUICK).profile_fingerprint == profile.fingerprint()


def test_tables_share_one_hbm(grouped, spec_of, two_memories):
    profile = Profile({f"t_{x}": TableProfile(grouped(seed=i), (x,)) for i, x in enumerate("abc")})
    specs = [spec_of(f"t_{x}") for x in "abc"]
    plan = make_plan(specs, profile, two_memories(150_000), QUICK)
    assert 0 < sum(table.placement.hbm.bytes for table in plan.tables.values()) <= 150_000


def test_a_profile_of_another_model_is_refused_by_table(grouped, spec_of):
    profile = Profile.from_trace("t_item", grouped(), ("item",))
    with pytest.raises(PlanMismatch, match=r"'t_item' is not in the model, which has t_user"):
        make_plan([spec_of("t_user")], profile, H200, QUICK)
    with pytest.raises(PlanMismatch, match=r"'t_item' has ids up to 399.*it has 399 rows"):
        make_plan([spec_of(num_rows=399)], profile, H200, QUICK)
    with pytest.raises(PlanMismatch, match=r"'t_item' was read by the features item.*by other"):
        make_plan([spec_of(features=("other",))], profile, H200, QUICK)


def test_two_tables_of_one_name_are_refused(spec_of):
    with pytest.raises(GraceError, match="same name"):
        make_plan([spec_of(), spec_of(module="other")], Profile({}), H200, QUICK)


def test_progress_is_told_table_by_table(grouped, spec_of):
    lines = []
    profile = Profile.from_trace("t_item", grouped(), ("item",))
    make_plan([spec_of(), spec_of("t_user")], profile, H200, QUICK, progress=lines.append)
    assert [line.split(":")[0] for line in lines] == [
        "table sparse.ebc.t_item",
        "table sparse.ebc.t_user",
        "placing 2 tables on h200",
    ]


def test_a_model_without_tables_has_an_empty_plan():
    assert dict(make_plan([], Profile({}), H200).tables) == {}


def test_real_baskets_get_a_plan_that_says_what_it_saves(trace_path, spec_of):
    with np.load(trace_path("ml100k")) as file:
        train = split_bags(Trace(file["indptr"], file["indices"])).train
    spec = spec_of(num_rows=train.num_items, dim=128)
    profile = Profile.from_trace("t_item", train, ("item",))
    (table,) = make_plan([spec], profile, H200, in_order=True).tables.values()
    assert (table.verdict, table.placement.originals) == ("use", "hbm")
    assert table.predicted.cut > 0.38
    assert table.predicted.extra_rows <= train.num_items
    assert 1.4 < table.predicted.time_ratio < 1 / (1 - table.predicted.cut)
