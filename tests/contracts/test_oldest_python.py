"""The oldest Python that may install the package is the one that its code is checked for.

mypy, told the version, refuses what the standard library learned later (``make lint``); ruff takes it
from ``requires-python`` and refuses later grammar.
"""

import re
from pathlib import Path

from grace_torchrec.doctor import diagnose

ROOT = Path(__file__).resolve().parents[2]


def told(pattern: str, file: str) -> str:
    """What a file says where the pattern has its group."""
    found = re.findall(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert len(found) == 1, (file, pattern, found)
    return found[0]


def test_every_place_names_the_same_oldest_python() -> None:
    oldest = told(r'^requires-python = ">=([\d.]+)"$', "pyproject.toml")
    assert told(r'^python_version = "([\d.]+)"', "pyproject.toml") == oldest
    assert told(r"needs Python ([\d.]+) or newer", "docs/installing.md") == oldest
    assert diagnose.PYTHON.removeprefix(">=") == oldest
    assert 'target-version = "' not in (ROOT / "pyproject.toml").read_text("utf-8")
