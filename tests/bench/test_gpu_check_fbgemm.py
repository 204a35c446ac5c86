"""The check for a machine with CUDA and fbgemm: its arithmetic is right on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_check_fbgemm.py"


def run(*arguments: str, interpret: bool = True) -> subprocess.CompletedProcess[str]:
    """Run it as on the other machine: not installed, from any folder."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1"} | ({"TRITON_INTERPRET": "1"} if interpret else {})
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_every_way_to_read_the_table_answers_alike(tmp_path: Path) -> None:
    done = run("--dry-run", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    stages = [line["stage"] for line in lines]
    assert stages == ["environment", *["converted"] * 4, *["times"] * 2]
    assert all(line["ok"] for line in lines if "ok" in line)
    for line in lines[-2:]:
        assert set(line["us"]) == {"uvm_mapped", "uvm_managed", "uvm_caching", "ours"}


def test_stages_left_out_for_time_are_said_and_never_pass_as_checked(tmp_path: Path) -> None:
    done = run("--dry-run", "--budget", "5", "--out", str(tmp_path))
    assert done.returncode == 3, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["environment", "left_out", "left_out"]


def test_without_a_gpu_it_says_how_to_run_dry(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out"), interpret=False)
    assert done.returncode == 2
    assert "try TRITON_INTERPRET=1 with --dry-run" in done.stderr
    assert not (tmp_path / "out").exists()
