"""``grace-torchrec plan``: a model, a profile and a machine make a plan folder."""

import json
import sys

import pytest
from click.testing import CliRunner

from grace_sharding.memory_files import save_memory
from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_torchrec.cli.plan import plan
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import Plan
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.synthetic import generate

MODEL = """
import torch
from torchrec import EmbeddingBagConfig, EmbeddingBagCollection

def small():
    table = EmbeddingBagConfig(
        name="t_item", embedding_dim=64, num_embeddings=600, feature_names=["item"]
    )
    return torch.nn.Sequential(EmbeddingBagCollection(tables=[table])), [()]

def weighted():
    tables = [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=64, num_embeddings=600, feature_names=[name])
        for name in ("item", "user")
    ]
    return torch.nn.Sequential(EmbeddingBagCollection(tables=tables, is_weighted=True)), [()]
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model of the user, in a module beside him."""
    (tmp_path / "user_model_to_plan.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_model_to_plan", raising=False)
    return "user_model_to_plan:small"


@pytest.fixture
def profile(tmp_path):
    """A profile of its table."""
    Profile({"t_item": TableProfile(generate(600, 500, seed=1), ("item",))}).save(tmp_path / "p")
    return tmp_path / "p"


def run(*args):
    return CliRunner().invoke(plan, [str(arg) for arg in args])


def test_a_measured_machine_may_be_planned_for(model, profile, tmp_path):
    tiers = (Tier("hbm", 120_000, 1e12), Tier("host", 10**9, 1e11))
    save_memory(MemoryModel("measured here", tiers), tmp_path / "m.json")
    out = tmp_path / "plan"
    result = run(model, "--profile", profile, "--memory", tmp_path / "m.json", "-o", out, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    saved = Plan.load(out)
    assert document["machine"] == saved.memory.machine == "measured here"
    assert saved.profile_fingerprint == Profile.load(profile).fingerprint()
    assert [table["verdict"] for table in document["tables"]] == ["use"]


def test_people_read_what_was_decided_and_where_it_is(model, profile, tmp_path):
    result = run(model, "--profile", profile, "--memory", "h200", "-o", tmp_path / "plan")
    assert result.stdout.startswith("Plan(1 tables: 1 ")
    assert f"grace-torchrec inspect {tmp_path / 'plan'} shows it" in result.stdout


def test_a_profile_of_other_tables_and_an_unknown_machine_write_nothing(model, tmp_path):
    other = Profile({"t_user": TableProfile(generate(600, 500, seed=1), ("user",))})
    other.save(tmp_path / "q")
    out = tmp_path / "plan"
    for memory, said in (("h200", "'t_user' is not in the model"), ("abacus", "no known machine")):
        result = run(model, "--profile", tmp_path / "q", "--memory", memory, "-o", out)
        assert isinstance(result.exception, GraceError)
        assert said in str(result.exception)
    assert not out.exists()


def test_what_the_profile_lacks_is_told_beside_the_result(model, profile, tmp_path):
    args = ("--profile", profile, "--memory", "h200", "-o", tmp_path / "plan", "--json")
    result = run(model.replace("small", "weighted"), *args)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tables"]
    user, item = result.stderr.splitlines()
    assert user.startswith("warning: left stock: 0.t_user: the profile does not hold this table")
    assert item.startswith("warning: left stock: 0.t_item: its bags were recorded without weights")
    assert run(model, *args).stderr == ""
