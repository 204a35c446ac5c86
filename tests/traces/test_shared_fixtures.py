"""The options and the summary of tests/conftest.py, on a small suite of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SUITE = """
import pytest

def test_plain():
    pass

def test_real(trace_path):
    assert trace_path("real").name == "real.npz"

def test_absent(trace_path):
    trace_path("absent")

@pytest.mark.soak
def test_long():
    pass

def test_elsewhere():
    pytest.skip("no GPU")
"""


def run(folder, *options):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "pytest.ini",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak: long\n")
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "real.npz").write_bytes(b"")
    return tmp_path


def test_skipped_tests_are_counted_by_reason(suite):
    said = run(suite)
    assert "skipped: 4 (no traces: 2, soak: 1, other: 1)" in said
    assert re.search("1 passed, 4 skipped", said)


def test_traces_and_soak_run_what_they_name_on_one_thread_a_worker(suite):
    (suite / "test_threads.py").write_text(
        "import torch, numba\n"
        "def test_threads():\n"
        "    assert torch.get_num_threads() == numba.get_num_threads() == 1\n"
    )
    said = run(suite, "--traces", str(suite), "--soak", "-n", "1")
    assert "skipped: 2 (no traces: 1, soak: 0, other: 1)" in said
    assert re.search("4 passed, 2 skipped", said)
