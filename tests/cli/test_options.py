"""Options: a result that could not be written is refused before the work, whatever it is."""

import os

import pytest
from click.testing import CliRunner

from grace_torchrec.cli.calibrate import calibrate_command
from grace_torchrec.cli.convert import convert
from grace_torchrec.cli.demo import demo
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
