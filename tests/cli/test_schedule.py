"""``grace-torchrec schedule`` and ``simulate``: models by name or function, files, exit codes."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.schedule import schedule
from grace_torchrec.cli.simulate import simulate_command
from grace_torchrec.errors import GraceError

COSTS = Path(__file__).resolve().parents[2] / "bench" / "data" / "costs"


def run(command, *args):
    return CliRunner().invoke(command, [str(arg) for arg in args], standalone_mode=False)


def test_a_bundled_model_is_scheduled_proven_and_drawn(tmp_path):
    trace, svg, costs = tmp_path / "t.json", tmp_path / "t.svg", tmp_path / "c.json"
    result = run(
        schedule, "bst", "--json", "--prove", "--trace", trace, "--svg", svg, "--save-stats", costs
    )
    assert result.exception is None, result.output
    found = json.loads(result.stdout)
    assert found["scheduled"]
    assert found["races"] == []
    assert found["bound_us"] <= found["makespan_us"] < found["single_stream_us"]
    assert set(found["stream_of"].values()) == set(range(found["streams"]))
    assert json.loads(trace.read_text())["traceEvents"]
    assert svg.read_text().startswith("<svg")
    assert "predicted" in svg.read_text()
    assert {"makespan_us", "bound_us", "single_stream_us"} == set(found["predicted"])
    timed = found["costs"]["timed"]
    assert 0 < timed["least_us"] <= timed["q20_us"] <= timed["median_us"] <= timed["q80_us"]
    assert timed["rounds"] > 1
    assert timed["cores"] == os.cpu_count()
    again = json.loads(run(schedule, "bst", "--stats", costs, "--json").stdout)
    assert again["costs"] == found["costs"]  # the file says how they were measured
    assert again["makespan_us"] == found["makespan_us"]


def test_the_text_is_for_people():
    result = run(schedule, "bst", "--streams", "2")
    assert "race check         0 races in 11 programs" in result.output
    assert "of the bound" in result.output
    assert "makespan           predicted" in result.output
    assert "load before" in result.output


def test_one_stream_is_no_failure():
    result = run(schedule, "bst", "--streams", "1", "--prove", "--json")
    assert (result.return_value, json.loads(result.stdout)["scheduled"]) == (0, False)


MODULE = """
import torch
from torch import nn

class Two(nn.Module):
    def forward(self, x):
        return torch.sin(x) + torch.cos(x)

class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def two():
    return Two(), [torch.ones(4)]

def depends():
    return Depends(), [(torch.ones(4),)]

def wrong():
    return Two()

def none():
    return Two(), []
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_small_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_small_models"


def test_a_function_gives_model_and_batches(module):
    found = json.loads(run(schedule, f"{module}:two", "--json").stdout)
    assert found["operators"] == 3


def test_a_model_that_cannot_be_traced_says_where(module):
    found = json.loads(run(schedule, f"{module}:depends", "--json").stdout)
    assert not found["scheduled"]
    assert "my_small_models.py:11" in found["reason"]


@pytest.mark.parametrize("option", ["--svg", "--trace", "--save-stats"])
def test_a_file_of_no_schedule_is_asked_for_in_vain(module, tmp_path, option):
    result = run(schedule, f"{module}:depends", "--json", option, tmp_path / "file")
    assert not json.loads(result.stdout)["scheduled"]
    assert isinstance(result.exception, GraceError)  # exit code 2, one line
    assert f"{tmp_path / 'file'}: not written, as there is no schedule: " in str(result.exception)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dlrn", "or one of dlrm, wide_deep, din, bst"),
        ("no_such_module:f", "no module no_such_module in the current folder"),
        ("my_small_models:nothing", "has no nothing; check the name"),
        ("my_small_models:wrong", "return .model, example batches., both of them"),
        ("my_small_models:none", "returns no example batch"),
    ],
)
def test_wrong_models_are_refused(module, name, what):
    with pytest.raises(GraceError, match=what):
        load_model(name)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (schedule, ("bst", "--streams", "0")),
        (schedule, ("bst", "--stats", "no-such-file.json")),
        (simulate_command, ("bst", "--clients", "x")),
        (simulate_command, ("bst", "--clients", "0")),
        (simulate_command, ("bst", "--open", "pulse", "--rate", "0")),
        (simulate_command, ("bst", "--calibration", "none")),
        (simulate_command, ("bst", "--rate", "400")),
    ],
)
def test_wrong_calls_are_refused(command, args):
    assert run(command, *args).exception is not None


def test_simulate_prints_a_cell_for_each_load_and_policy():
    result = run(
        simulate_command, "bst", "--stats", COSTS / "bst_a30.json", "--clients", "1,8",
        "--queries", "3", "--json",
    )  # fmt: skip
    found = json.loads(result.stdout)
    assert set(found["mean_us"]) == {"1", "8"}
    policies = {"TSSS", "TSMS", "MSSS", "StreamRec", "Opara", "RecOS"}
    assert all(set(cell) == policies for cell in found["mean_us"].values())
    assert "no evidence" in found["not_evidence"]


def test_an_open_loop_has_a_tail():
    result = run(
        simulate_command, "bst", "--stats", COSTS / "bst_a30.json", "--open", "pulse",
        "--rate", "400", "--clients", "10", "--queries", "10",
    )  # fmt: skip
    assert "99th percentile, us" in result.output
    assert "pulse 400/s" in result.output
