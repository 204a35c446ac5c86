"""The wheel holds this project's packages, all of them and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "grace_torchrec": ROOT,
    "grace_kernels": ROOT / "triton_kernels",
    "grace_sharding": ROOT / "sharding",
}
MAX_BYTES = 1_000_000
BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no build folder of an earlier build gets into it."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name, parent in FOLDERS.items():
        shutil.copytree(parent / name, source / parent.relative_to(ROOT) / name, ignore=ignore)
    for name in BUILD_INPUTS:
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target)]
    result = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = target.glob("*.whl")
    assert file.name.endswith("-py3-none-any.whl")
    assert file.stat().st_size < MAX_BYTES
    return zipfile.ZipFile(file)


def test_top_level_names_are_the_three_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    (info,) = [name for name in top if name.endswith(".dist-info")]
    assert info.startswith("grace_torchrec-")
    assert top - {info} == set(FOLDERS)
    owned = wheel.read(f"{info}/top_level.txt").decode().split()
    assert sorted(owned) == sorted(FOLDERS)


def test_every_source_and_data_file_is_inside(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = {
        str(file.relative_to(parent))
        for name, parent in FOLDERS.items()
        for file in (parent / name).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert inside == wanted
    assert {"grace_sharding/machines.json", *(f"{name}/py.typed" for name in FOLDERS)} <= inside


def test_licence_notice_and_command_travel_along(wheel: zipfile.ZipFile) -> None:
    info = {
        name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name
    }
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= set(info)
    assert (
        "grace-torchrec = grace_torchrec.cli.main:main"
        in wheel.read(info["entry_points.txt"]).decode()
    )
