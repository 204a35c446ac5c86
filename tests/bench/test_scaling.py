"""scaling: each size is measured by itself, slopes are exponents, the figure is the table drawn."""

import importlib.util
import json

import pytest
from click.testing import CliRunner

from bench import scaling_figure
from bench.cases import scaling
from bench.cases.scaling import command, slopes, tenfold, why_no_slopes
from grace_torchrec.errors import GraceError

ROW = {"items": 10_000, "users": 10_000, "ids": 100, "generate_s": 1.0, "count_s": 2.0, "fit_s": 0.5, "peak_mb": 300}  # fmt: skip
drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture(autouse=True)
def small_repeated_trace(monkeypatch):
    monkeypatch.setattr(scaling, "REPEATED", (500, 300))


def test_a_size_gets_its_seconds_and_its_peak():
    arguments = ["--size", "300,100", "--size", "600,200", "--method", "subsets", "--rounds", "1"]
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert [row["items"] for row in figures["sizes"]] == [300, 600]
    for row in figures["sizes"]:
        assert row["ids"] >= 30 * row["users"]
        assert row["peak_mb"] > 0
        assert min(row["generate_s"], row["count_s"], row["fit_s"]) >= 0
    assert set(figures["slopes"]) == {"generate_s", "count_s", "fit_s", "peak_mb"}


def test_a_slope_is_the_exponent_in_the_ids():
    rows = [
        {**ROW, "ids": 100 * 10**k, "count_s": 2.0 * 10**k, "fit_s": 0.5 * 100**k} for k in range(3)
    ]
    found = slopes(rows)
    assert (found["count_s"], found["fit_s"], found["peak_mb"]) == (1, 2, 0)
    assert why_no_slopes(rows) is None


@pytest.mark.parametrize("ids", [[100], [100, 100], [100, 101], [149, 100, 120]])
def test_sizes_of_about_as_many_ids_have_no_slope_and_say_so(ids):
    rows = [{**ROW, "ids": each, "count_s": 1.0 + n} for n, each in enumerate(ids)]
    assert set(slopes(rows).values()) == {None}
    assert "give more users" in why_no_slopes(rows)


def test_ten_times_the_bags_are_the_same_pairs():
    found = tenfold(1, 0)
    assert found["pairs"] == found["pairs_of_ten_times_the_bags"] > 0
    assert set(found) >= {"grace", "grace_floor"}


@pytest.mark.parametrize("size", ["3", "3,4,5", "3,x", "-3,4"])
def test_a_size_that_is_no_pair_of_numbers_is_refused(size):
    result = CliRunner().invoke(command, ["--size", size])
    assert result.exit_code == 2
    assert "two whole numbers expected" in result.output


@drawing
def test_the_figure_holds_the_steps_and_is_the_same_every_time(tmp_path):
    rows = [ROW, {**ROW, "items": 2_345_346, "ids": 1000, "count_s": 30.0}]
    result = {"method": "set_merge", "sizes": rows, "slopes": slopes(rows)}
    scaling_figure.check(tmp_path / "a.svg")
    for name in "ab":
        scaling_figure.draw(result, tmp_path / f"{name}.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert all(word in drawn for word in ("count pairs (slope", "2.3M items", "peak memory"))


def test_a_figure_that_cannot_be_drawn_is_refused_before_measuring(tmp_path, monkeypatch):
    if importlib.util.find_spec("matplotlib") is not None:
        with pytest.raises(GraceError, match=r"\.svg file in a folder"):
            scaling_figure.check(tmp_path / "a.png")
        with pytest.raises(GraceError, match=r"\.svg file in a folder"):
            scaling_figure.check(tmp_path / "none" / "a.svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GraceError, match="pip install matplotlib"):
        scaling_figure.check(tmp_path / "a.svg")
