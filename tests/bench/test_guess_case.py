"""guess: the regret is that of traces left out of the fit."""

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

from bench.cases.guess import command, judge
from bench.fit_guess import (
    Measurement,
    fit,
    load,
    measure,
    measure_folder,
    predicted,
    save,
    without,
)
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.guess import METHODS, Properties
from grace_torchrec.traces.synthetic import generate


def made(trace, recurrence, sets=0.3):
    cuts = {"grace": 0.1, "grace_floor": 0.12, "subsets": 0.2, "set_merge": sets}
    return Measurement(trace, True, Properties(10.0, 20.0, recurrence), 1.0, cuts)


def test_the_case_prints_regret_and_coefficients():
    result = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed["traces"] == 10
    assert set(printed["coefficients"]) == set(METHODS["ahead"])
    for allow in METHODS:
        assert 0 <= printed[allow]["regret"]["mean"] <= printed[allow]["regret"]["most"] < 0.05
        assert printed[allow]["error_of_expected_cut"]["mean"] < 0.06


def test_regret_is_what_the_guessed_method_lacks():
    # on two traces sets are best; on the one left out they are not, which nothing told before
    rows = [made("a", 0.5), made("b", 0.6), made("c", 0.7, sets=0.15)]
    found = judge(rows)
    assert found["ahead"]["regret"]["most"] == pytest.approx(0.05)
    assert found["in_line"]["regret"]["most"] == 0


def test_a_trace_left_out_has_no_influence():
    rows = load()
    changed = [row if row.trace != "retail" else made("retail", 0.1) for row in rows]
    assert fit(without(rows, "retail")) == fit(without(changed, "retail"))
    assert fit(rows) != fit(changed)


def test_measurements_are_kept_as_they_are(tmp_path):
    rows = list(measure("small", generate(300, 200, 1), True))
    assert [row.budget_share for row in rows] == [1.0, 0.5, 0.25]
    assert all(0 < cut < 0.5 for row in rows for cut in row.cuts.values())
    save(rows, tmp_path / "kept.json")
    assert load(tmp_path / "kept.json") == rows


def test_every_trace_of_a_folder_is_measured(tmp_path):
    trace = generate(300, 200, 1)
    for name in ("two", "one"):
        np.savez(tmp_path / f"{name}.npz", indptr=trace.offsets_B1, indices=trace.ids_L)
    rows = list(itertools.islice(measure_folder(tmp_path), 6))
    assert [row.trace for row in rows] == ["one"] * 3 + ["two"] * 3
    assert all(row.real for row in rows)


def test_too_few_traces_are_refused():
    with pytest.raises(GraceError, match="2 traces, give 3 or more"):
        judge([made("a", 0.5), made("b", 0.6)])


def test_predicted_cuts_lie_between_nothing_and_a_half():
    for row in load():
        assert all(0 < cut < 0.5 for cut in predicted(fit(load()), row).values())
