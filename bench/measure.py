"""Measuring: what a timed figure depends on besides the code.

Flow: cases time with :mod:`grace_torchrec.timing` and print this beside their figures.
"""

import os
import platform
import subprocess
from pathlib import Path

import numpy as np

from grace_sharding import calibration


def machine() -> dict[str, str | int | float]:
    """Return what a timed figure depends on: processor, cores, load, software, commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "load": calibration.load_now(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": _commit(),
    }


def last_cache_bytes() -> int:
    """Return the bytes of the largest cache of this machine, 32 MiB where the system does not say."""
    return max(32 << 20, calibration.last_cache_bytes() or 0)


def _processor() -> str:
    """Return the model name of the processor."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _commit() -> str:
    """Return the short commit of this checkout, ``unknown`` outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
