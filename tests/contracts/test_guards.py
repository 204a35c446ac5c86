"""Each guard names its tests and still fits the code; ``make guards`` runs them."""

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


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_guard_names_tests_that_exist_and_applies(runner, patch: Path) -> None:
    guard = runner.read_guard(patch)
    for node in guard.nodes:
        assert (ROOT / node.partition("::")[0]).exists(), f"{patch.name}: no {node}"
    check = ["git", "apply", "--check", str(patch)]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


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
