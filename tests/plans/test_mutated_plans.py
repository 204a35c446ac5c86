"""Mutated plan folders: each loads equal or fails with one line, and none does anything else.

The mutants are made and loaded in a process of their own with little memory to take, so that a
crash, a hang or an allocation that a file talked us into ends that process and not the tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.versions import OLDEST, SCHEMA
from grace_torchrec.sums.arrays import CODE_KINDS, code_kind
from grace_torchrec.traces.profile import Profile, TableProfile

HERE = Path(__file__).parent
METHODS = {"clusters": "grace", "subsets": "subsets", "sets": "set_merge"}


@pytest.fixture(scope="module")
def goods(small_plan, sharded_plan, spec_of, grouped, two_memories, tmp_path_factory):
    """Good plan folders: every code, hot rows, a stock table, ranks, and one of each older schema."""
    root = tmp_path_factory.mktemp("good")
    profile = Profile({"t_item": TableProfile(grouped(), ("item",))})
    for kind, method in METHODS.items():
        options = PlanOptions(methods=(method,), size_limits=(3,), rewriting="ahead")
        plan = make_plan([spec_of()], profile, two_memories(10**6), options)
        assert code_kind(plan.tables["sparse.ebc.t_item"].sums) == kind
        plan.save(root / kind)
    small_plan.save(root / "mixed")
    sharded_plan.save(root / "sharded")
    older = [HERE / "data" / f"version_{schema}" for schema in range(OLDEST, SCHEMA)]
    return [*(root / name for name in (*CODE_KINDS, "mixed", "sharded")), *older]


def run(goods, count, seed, scratch):
    """Load mutants; return how many ended in which way."""
    script = [sys.executable, str(HERE / "load_mutants.py"), str(scratch), str(count), str(seed)]
    done = subprocess.run([*script, *map(str, goods)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert sum(found.values()) == count
    return found


def test_500_mutants_load_equal_or_fail_with_one_line(goods, tmp_path):
    found = run(goods, 500, 0, tmp_path)
    refused = sum(number for how, number in found.items() if how.endswith("refused"))
    assert refused > 350
    assert all(any(how.startswith(kind) for how in found) for kind in ("bytes", "files", "header"))


@pytest.mark.soak
def test_10_000_mutants_load_equal_or_fail_with_one_line(goods, tmp_path):
    run(goods, 10_000, 1, tmp_path)


def test_the_good_folders_load(goods):
    for good in goods:
        assert Plan.load(good).tables
