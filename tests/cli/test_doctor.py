"""The doctor's text and JSON come from the same diagnosis, and it runs where torch does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click

import grace_torchrec
from grace_torchrec.cli.doctor import as_document, as_lines
from grace_torchrec.doctor.findings import Diagnosis, Finding, PackageRow

ROOT = Path(grace_torchrec.__file__).parents[1]
SICK = Diagnosis(
    (
        PackageRow("torch", "2.13.0+cpu", "==2.13.*", True),
        PackageRow("fbgemm-gpu-cpu", "1.9.0", "==1.8.*", False),
    ),
    (
        Finding(
            "pair", "problem", "they do not fit", ("pip install torch==2.13.0+cpu", "pip check")
        ),
        Finding("odd", "note", "worth knowing"),
    ),
)
SICK_TEXT = """\
package         found       known good
torch           2.13.0+cpu  ==2.13.*
fbgemm-gpu-cpu  1.9.0       ==1.8.*  <- look below

problem: they do not fit
    pip install torch==2.13.0+cpu
    pip check

note: worth knowing

torch releases that end in +cpu come from PyTorch's CPU wheel index
not healthy"""


def test_text_shows_the_table_then_findings_with_lines_to_copy() -> None:
    assert "\n".join(as_lines(SICK)) == SICK_TEXT


def test_json_holds_every_value_of_the_diagnosis() -> None:
    assert json.loads(as_document(SICK)) == {
        "healthy": False,
        "packages": [
            {"package": "torch", "found": "2.13.0+cpu", "known_good": "==2.13.*", "fits": True},
            {"package": "fbgemm-gpu-cpu", "found": "1.9.0", "known_good": "==1.8.*", "fits": False},
        ],
        "findings": [
            {
                "code": "pair",
                "level": "problem",
                "text": "they do not fit",
                "fix": ["pip install torch==2.13.0+cpu", "pip check"],
            },
            {"code": "odd", "level": "note", "text": "worth knowing", "fix": []},
        ],
    }


def test_notes_alone_are_healthy() -> None:
    noted = Diagnosis((), SICK.findings[1:])
    assert list(as_lines(noted))[-1] == "healthy"


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
    assert not json.loads(result.stdout)["healthy"]
