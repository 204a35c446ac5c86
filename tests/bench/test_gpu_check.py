"""The check for a machine with a GPU: its arithmetic is right in the interpreter, without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "gpu_check.py"


def run(*arguments: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run it as on the other machine: not installed, from any folder."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_INTERPRET": "1"} if interpret else {}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )


def test_the_dry_run_is_right_and_says_every_stage(tmp_path: Path) -> None:
    done = run("--dry-run", "--section", "kernels", "--out", str(tmp_path), interpret=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert printed == lines
    stages = [line["stage"] for line in lines]
    assert stages[0] == "environment"
    assert stages.count("ceiling_gather") == 12
    assert stages.count("correct") == stages.count("time") == 9
    assert stages.count("tiers") == 5
    assert stages.count("hostile") == stages.count("quantised") == 2
    assert all(line["ok"] for line in lines if "ok" in line)
    assert {line["saved"] for line in lines if line["stage"] == "time"} == {0.4}
    left_out = [line["what"] for line in lines if line["stage"] == "left_out"]
    assert left_out == ["overlap: needs a GPU", "graph: needs a GPU"]


def test_stages_left_out_for_time_are_said_and_never_pass_as_checked(tmp_path: Path) -> None:
    done = run("--dry-run", "--budget", "5", "--out", str(tmp_path), interpret=True)
    assert done.returncode == 3, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines} == {"environment", "left_out"}
    assert "kernels" in " ".join(line.get("what", "") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "interpret", "what"),
    [
        (["--dry-run"], False, "--dry-run and TRITON_INTERPRET=1 go together"),
        ([], True, "--dry-run and TRITON_INTERPRET=1 go together"),
        (["--section", "nothing", "--dry-run"], True, "invalid choice: 'nothing'"),
    ],
)
def test_a_wrong_call_is_refused(arguments, interpret, what, tmp_path: Path) -> None:
    done = run(*arguments, "--out", str(tmp_path / "out"), interpret=interpret)
    assert done.returncode == 2
    assert what in done.stderr
    assert not (tmp_path / "out").exists()
