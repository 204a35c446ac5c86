"""Components: what TorchX accepts, what a job runs, and jobs that really run."""

import inspect
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grace_torchrec as grace
from grace_torchrec.launch import components, submit

NAMES = ("convert", "plan", "profile", "serve_bench", "train")
MODEL = """
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = EmbeddingBagConfig(400, 8, "t_history", feature_names=["history"])
        self.bags = EmbeddingBagCollection(tables=[config])

    def forward(self, features):
        return self.bags(features).values().sum(1)

def small():
    batch = KeyedJaggedTensor(["history"], torch.arange(20), torch.tensor([12, 8]))
    return Model(), [batch]
"""


@pytest.mark.parametrize("name", NAMES)
def test_torchx_takes_the_component_and_has_a_word_for_each_argument(name):
    from torchx.components.component_test_base import ComponentTestCase
    from torchx.specs.file_linter import get_fn_docstring

    case = ComponentTestCase()
    case.setUp()
    try:
        case.validate(components, name)
    finally:
        case.tearDown()
    component = getattr(components, name)
    _, told = get_fn_docstring(component)
    assert {arg for arg, text in told.items() if text.strip() in ("", "(required)")} == set()
    assert told.keys() == inspect.signature(component).parameters.keys()


def test_the_module_holds_components_and_nothing_else():
    found = [name for name, _ in inspect.getmembers(components, inspect.isfunction)]
    assert tuple(found) == NAMES


def test_a_job_runs_the_sub_command_with_the_options_after_the_dashes(folder):
    from torchx.specs.builders import materialize_appdef

    args = "--model m:f --profile p --memory h200 --gpu 1 --env A=1 -- --budget 0.5 --json"
    (role,) = materialize_appdef(components.plan, shlex.split(args)).roles
    assert role.entrypoint == "python"
    wanted = "-m grace_torchrec plan m:f --profile p --memory h200 --budget 0.5 --json"
    assert role.args == shlex.split(wanted)
    assert role.env == {"A": "1"}
    assert role.resource.gpu == 1


def test_a_served_folder_is_measured_with_the_model_it_came_from(folder):
    (role,) = components.serve_bench("--clients", "1", served="served", model="m:f").roles
    wanted = "-m grace_torchrec serve-bench served --model m:f --clients 1"
    assert role.args == shlex.split(wanted)


def test_training_runs_under_torchrun_on_every_process(folder):
    app = components.train("--epochs", "2", script="train.py", j="2x4", env={"A": "1"})
    (role,) = app.roles
    command = " ".join(role.args)
    assert "torchrun" in command
    assert "--nnodes 2 --nproc_per_node 4" in command
    assert command.endswith("train.py --epochs 2")
    assert (role.num_replicas, role.env["A"]) == (2, "1")


def test_without_torchx_one_line_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchx", None)
    for name in [name for name in sys.modules if name.startswith("torchx.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(grace.NotSupported, match=r"pip install 'grace-torchrec\[launch\]'"):
        components.profile(trace="t.npz", out="p")
    with pytest.raises(grace.NotSupported, match=r"pip install 'grace-torchrec\[launch\]'"):
        submit.dry_run(None, "slurm")


def write_trace(path):
    """300 bags of ten items that are always asked for together."""
    groups = np.random.default_rng(0).integers(40, size=(300, 1)) * 10
    np.savez(path, indptr=np.arange(301) * 10, indices=(groups + np.arange(10)).ravel())


def torchx(*args):
    """Run the command as a user does."""
    command = [str(Path(sys.executable).parent / "torchx"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_profile_and_a_plan_are_made_by_jobs_that_torchx_finds_by_name(folder):
    """``torchx run grace.profile`` as a user types it, then ``plan`` through the Python API."""
    write_trace(folder / "trace.npz")
    (folder / "models.py").write_text(MODEL)
    profile = ("grace.profile", "--trace", "trace.npz", "--out", "profile")
    done = torchx("run", "-s", "local_cwd", *profile, "--", "--feature", "history")
    assert done.returncode == 0, done.stderr
    recorded = grace.Profile.load("profile")

    app = components.plan(model="models:small", profile="profile", memory="a40")
    assert app.metadata == {"profile_fingerprint": recorded.fingerprint()}
    assert submit.run(app, "local_cwd") == "SUCCEEDED"
    assert grace.Plan.load("plan").profile_fingerprint == recorded.fingerprint()


def test_a_job_that_fails_is_told_as_failed(folder):
    (folder / "trace.npz").write_text("no trace")
    app = components.profile(trace="trace.npz", out="profile")
    assert submit.run(app, "local_cwd") == "FAILED"
    assert not (folder / "profile").exists()


def test_components_of_torchx_itself_stay_in_reach(folder):
    listed = torchx("builtins").stdout
    for name in ("dist.ddp", "utils.echo", *(f"grace.{name}" for name in NAMES)):
        assert f" {name}\n" in listed
    assert listed.count(" grace.") == len(NAMES)
