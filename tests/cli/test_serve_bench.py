"""What serve-bench is called with wrongly is said in one line, before anything is built."""

import pytest
from click.testing import CliRunner

from grace_torchrec.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--clients", "1,many"], "whole numbers, as 1,8,30"),
        (["--clients", "0"], "one or more each"),
        (["--open", "poisson"], "--open and --rate go together"),
        (["--rate", "10"], "--open and --rate go together"),
        (["dlrm", "--trace", "x.npz"], "--trace is for the model of histories"),
        (["nobody", "--rounds", "1"], "as a MODEL, write nobody:make"),
        (["dlrm"], "has no EmbeddingBagCollection to plan: schedule and simulate take it"),
        (["no:model", "--entrants", "stok"], "no entrant 'stok'; there are plain, "),  # the first
        (["no:model", "--entrants", "ours_recorded"], "needs a recorder; pass --recorder"),
    ],
)
def test_wrong_calls(arguments, says) -> None:
    result = CliRunner().invoke(cli, ["serve-bench", *arguments])
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)


def test_a_served_folder_needs_the_code_of_its_model(tmp_path) -> None:
    result = CliRunner().invoke(cli, ["serve-bench", str(tmp_path)])
    assert result.exit_code == 2
    assert "give --model" in result.output
