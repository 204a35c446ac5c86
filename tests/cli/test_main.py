"""The command line keeps its promises: exit codes, one-line errors, no torch for ``--help``."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grace_torchrec.cli.main import SUB_COMMANDS, SubCommand, cli, main

LOADED = """
import sys
from grace_torchrec.cli.main import main
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0
heavy = {"torch", "numpy", "numba", "torchrec", "rich"} & set(sys.modules)
ours = [name for name in sys.modules if name.startswith("grace_torchrec.cli.")]
print("loaded:", sorted(heavy), ours)
"""
PROBE = """
import os, signal, time
import click
from grace_torchrec.errors import PlanMismatch

@click.command()
@click.argument("how")
def probe(how):
    if how == "grace":
        raise PlanMismatch("table t_item:\\n  100 rows,\\n  the plan has 90; plan again")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "compiled":
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise SystemError("returned a result with an exception set") from stop
    if how == "terminated":
        from grace_torchrec.artifact import new_folder
        with new_folder("unfinished", "plan"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    if how == "folder":
        open("/nowhere/file")
    if how == "no":
        click.get_current_context().exit(1)
    click.echo("done")
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a sub-command that ends in the way its argument says."""
    (tmp_path / "grace_probe_command.py").write_text(PROBE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(SUB_COMMANDS, "probe", SubCommand("grace_probe_command:probe", "Probe."))
    return "probe"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one call."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.mark.parametrize(
    ("how", "code", "out", "err"),
    [
        ("well", 0, "done\n", ""),
        ("no", 1, "", ""),
        ("grace", 2, "", "error: table t_item: 100 rows, the plan has 90; plan again\n"),
    ],
)
def test_each_ending_has_its_exit_code(capsys, probe, how, code, out, err) -> None:
    assert run(capsys, probe, how) == (code, out, err)


@pytest.mark.parametrize("how", ["interrupt", "compiled"])
def test_an_interrupt_ends_with_130(capsys, probe, how) -> None:
    code, out, err = run(capsys, probe, how)
    assert (code, out, err.strip()) == (130, "", "")


def test_sigterm_ends_with_143_and_leaves_nothing(capsys, probe, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, probe, "terminated")
    assert (code, out, err.strip()) == (143, "", "")
    assert not [path for path in tmp_path.iterdir() if "unfinished" in path.name]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    "args",
    [[], ["nope"], ["--nope"], ["doctor", "--nope"], ["doctor", "extra"], ["doctor", "--json=1"]],
)
def test_a_wrong_call_is_one_line_on_stderr(capsys, args) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "--help" in err
    assert len(err) < 120


def test_help_lists_every_sub_command_and_loads_none() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    for name, command in SUB_COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert command.help in result.stdout
    assert result.stdout.endswith("loaded: [] ['grace_torchrec.cli.main']\n")


@pytest.mark.parametrize("name", SUB_COMMANDS)
def test_every_sub_command_loads_under_its_name_and_takes_json(name: str) -> None:
    context = cli.make_context("grace-torchrec", [name])
    command = cli.get_command(context, name)
    assert command is not None
    assert command.name == name
    assert "--json" in {option for param in command.params for option in param.opts}


def test_python_m_is_the_same_command() -> None:
    version = [sys.executable, "-m", "grace_torchrec", "--version"]
    result = subprocess.run(version, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("grace-torchrec, version ")


def test_doctor_prints_exactly_one_json_object_and_this_environment_is_healthy() -> None:
    command = [sys.executable, "-m", "grace_torchrec", "doctor", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    document = json.loads(result.stdout)
    assert document["findings"] == []
    assert (result.returncode, document["healthy"]) == (0, True)


@pytest.mark.parametrize(
    ("encoding", "table", "path"),
    [
        ("latin-1", b"Br\xf6tchen \\u540d", b"\xe5\x90\x8d"),
        ("ascii", b"Br\\xf6tchen \\u540d", b"\xe5\x90\x8d"),
        ("utf-8", "Br\u00f6tchen \u540d".encode(), b"\xe5\x90\x8d"),
    ],
)
def test_what_a_terminal_cannot_show_is_shown_some_other_way(monkeypatch, encoding, table, path):
    """Names of tables are any text, paths any bytes; neither ends a job that has done its work."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding, "strict"))
    with pytest.raises(SystemExit):
        main(["--version"])
    sys.stdout.write("Br\u00f6tchen \u540d " + b"\xe5\x90\x8d".decode("ascii", "surrogateescape"))
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().splitlines()[-1] == table + b" " + path


class Torn(io.TextIOWrapper):
    """An output whose reader has gone, or whose disk is full."""

    def __init__(self, error: int) -> None:
        super().__init__(io.BytesIO(), "utf-8")
        self.error = error

    def write(self, text: str) -> int:
        """Take nothing."""
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize(
    "args", [["probe", "well"], ["--version"], ["--help"], ["probe", "--help"]]
)
@pytest.mark.parametrize(("error", "code"), [(errno.EPIPE, 141), (errno.ENOSPC, 2)])
def test_an_output_that_nobody_takes_has_its_exit_code(
    capsys, monkeypatch, probe, args, error, code
) -> None:
    monkeypatch.setattr(sys, "stdout", Torn(error))
    found, _, err = run(capsys, *args)
    assert found == code
    assert err == (
        "" if code == 141 else "error: standard output or a file: No space left on device\n"
    )


def test_tables_of_rich_end_like_everything_else_where_nobody_reads(monkeypatch) -> None:
    from grace_torchrec.cli.options import show

    monkeypatch.setattr(sys, "stdout", Torn(errno.EPIPE))
    with pytest.raises(BrokenPipeError):
        show("a table")


def test_what_waits_for_an_output_that_is_full_is_no_success() -> None:
    """Python itself would end with 120 and two lines of its own."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "grace_torchrec", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_files_that_cannot_be_used_are_one_line(capsys, probe) -> None:
    code, out, err = run(capsys, probe, "folder")
    assert (code, out, err) == (2, "", "error: /nowhere/file: No such file or directory\n")
