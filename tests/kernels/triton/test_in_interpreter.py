"""The Triton kernels do what their meaning says: each file of interpreted/ runs in the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "interpreted"


@pytest.mark.parametrize(
    "name", ["clusters", "subsets", "pooling", "build_sums", "gpu", "gpu_bags"]
)
def test_kernels_in_the_interpreter(name: str, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    soak = ["--soak"] if request.config.getoption("--soak") else []
    done = subprocess.run(
        [*command, *soak, str(FOLDER / f"test_{name}.py")],
        cwd=request.config.rootpath,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
