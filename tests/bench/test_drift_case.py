"""bench drift: the old plan loses, the rebuilt one does not, and stock answers where nothing gains."""

import importlib.util
import json

import numpy as np
import pytest
from click.testing import CliRunner

from bench import drift_figure
from bench.cases.drift import BAR, by_marks, command
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace

drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def run(*arguments: str) -> dict:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@drawing
@pytest.mark.soak
def test_rebuilt_follows_fresh_and_stock_answers_without_structure(tmp_path) -> None:
    figures = run(
        *("--generate", "400,1000", "--periods", "3"),
        *("--method", "grace_floor", "--rewriting", "in_line", "--figure", str(tmp_path / "f.svg")),
    )
    rows = {row["period"]: row for row in figures["periods"]}
    assert rows["0"]["stale"] == rows["0"]["rebuilt"] > 0.15
    assert rows["2"]["stale"] < rows["2"]["rebuilt"] - 0.05
    assert figures["worst_below_fresh"] <= BAR
    assert figures["fell_back"] == ["vanished"]
    assert rows["vanished"]["verdict_before"] == "worse than none"
    assert rows["back"]["outcome"] == "flipped"
    assert {row["how"] for row in figures["sampling"]} == {"reservoir", "share"}
    drawn = (tmp_path / "f.svg").read_bytes()
    drift_figure.draw(figures, tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_bytes() == drawn


@pytest.mark.soak
def test_rebuilt_is_near_fresh_on_check_ins_in_time(trace_path) -> None:
    figures = run("--trace", str(trace_path("gowalla_poi")))
    assert figures["worst_below_fresh"] <= BAR


def test_a_trace_is_cut_by_its_marks_in_order() -> None:
    marks = np.array([0, 0, 1, 2, 0, 1] * 6, np.uint8)
    trace = Trace(np.arange(0, 37, 3), np.arange(36) % 7, 7, split_L=marks)
    parts = by_marks(trace, 0)
    assert [part.name for part in parts] == ["mark 0", "mark 1", "mark 2"]
    ids = [sorted([*part.live.ids_L, *part.test.ids_L]) for part in parts]
    assert ids == [sorted(trace.ids_L[marks == mark]) for mark in (0, 1, 2)]
    with pytest.raises(GraceError, match="no marks"):
        by_marks(Trace.from_bags([[1]]), 0)


def test_wrong_calls_are_refused() -> None:
    for arguments in ([], ["--generate", "5"], ["--generate", "5,5", "--trace", "x.npz"]):
        assert CliRunner().invoke(command, arguments).exit_code == 2
