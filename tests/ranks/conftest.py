"""Runs the cases once for each world size, whatever number of test processes asks for them."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = [ROOT, ROOT / "triton_kernels", ROOT / "sharding"]

Results = list[dict[str, Any]]


@pytest.fixture(scope="session")
def on_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Results]:
    """Return a function from (world size, cases) to what each rank found, by case."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base

    def run(world_size: int, *cases: str) -> Results:
        folder = shared / "ranks" / f"{world_size}-{'-'.join(cases)[:60]}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                _run(world_size, folder, cases)
                (folder / "done").touch()
        return [
            json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
            for rank in range(world_size)
        ]

    return run


def _run(world_size: int, folder: Path, cases: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "on_ranks.py", str(world_size), folder, *cases],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS)), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    (folder / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    for rank in range(world_size):  # who never wrote anything died or hung at the start
        path = folder / f"rank{rank}.json"
        if not path.exists():
            path.write_text(json.dumps({}), encoding="utf-8")
