"""grouping_time: every method is timed in a process of its own, rivals where they are there."""

import json

import pytest
from click.testing import CliRunner

from bench.cases.grouping_time import FITS, command, faster_than_merci, measure, methods, run_once
from bench.methods import METHODS
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate


def test_each_named_method_gets_its_quantiles_and_its_peak():
    arguments = ["--generate", "300,100", "--method", "set_merge", "--rounds", "1", "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert set(figures) == {"set_merge", "faster_than_merci", "machine"}
    timed = figures["set_merge"]
    assert 0 < timed["min_s"] <= timed["q20"] <= timed["median_s"] <= timed["q80"]
    assert timed["peak_mb"] >= 0
    assert len(timed["samples"]) == 1


def test_a_factor_is_the_seconds_of_merci_over_those_of_the_method():
    timed = {"merci": {"median_s": 6.0}, "grace": {"median_s": 0.4}, "auto": {"median_s": 12.0}}
    assert faster_than_merci(timed) == {"grace": 15.0, "auto": 0.5}
    assert faster_than_merci({"grace": {"median_s": 2.0}}) == {}


def test_every_method_runs():
    split = split_bags(generate(300, 100, 1), 0)
    assert set(methods()) >= {*FITS, "auto"}
    assert {*FITS, "auto"} <= set(METHODS)
    for method in methods():
        run_once(method, split, 100, 0)


def test_a_measurement_is_of_the_train_bags_of_the_trace():
    seconds, peak = measure("grace", None, "300,100", 1.0, 0)
    assert seconds > 0 <= peak


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of"),
        (["--generate", "300,100", "--method", "lru"], "give one of grace, grace_floor"),
        (["--generate", "300,100", "--rounds", "0"], "range"),
    ],
)
def test_wrong_calls_exit_with_2_and_say_why(arguments, message):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.output
