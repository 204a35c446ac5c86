"""The doctor runs where torch does not, and says no with an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click

import grace_torchrec

ROOT = Path(grace_torchrec.__file__).parents[1]


def bare(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor in an interpreter that has click and nothing else installed."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    folders = [tmp_path, ROOT, ROOT / "triton_kernels", ROOT / "sharding"]
    return subprocess.run(
        [sys.executable, "-S", "-m", "grace_torchrec", "doctor", *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
    )


def test_without_torch_it_says_no_and_how_to_install(tmp_path: Path) -> None:
    result = bare(tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    assert "problem: torch is not installed" in result.stdout
    assert "    pip install torch==" in result.stdout
    assert result.stdout.endswith("\nnot healthy\n")


def test_without_torch_json_is_still_one_object(tmp_path: Path) -> None:
    result = bare(tmp_path, "--json")
    assert (result.returncode, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert set(document) == {"healthy", "packages", "findings"}
    assert not document["healthy"]
    assert document["findings"][0]["fix"]
