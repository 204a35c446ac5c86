"""The schedule section of the GPU check runs under the recording backend where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_dry_run_lowers_and_records_every_graph(tmp_path):
    command = [sys.executable, str(ROOT / "bench" / "gpu_check.py"), "--section", "schedule"]
    done = subprocess.run(
        [*command, "--dry-run", "--out", str(tmp_path)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    stages = [line["stage"] for line in lines]
    assert stages.count("spin_recorded") == 6
    assert stages.count("model_recorded") == 4
    assert "broken" not in stages
    assert all(line["ok"] for line in lines if "ok" in line)
