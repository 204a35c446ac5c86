"""The driver: cases are found by their file, results are one object or one table."""

import json
import subprocess
import sys

from click.testing import CliRunner

from bench.run import cli, emit


def test_cases_are_the_files_of_the_folder():
    assert "traffic" in cli.list_commands(None)
    assert cli.get_command(None, "no_such_case") is None
    assert cli.get_command(None, "traffic").name == "traffic"


def test_json_is_one_object_on_one_line(capsys):
    emit({"cut": 0.5, "picked": None}, True, "t")
    assert json.loads(capsys.readouterr().out) == {"cut": 0.5, "picked": None}


def test_table_shows_every_field(capsys):
    emit({"cut": 0.123456, "extra_rows": 1234567, "picked": None}, False, "traffic")
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("traffic", "0.1235", "1,234,567", "picked"))


def test_nested_values_are_tables_and_no_raw_dict_is_shown(capsys):
    result = {
        "cut": 0.5, "spread": [0.1, 0.2], "empty": {},
        "ratios": {"ahead": {"tbe": 1.5, "stock": 2.0}, "fused": {"tbe": 1.1}},
        "machine": {"cpu": "x", "cores": 2},
        "rows": [{"id": "a", "ours": 1}, {"id": "b", "ours": 20_000}],
        "deep": {"one": {"two": {"three": 3}}, "four": 4},
    }  # fmt: skip
    emit(result, False, "title")
    shown = capsys.readouterr().out
    assert "{" not in shown
    assert "[" not in shown
    words = shown.split()
    for text in (
        "ahead",
        "1.5000",
        "2.0000",
        "20,000",
        "cpu",
        "three",
        "3",
        "four",
        "deep",
        "rows",
    ):
        assert text in words or f"{text}:" in words


def test_unknown_cases_are_a_wrong_call():
    assert CliRunner().invoke(cli, ["no_such_case"]).exit_code == 2


def test_an_error_is_one_line_on_stderr_and_status_2(tmp_path):
    call = [
        sys.executable,
        "-m",
        "bench",
        "traffic",
        "--trace",
        str(tmp_path / "none.npz"),
        "--json",
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
