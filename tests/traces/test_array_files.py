"""Array files: a disk that is too small for a joined trace is an error, and ends no process."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

FULL_DISK = """
import sys
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.shards import read_shards

try:
    read_shards(sys.argv[1:2], folder=sys.argv[2])
except GraceError as error:
    print(error)
"""
IN_A_SMALL_DISK = (
    "unshare",
    "-Urm",
    "sh",
    "-c",
    'mount -t tmpfs -o size=1m none "$0" && exec "$@"',
)


def test_a_disk_without_room_for_the_joined_trace_is_an_error(tmp_path):
    # The pieces that wait fit on the disk; one large id makes the joined ids twice as wide.
    shards = tmp_path / "shards"
    shards.mkdir()
    np.savez(shards / "a.npz", indptr=[0, 180_000], indices=np.arange(180_000, dtype=np.int32))
    np.savez(shards / "b.npz", indptr=[0, 1], indices=[2**33])
    disk = tmp_path / "disk"
    disk.mkdir()
    small = [*IN_A_SMALL_DISK, str(disk)]
    if shutil.which("unshare") is None or subprocess.run([*small, "true"], check=False).returncode:
        pytest.skip("this system lets no test mount a small disk of its own")
    command = [*small, sys.executable, "-c", FULL_DISK, str(shards), str(disk)]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert found.returncode == 0, found.stderr
    assert f"{disk} cannot be written (No space left on device)" in found.stdout
