"""Options: a result that could not be written is refused before the work, whatever it is."""

import os
import threading

import pytest
from click.testing import CliRunner

from grace_torchrec.cli.calibrate import calibrate_command
from grace_torchrec.cli.convert import convert
from grace_torchrec.cli.demo import demo
from grace_torchrec.cli.options import progress_to_stderr
from grace_torchrec.cli.plan import plan
from grace_torchrec.cli.profile import profile
from grace_torchrec.cli.schedule import schedule

CALLS = [
    (profile, ["no-trace", "-o"]),
    (plan, ["no-model", "--profile", "none", "--memory", "a100", "-o"]),
    (convert, ["no-model", "no-plan", "-o"]),
    (demo, ["--out"]),
    (schedule, ["no-model", "--svg"]),
    (schedule, ["no-model", "--trace"]),
    (schedule, ["no-model", "--save-stats"]),
    (calibrate_command, ["-o"]),
]


@pytest.mark.parametrize(("command", "arguments"), CALLS)
def test_a_file_in_the_way_is_seen_first(tmp_path, command, arguments):
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(command, [*arguments, str(tmp_path / "file" / "out")])
    assert result.exit_code == 2
    assert "is no folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.getuid() == 0, reason="everything is writable for root")
def test_a_folder_that_is_not_writable_is_seen_first(tmp_path):
    tmp_path.chmod(0o500)
    result = CliRunner().invoke(profile, ["no-trace", "-o", str(tmp_path / "out")])
    tmp_path.chmod(0o700)
    assert (result.exit_code, "is not writable" in result.output) == (2, True)


def test_files_need_their_folder_and_folders_are_made(tmp_path):
    missing = str(tmp_path / "a" / "b")
    result = CliRunner().invoke(schedule, ["no-model", "--svg", missing])
    assert (result.exit_code, "is no folder" in result.output) == (2, True)
    result = CliRunner().invoke(profile, [str(tmp_path / "no-trace"), "-o", missing])
    assert "no folder" not in result.output


def test_the_log_of_a_long_job_says_what_it_does_and_a_short_one_is_quiet(capfd):
    """No terminal is here: neither a spinner nor anything on standard output, where results go."""
    with progress_to_stderr() as progress:
        progress("reading")
    with progress_to_stderr(every_s=0.01) as progress:
        progress("planning t_item")
        told = ""
        while "planning t_item" not in told:  # forever, were nothing told
            threading.Event().wait(0.01)
            out, err = capfd.readouterr()
            told += err
            assert out == ""
    assert told.splitlines()[-1] == "0 s: planning t_item"
    assert "reading" not in told


def test_a_log_that_nobody_reads_ends_no_job(monkeypatch):
    with open(os.devnull) as closed, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", closed)  # not writable
        with progress_to_stderr(every_s=0.001) as progress:
            progress("planning")
            threading.Event().wait(0.05)
    assert "grace-progress" not in [thread.name for thread in threading.enumerate()]
