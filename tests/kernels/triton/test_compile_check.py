"""The machine code of every kernel keeps its limits, and a kernel that breaks one is told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OLDER_TRITON = "3.6.0"
BREAK = """
import json
import triton
import triton.language as tl
from grace_kernels.compile_check import check
from grace_kernels.compile_variants import Variant

@triton.jit
def greedy_kernel(rows_ptr, out_ptr, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    least = tl.full((SIZE,), 1e30, tl.float32)
    for place in range(count):
        value = tl.load(rows_ptr + place * (SIZE + 1) + lane)
        total += value
        least = tl.minimum(least, value)
    tl.store(out_ptr + lane, total)
    tl.store(out_ptr + SIZE + lane, least)

types = {"rows_ptr": "*fp32", "out_ptr": "*fp32", "count": "i32"}
for size in (2048, 8192):
    variant = Variant(greedy_kernel, types, {"SIZE": size}, 1, wide_loads=4, max_sass=100)
    print(json.dumps(check(variant, 90).problems))
"""


def in_own_process(cache: Path, *arguments: str, **changes: str) -> Any:
    """Run Python with a cold cache and without the interpreter, unless ``changes`` say so."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(cache)} | changes
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)


def check(cache: Path, *options: str, **changes: str) -> Any:
    """Run the command that checks every kernel."""
    command = ("-m", "grace_kernels.compile_check", "--json", *options)
    return in_own_process(cache, *command, **changes)


def test_usual_kernels_keep_their_limits(tmp_path: Path) -> None:
    """On one of the two capabilities: the soak checks every kernel on both."""
    done = check(tmp_path, "--usual", "--capability", "90")
    assert done.returncode in (0, 1), done.stderr[-4000:]
    reports = json.loads(done.stdout)["reports"]
    assert {report["capability"] for report in reports} == {90}
    assert {report["kernel"] for report in reports} == {
        "rewrite_clusters_kernel", "pool_rows_kernel", "pooled_lookup_kernel", "build_rows_kernel",
    }  # fmt: skip
    assert [report for report in reports if report["problems"]] == []
    assert done.returncode == 0


@pytest.mark.soak
def test_every_kernel_keeps_its_limits(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    reports = json.loads(done.stdout)["reports"]
    assert [report for report in reports if report["problems"]] == []


@pytest.fixture(scope="module")
def older_triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the oldest Triton that GPU machines of today run; skips where pip cannot."""
    folder = tmp_path_factory.mktemp("site")
    command = ["install", "-q", "--no-deps", "--target", str(folder), f"triton=={OLDER_TRITON}"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *command],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        pytest.skip(f"pip cannot install triton {OLDER_TRITON}: {lines[-1]}")
    return folder


@pytest.mark.soak
def test_every_kernel_keeps_its_limits_with_an_older_triton(
    tmp_path: Path, older_triton: Path
) -> None:
    """Register allocation differs between releases: what one keeps in registers another spills."""
    path = os.pathsep.join([str(older_triton), *filter(None, sys.path)])
    done = check(tmp_path, PYTHONPATH=path)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    answer = json.loads(done.stdout)
    assert answer["triton"] == OLDER_TRITON
    assert [report for report in answer["reports"] if report["problems"]] == []


def test_a_spill_narrow_loads_and_long_code_are_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # triton reads the source of kernels from a file
    script.write_text(BREAK)
    done = in_own_process(tmp_path / "compiled", str(script))
    assert done.returncode == 0, done.stderr[-4000:]
    large, larger = map(json.loads, done.stdout.splitlines())
    assert large[0].endswith(" registers, limit 128")
    spill, wide, long = larger
    assert spill.startswith("spills: ")
    assert wide == "0 loads of 16 bytes, the rows need 4"
    assert long.endswith("instructions, limit 100")


def test_the_interpreter_cannot_be_checked(tmp_path: Path) -> None:
    done = check(tmp_path, "--usual", TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "TRITON_INTERPRET was set when the kernels were imported; unset it" in done.stderr
