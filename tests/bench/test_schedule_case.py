"""The case ``schedule`` prints what checks rely on."""

import json

import pytest
from click.testing import CliRunner

from bench.cases.schedule import WHAT, command

FIELDS = {
    "bound": {"median", "worst", "cells"},
    "events": {"events_per_op", "switches_per_op", "waits_over_minimum"},
    "memory": {
        "retire_us_per_tensor",
        "held_over_budget_bytes",
        "static_peak_ratio",
        "thresholds",
    },
    "table1": {"rows", "mean", "printed"},
    "fig3": {"rows", "rows_exact"},
}


@pytest.mark.parametrize("what", FIELDS)
def test_one_json_object_with_the_promised_fields(what):
    result = CliRunner().invoke(command, ["--what", what, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert FIELDS[what] <= set(found)


def test_every_figure_has_its_word():
    assert set(WHAT) == {
        "order", "bound", "events", "race", "overhead", "memory", "table1", "fig3", "fig6",
        "fig7",
    }  # fmt: skip


def test_the_thresholds_are_those_of_figure_8():
    result = CliRunner().invoke(command, ["--what", "memory", "--json"])
    found = json.loads(result.stdout.splitlines()[-1])
    assert [row["threshold_mb"] for row in found["thresholds"]] == [16, 32, 64, 128]
    assert found["held_over_budget_bytes"] <= found["one_tensor_bytes"]
