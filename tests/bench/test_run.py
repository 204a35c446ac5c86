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
