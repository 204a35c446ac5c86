"""Parallel code that another process compiled runs in a process that compiled nothing."""

import os
import subprocess
import sys

LEAF = """
from numba import prange

from grace_kernels._jit import jit


@jit(parallel=True)
def counted(num):
    total = 0
    for _ in prange(num):
        total += 1
    return total
"""
CALLER = """
from grace_kernels._jit import jit
from leaf import counted


@jit
def twice(num):
    return 2 * counted(num)
"""
CALL = """
import sys

from grace_kernels.threads import one_at_a_time

module, name = sys.argv[1:]
with one_at_a_time():
    print(getattr(__import__(module), name)(21))
"""


def test_code_that_calls_parallel_code_runs_from_the_disk_cache(tmp_path):
    """The leaf alone, then its caller with the leaf from the cache, then the caller from the cache."""
    (tmp_path / "leaf.py").write_text(LEAF)
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "call.py").write_text(CALL)
    for module, name, printed in (
        ("leaf", "counted", "21"),
        ("caller", "twice", "42"),
        ("caller", "twice", "42"),
    ):
        done = subprocess.run(
            [sys.executable, "call.py", module, name],
            cwd=tmp_path,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr
