"""Each guard names its tests and still fits the code; ``make guards`` runs them."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "guards"
PATCHES = sorted(FOLDER.glob("*.patch"))


@pytest.fixture(scope="module")
def runner():
    """The module ``tests/guards/run.py``."""
    spec = importlib.util.spec_from_file_location("grace_guard_runner", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def is_there(node: str) -> bool:
    """Tell whether a file has what a node id names; of a parametrised test, the function."""
    file, *names = node.partition("[")[0].split("::")
    if not (ROOT / file).is_file():
        return not names and (ROOT / file).is_dir()
    inside = ast.parse((ROOT / file).read_text("utf-8")).body
    for name in names:
        found = [part for part in inside if getattr(part, "name", None) == name]
        if not found:
            return False
        inside = found[0].body
    return True


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_guard_names_tests_that_exist_and_applies(runner, patch: Path) -> None:
    guard = runner.read_guard(patch)
    for node in guard.nodes:
        assert is_there(node), f"{patch.name}: no {node}"
    check = ["git", "apply", "--check", str(patch)]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("", True),
        ("::test_a_name_is_looked_up[x-True]", True),
        ("::test_renamed", False),
        ("::test_a_name_is_looked_up::inner", False),
        (".gone", False),
        ("/..", False),
    ],
)
def test_a_name_is_looked_up(name: str, there: bool) -> None:
    assert is_there(f"tests/contracts/{Path(__file__).name}{name}") == there


def test_a_patch_without_a_header_is_refused(runner, tmp_path: Path) -> None:
    patch = tmp_path / "lost.patch"
    patch.write_text("--- a/x\n+++ b/x\n# test: tests/too/late.py\n")
    with pytest.raises(ValueError, match=r"lost\.patch: no '# test:"):
        runner.read_guard(patch)


@pytest.mark.parametrize(
    ("codes", "red"),
    [((1,), True), ((0, 1), True), ((0,), False), ((1, 2), False), ((5,), False), ((-1,), False)],
)
def test_red_means_that_a_test_failed_and_no_run_broke(runner, codes, red: bool) -> None:
    assert runner.judge([(code, "last line") for code in codes])[0] == red
