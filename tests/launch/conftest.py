"""What the tests of jobs share: folders with known checksums, the installed entry points."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROFILE, PLAN = "0123456789abcdef", "c0ffee" + "0" * 58


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder whose jobs find this Python and this source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    source = (
        ROOT,
        ROOT / "triton_kernels",
        ROOT / "sharding",
        entry_points(tmp_path / "installed"),
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, source)))
    return tmp_path


@pytest.fixture
def plan_folder(folder):
    """A plan folder as far as a launcher reads it."""
    (folder / "plan").mkdir()
    document = {"plan_sha256": PLAN, "profile_fingerprint": PROFILE}
    (folder / "plan" / "plan.json").write_text(json.dumps(document))
    return "plan"


def entry_points(site):
    """What an installation writes for the entry points of pyproject.toml, in a folder of its own."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = project.partition('[project.entry-points."torchx.components"]')[2].partition("\n[")[0]
    lines = [f"{name} = {value}" for name, value in re.findall(r'^(\w+) = "(.*?)"', group, re.M)]
    info = site / "grace_torchrec-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grace-torchrec\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(["[torchx.components]", *lines]))
    return site
