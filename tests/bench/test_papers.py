"""The scoreboard: every printed figure has an answer, and the page says what the files say."""

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench.cases.papers import command
from bench.run import cli
from bench.scoreboard.measuring import (
    Result,
    load_results,
    measure,
    result_of,
    run,
    save_results,
    spread_at,
    value_at,
    wanted,
)
from bench.scoreboard.page import joined, markdown, shown
from bench.scoreboard.rows import MEASURED, PAPERS, PrintedRow, load_rows
from grace_torchrec.cli.main import cli as product
from grace_torchrec.errors import GraceError

ROOT = Path(__file__).parents[2]
ROWS = load_rows()
PRINTS = (
    """python -c "import json; print('noise'); print(json.dumps({'a': {'b': [6, 8]}}))" """.strip()
)


def row(**changed):
    given = {
        "id": "one", "paper": "GRACE", "where": "Table", "what": "cut", "printed": "40",
        "unit": "%", "how": "measured", "reason": "exact", "command": PRINTS, "values": {"": "a.b.0"},
    }  # fmt: skip
    return PrintedRow(**{**given, **changed})


def test_no_row_lacks_both_a_value_and_a_reason():
    found = joined(ROWS, load_results())
    assert len(found) >= 40
    assert {one["paper"] for one in found} == set(PAPERS)
    assert [one["id"] for one in found if one["ours"] is None and not one["reason"]] == []


def test_every_row_that_a_command_without_a_gpu_gives_is_measured():
    missing = [
        one["id"]
        for one in joined(ROWS, load_results())
        if one["how"] in MEASURED and one["ours"] is None
    ]
    assert missing == []


def test_the_page_is_what_the_command_writes(tmp_path):
    done = CliRunner().invoke(command, ["--write", str(tmp_path / "papers.md")])
    assert done.exit_code == 0, done.output
    assert (ROOT / "docs" / "papers.md").read_bytes() == (tmp_path / "papers.md").read_bytes(), (
        "docs/papers.md is old: python -m bench papers --write docs/papers.md"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["papers.md"]


def test_results_are_those_of_rows_and_no_others():
    read = {}
    for one in ROWS:
        for name, paths in one.paths().items():
            read.setdefault(name, set()).update(paths)
    assert {name: set(result.values) for name, result in load_results().items()} == read


@pytest.mark.parametrize("line", sorted({one.command for one in ROWS if one.command}))
def test_every_command_parses(line):
    words = shlex.split(line)
    if words[:3] == ["python", "-m", "bench"]:
        case = cli.get_command(None, words[3])
        assert case is not None
        case.make_context(words[3], words[4:])
        return
    if words[0] == "grace-torchrec":
        found = product.get_command(click.Context(product), words[1])
        found.make_context(words[1], words[2:])
        return
    text = (ROOT / words[1]).read_text(encoding="utf-8")
    assert all(f'"{word}"' in text for word in words if word.startswith("--"))


def test_an_id_that_is_taken_and_rows_that_say_nothing_are_refused(tmp_path):
    file = tmp_path / "papers.toml"
    text = "\n".join(
        f"{name} = {json.dumps(value)}"
        for name, value in vars(row()).items()
        if name not in ("values", "over", "over_command")
    )
    entry = f'[[row]]\n{text}\nvalue = "a.b.0"\n'
    file.write_text(entry, encoding="utf-8")
    assert [one.values for one in load_rows(file)] == [{"": "a.b.0"}]
    file.write_text(entry + entry, encoding="utf-8")
    with pytest.raises(GraceError, match="twice"):
        load_rows(file)
    file.write_text(f"{entry}ours = 40\n", encoding="utf-8")
    with pytest.raises(GraceError, match="ours"):
        load_rows(file)
    for changed in (
        {"reason": ""},
        {"how": "guessed"},
        {"paper": "X"},
        {"values": {}},
        {"command": ""},
    ):
        with pytest.raises(GraceError):
            row(**changed)
    with pytest.raises(GraceError, match="neither"):
        row(how="needs_gpu")


def test_ours_is_a_value_a_ratio_or_several():
    found = {PRINTS: {"a": 6.0, "b": 8.0, "c": 4.0}, "other": {"c": 2.0}}
    assert row(values={"": "a"}, times=100.0).ours(found) == 600
    assert row(values={"": "b"}, over="c", times=100.0, less=100.0).ours(found) == 100
    assert row(values={"x": "a", "y": "b"}, over="c").ours(found) == {"x": 1.5, "y": 2.0}
    assert row(values={"": "b"}, over="c", over_command="other").ours(found) == 4
    assert row(values={"": "a"}, over="none").ours(found) is None
    assert row(values={"": "a"}, over="c", over_command="third").ours(found) is None


def test_values_are_taken_from_what_the_command_prints_and_kept(tmp_path):
    rows, file = [row(), row(id="two", values={"": "a.b.1"})], tmp_path / "papers.json"
    save_results({"of no row": Result("2026-01-01", values={"a": 1.0})}, file)
    assert wanted(rows, {}, again=False) == [PRINTS]
    measure(rows, [PRINTS], None, path=file)
    kept = load_results(file)
    assert list(kept) == [PRINTS]
    assert kept[PRINTS].values == {"a.b.0": 6.0, "a.b.1": 8.0}
    assert [one["ours"] for one in joined(rows, kept)] == [6.0, 8.0]
    assert [path.name for path in tmp_path.iterdir()] == ["papers.json"]
    assert wanted(rows, kept, again=False) == []
    assert wanted(rows, kept, again=True) == [PRINTS]
    assert wanted([row(values={"": "a.b.2"})], kept, again=False) == [PRINTS]


def test_a_command_that_fails_changes_nothing(tmp_path):
    file = tmp_path / "papers.json"
    save_results({"x": Result("2026-01-01", values={"a": 1.0})}, file)
    before = file.read_bytes()
    broken = row(command="""python -c "raise SystemExit('no such trace')" """)
    with pytest.raises(GraceError, match="no such trace"):
        measure([broken], [broken.command], None, path=file)
    with pytest.raises(GraceError, match="no JSON"):
        run("python -c 'print(1, 2)'", None)
    with pytest.raises(GraceError, match="--traces"):
        measure([], ["python -m bench traffic --trace TRACES/x.npz"], None, path=file)
    assert file.read_bytes() == before


def test_a_time_stands_with_its_spread_and_says_where_none_was_kept(tmp_path):
    rows, file = [row(timed=True, times=100.0, less=100.0)], tmp_path / "papers.json"
    document = {"a": {"b": [1.2]}, "machine": {}}
    kept = {PRINTS: result_of(PRINTS, rows, document)}
    assert "measured, spread not kept |" in markdown(joined(rows, kept))
    timed = [row(timed=True, times=100.0, less=100.0, values={"": "a.median"})]
    document = {"a": {"median": 1.2, "q20": 1.1, "q80": 1.5}}
    save_results({PRINTS: result_of(PRINTS, timed, document)}, file)
    page = markdown(joined(timed, load_results(file)))
    assert "| 20 (10 to 50) % |" in page
    assert "measured |" in page
    exact = [row(values={"": "a.median"}, times=100.0, less=100.0)]
    assert "| 20 % |" in markdown(joined(exact, load_results(file)))


def test_spreads_stand_beside_medians_or_under_the_name_of_the_value():
    document = {"a": {"median_s": 2.0, "q20": 1.5, "q80": 3.0, "x": 1.0}, "b": 2.0}
    document["b_spread"] = {"q20": 1.0, "q80": 4.0}
    assert spread_at(document, "a.median_s") == (1.5, 3.0)
    assert spread_at(document, "b") == (1.0, 4.0)
    assert spread_at(document, "a.x") is None


def test_every_row_where_ours_is_slower_or_reads_more_stands_among_the_losses():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    losses = text.split("## Losses\n", 1)[1]
    for one in joined(ROWS, load_results()):
        if one["how"] not in ("measured", "modelled") or one["unit"] not in ("x", "%"):
            continue
        values = one["ours"] if isinstance(one["ours"], dict) else {"": one["ours"]}
        even = 0.995 if one["unit"] == "x" else 0
        for value in values.values():
            if value < even:
                assert shown(abs(value), "") in losses, (one["id"], value)


def test_only_times_of_a_busy_machine_say_so():
    machine = {"load": 9.0, "cores": 2}
    rows = [row(timed=True), row(id="two")]
    result = result_of(PRINTS, rows, {"a": {"b": [6]}, "machine": machine})
    found = joined(rows, {PRINTS: result})
    assert [one["busy"] for one in found] == [True, False]
    assert markdown(found).count("measured, machine busy, ") == 1
    quiet = result_of(PRINTS, rows, {"a": {"b": [6]}, "machine": {**machine, "load": 1.5}})
    assert not quiet.busy


@pytest.mark.parametrize("path", ["a.c", "a.b.9", "a.b.x", "a.b.0.c", "a"])
def test_a_path_without_a_number_is_an_error(path):
    with pytest.raises(GraceError):
        value_at({"a": {"b": [6]}}, path)


def test_values_are_shown_with_three_digits():
    assert shown(40.1234, "%") == "40.1 %"
    assert shown({"a": 0.01234, "b": 2345346.0}, "") == "a: 0.0123, b: 2,345,346"
    assert (shown(0, ""), shown(None, "x")) == ("0", "-")


def test_the_case_prints_rows_and_refuses_unknown_ids():
    asked = [ROWS[0].id, ROWS[-1].id]
    done = CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False)
    assert [one["id"] for one in json.loads(done.stdout)["rows"]] == asked
    assert ROWS[0].id in CliRunner().invoke(command, asked).stdout
    wrong = CliRunner().invoke(command, ["no-such-row"])
    assert (wrong.exit_code, "no-such-row" in wrong.output) == (2, True)
