"""``grace-torchrec report``: a page, and the same plan for TensorBoard."""

import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.cli.main import main
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate


@pytest.fixture(scope="module")
def made():
    specs = [TableSpec("m", "t_item", 900, 32, "fp32", "sum", ("item",), False)]
    profile = Profile({"t_item": TableProfile(generate(900, 800, seed=3), ("item",))})
    return make_plan(specs, profile, MemoryModel.named("a40"), PlanOptions(methods=("subsets",)))


@pytest.fixture
def plan(made, tmp_path):
    made.save(tmp_path / "plan")
    return made


def report(folder, *more):
    """Run the command on the folder's plan; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder / "plan"), "-o", str(folder / "page.html"), *map(str, more)])
    return ended.value.code


def test_a_plan_is_written_for_tensorboard_beside_the_page(plan, tmp_path, capsys):
    assert report(tmp_path, "--tensorboard", tmp_path / "board", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tensorboard"] == str(tmp_path / "board")
    assert (tmp_path / "page.html").is_file()
    events = EventAccumulator(printed["tensorboard"]).Reload()
    (saved,) = events.Scalars("grace/m.t_item/saved_reads")
    assert saved.value == pytest.approx(plan.tables["m.t_item"].predicted.cut)


def test_without_the_option_there_is_a_page_only(plan, tmp_path, capsys):
    assert report(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tensorboard"] is None
    assert {path.name for path in tmp_path.iterdir()} == {"plan", "page.html"}


def test_bags_that_the_plan_was_not_made_from_are_told_of(plan, tmp_path, capsys):
    for seed, bags in (
        (3, "the bags that the plan was made from"),
        (4, "bags that the plan has not seen"),
    ):
        profile = Profile({"t_item": TableProfile(generate(900, 800, seed=seed), ("item",))})
        profile.save(tmp_path / "p")
        assert report(tmp_path, "--profile", tmp_path / "p") == 0
        told = f"{tmp_path / 'p'}: not the bags that the plan was made from"
        assert (told in capsys.readouterr().err) == (seed == 4)
        assert bags in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "tables", [{}, {"t_item": TableProfile(generate(900, 800).take(np.zeros(0, int)), ("item",))}]
)
def test_a_profile_without_bags_is_refused(plan, tmp_path, capsys, tables):
    Profile(tables).save(tmp_path / "p")
    assert report(tmp_path, "--profile", tmp_path / "p") == 2
    assert "holds no bags" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
