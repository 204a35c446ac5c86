"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "bench": ROOT,
    "grace_torchrec": ROOT,
    "grace_kernels": ROOT / "triton_kernels",
    "grace_sharding": ROOT / "sharding",
}
WITH_EXAMPLES = {
    ".".join(file.relative_to(parent).with_suffix("").parts).removesuffix(".__init__")
    for name, parent in FOLDERS.items()
    for file in (parent / name).rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
}


@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
