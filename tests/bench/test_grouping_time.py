"""grouping_time: every method is timed in a process of its own, rivals where they are there."""

import json

import pytest
from click.testing import CliRunner

from bench.cases.grouping_time import (
    CHOSEN,
    FITS,
    command,
    faster_than_merci,
    measure,
    methods,
    run_once,
)
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


def test_a_factor_is_the_seconds_of_merci_over_those_of_the_method_in_the_same_round():
    seconds = {"merci": [6.0, 9.0, 6.0], "grace": [0.4, 0.5, 0.6], "auto": [12.0, 9.0, 12.0]}
    timed = {name: {"samples": values} for name, values in seconds.items()}
    found = faster_than_merci(timed)
    assert (found["grace"], found["auto"]) == (15.0, 0.5)
    assert found["grace_spread"] == {"q20": 12.0, "q80": 16.8}
    assert faster_than_merci({"grace": {"samples": [2.0]}}) == {}


def test_what_is_published_is_timed_with_its_choice(monkeypatch):
    split = split_bags(generate(300, 100, 1), 0)
    fitted = []
    monkeypatch.setitem(METHODS, "grace", lambda *given: fitted.append(given))
    run_once("grace", split, 100, 0)
    assert fitted == []
    run_once("grace_chosen", split, 100, 0)
    assert fitted == [(split, 100, 0)]


def test_every_method_runs():
    split = split_bags(generate(300, 100, 1), 0)
    assert set(methods()) >= {*FITS, *CHOSEN, "auto"}
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
