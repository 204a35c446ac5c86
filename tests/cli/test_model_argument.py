"""MODEL: what the function returns is taken for what it is, or refused in one line."""

import pytest
import torch
from click.testing import CliRunner

from grace_torchrec.cli.main import cli
from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.errors import GraceError

CODE = """
import torch
from click.testing import CliRunner
from torch import nn
model, dense, other = nn.Linear(2, 1), torch.zeros(3, 2), torch.zeros(3, 1)
def lists(): return model, [[dense, other]]
def tuples(): return model, ((dense, other), (dense, other))
def bare(): return model, [dense, dense]
def one(): return model, (dense, other)
def none(): return model, None
def empty(): return model, []
def asks(path): return model, [dense]
def fails(): return nn.Linear()
def number(): return 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "given_models.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("name", "sizes"), [("lists", [2]), ("tuples", [2, 2]), ("bare", [1, 1])])
def test_a_batch_is_the_arguments_of_the_model(name, sizes):
    batches = load_model(f"given_models:{name}").batches
    assert [len(batch) for batch in batches] == sizes
    assert all(isinstance(value, torch.Tensor) for batch in batches for value in batch)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("given_models:one", "no list of batches"),
        ("given_models:none", "no list of batches"),
        ("given_models:empty", "no example batch"),
        ("given_models:asks", "takes arguments"),
        ("given_models:other", "is no function"),
        ("given_models:number", "returns an int; return .model, example batches., both"),
    ],
)
def test_what_is_wrong_is_said(name, told):
    with pytest.raises(GraceError, match=told):
        load_model(name)


def test_an_error_of_the_users_own_code_is_not_dressed_up():
    with pytest.raises(TypeError, match="Linear"):
        load_model("given_models:fails")


@pytest.mark.parametrize(
    ("to_plan", "told"),
    [
        (True, r"write mine:make, .*, which returns \(model, example batches\)$"),
        (False, r"mine:make, .*, or one of dlrm, wide"),
    ],
)
def test_a_bare_module_is_answered_with_what_to_write(to_plan, told):
    with pytest.raises(
        GraceError, match=f"MODEL 'mine': names no function; {'' if to_plan else 'write '}{told}"
    ):
        load_model("mine", to_plan=to_plan)


@pytest.mark.parametrize("command", ["plan", "convert", "serve-bench"])
def test_bundled_models_have_nothing_to_plan(command):
    """They are plain torch; it is said before the model is made, and by help."""
    with pytest.raises(
        GraceError, match=r"'bst': is bundled .* schedule and simulate take it; here, write"
    ):
        load_model("bst", to_plan=True)
    told = CliRunner().invoke(cli, [command, "--help"]).output
    assert "package.module:function" in told
    assert "bst" not in told
