"""What if: more memory or a faster link never cost time, and the whole in HBM is one memory."""

import itertools

import pytest

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.what_if import BETAS, what_if
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


@pytest.fixture(scope="module")
def profile(grouped):
    single = Trace.from_bags([[b % 40] for b in range(400)], 400)
    return Profile(
        {
            "t_item": TableProfile(grouped(), ("item",)),
            "t_user": TableProfile(single, ("user",)),
        }
    )


@pytest.fixture(scope="module", params=["in_line", "ahead"])
def plan(request, profile, spec_of, two_memories):
    specs = [spec_of("t_item"), spec_of("t_user"), spec_of("t_new")]
    options = PlanOptions(size_limits=(4,), rewriting=request.param)
    return make_plan(specs, profile, two_memories(60_000), options)


def test_more_hbm_and_a_faster_link_never_cost_time(plan, profile):
    found = what_if(plan, profile)
    for row in found.cells:
        times = [cell.time_s for cell in row]
        assert times == sorted(times, reverse=True)
    for column in zip(*found.cells, strict=True):
        times = [cell.time_s for cell in column]
        assert times == sorted(times, reverse=True)


def test_without_hbm_all_time_is_the_link_and_beta_divides_it(plan, profile):
    found = what_if(plan, profile)
    assert found.hbm_bytes[0] == 0
    row = found.cells[0]
    assert all(cell.hbm_s == 0 for cell in row)
    work = [cell.host_s * beta for cell, beta in zip(row, found.betas, strict=True)]
    assert work == pytest.approx([work[0]] * len(work))


def test_the_machine_of_the_plan_is_in_the_grid(plan, profile):
    found = what_if(plan, profile)
    size, beta = found.here
    assert found.hbm_bytes[size] == 60_000
    assert found.betas[beta] == plan.memory.beta
    assert set(found.betas) == {*BETAS, plan.memory.beta}
    assert found.seen
    assert found.bags == 600


def test_other_bags_are_said_to_be_other_bags(plan, grouped):
    later = Profile({"t_item": TableProfile(grouped(seed=9), ("item",))})
    assert not what_if(plan, later).seen


def test_sizes_with_which_the_rows_do_not_fit_are_left_out(spec_of, two_memories, profile):
    # Host memory holds two of three tables, so HBM has to take one.
    specs, table = [spec_of("t_item"), spec_of("t_user"), spec_of("t_new")], 400 * 256
    plan = make_plan(
        specs, profile, two_memories(table + 300, 2 * table), PlanOptions(methods=("grace",))
    )
    found = what_if(plan, profile)
    assert found.hbm_bytes[found.here[0]] == table + 300
    assert found.left_out
    assert max(found.left_out) < table <= min(found.hbm_bytes)


@pytest.mark.parametrize("hbm_share", [1.3, 1.5, 2])
def test_a_plan_is_on_its_own_machine_whatever_the_bags(spec_of, two_memories, hbm_share):
    # Sums that nobody reads go to host memory, which holds one of the tables and little more: placed
    # anew by other bags, they do not fit.
    specs = [spec_of("t_old", num_rows=20), spec_of("t_item", num_rows=50)]
    bags = generate(50, 60, pooling=(1, 40), community_size=8)
    seen = Profile({"t_item": TableProfile(bags, ("item",))})
    table = 50 * 256
    memory = two_memories(int(hbm_share * table), table + 400)
    plan = make_plan(specs, seen, memory, PlanOptions(methods=("grace",), rewriting="ahead"))
    assert plan.tables["sparse.ebc.t_item"].num_sums > 0
    for profile in (seen, Profile({})):
        found = what_if(plan, profile)
        assert found.hbm_bytes[found.here[0]] == memory.hbm.num_bytes
        assert not {*found.left_out} & {*found.hbm_bytes}


def test_all_tables_stock_are_as_fast_as_stock_where_all_fits(profile, spec_of, two_memories):
    plan = make_plan([spec_of("t_user")], Profile({}), two_memories(0))
    assert plan.tables["sparse.ebc.t_user"].verdict == "leave stock"
    only = Profile({"t_user": profile.tables["t_user"]})
    for cell in itertools.chain(*what_if(plan, only).cells):
        assert cell.time_s <= cell.stock_s


def test_what_does_not_fit_is_refused(plan, grouped):
    with pytest.raises(PlanMismatch, match="t_odd"):
        what_if(plan, Profile({"t_odd": TableProfile(grouped(), ("odd",))}))
    one = Plan({}, MemoryModel("m", (Tier("host", 10**6, 1e9),)))
    with pytest.raises(GraceError, match="one memory"):
        what_if(one, Profile({}))
