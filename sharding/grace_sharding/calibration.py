"""Calibration: the rates of this machine's memories, measured where it can be.

Flow: this machine -> *Calibration* -> memory model -> plans.  Measured: copying (what the memory can
do at best) and gathering rows at random (what lookups do), in host memory and, where there is a GPU,
in HBM; and the link between them by copying from page-locked memory.  Without a GPU two numbers are
measured, and the calibration says what is missing.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grace_sharding.memory_files import save_memory
from grace_sharding.memory_tiers import MemoryModel, MemoryModelError, Tier

HOST_TABLE_BYTES = 1 << 30  # far beyond what caches hold
GATHERED_BYTES = 1 << 26
ROUNDS = 5
SHARE_FOR_ROWS = 0.8  # of the free bytes: other data needs room too (derived)


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        memory: The model of this machine.
        bytes_per_s: ``host_copy``, ``host_gather`` and, with a GPU, ``hbm_copy``, ``hbm_gather``
            and ``link_copy``.
        row_bytes: Of the rows that were gathered.
        unmeasured: What could not be measured, and why; a sentence each.
    """

    memory: MemoryModel
    bytes_per_s: dict[str, float]
    row_bytes: int
    unmeasured: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory model, with the measurements beside it.

        Raises:
            MemoryModelError: the file cannot be written.
        """
        notes = {
            "bytes_per_s": self.bytes_per_s,
            "row_bytes": self.row_bytes,
            "unmeasured": list(self.unmeasured),
        }
        save_memory(self.memory, path, notes)


def calibrate(row_bytes: int = 256, table_bytes: int = HOST_TABLE_BYTES) -> Calibration:
    """Measure this machine.

    Args:
        row_bytes: Bytes of the rows that are gathered, a multiple of 4.
        table_bytes: Bytes of the tables that are read; large enough that no cache holds them.

    Raises:
        MemoryModelError: ``row_bytes`` or ``table_bytes`` is out of range.
    """
    if not isinstance(row_bytes, int) or row_bytes < 4 or row_bytes % 4 or row_bytes > 1 << 20:
        raise MemoryModelError(
            f"calibrate: row_bytes must be a multiple of 4 from 4 to {1 << 20}, got {row_bytes!r}"
        )
    if table_bytes < 64 * row_bytes:
        raise MemoryModelError(f"calibrate: a table of {table_bytes:,} bytes is too small")
    rates = _host_rates(row_bytes, table_bytes)
    unmeasured = ["host memory with all cores: one thread was measured"]
    gpu = _gpu_rates(row_bytes, table_bytes)
    host_bytes = int(SHARE_FOR_ROWS * _free_host_bytes())
    if gpu is None:
        unmeasured += ["HBM: there is no GPU that torch can use", "host link: there is no GPU"]
        tiers: tuple[Tier, ...] = (Tier("host", host_bytes, rates["host_gather"]),)
        return Calibration(
            MemoryModel(platform.node() or "this machine", tiers),
            rates,
            row_bytes,
            tuple(unmeasured),
        )
    unmeasured.append("single rows over the host link: copies from page-locked memory stand in")
    name, hbm_bytes, measured = gpu
    tiers = (
        Tier("hbm", int(SHARE_FOR_ROWS * hbm_bytes), measured["hbm_gather"]),
        Tier("host", host_bytes, min(measured["link_copy"], rates["host_gather"])),
    )
    return Calibration(
        MemoryModel(name, tiers), {**rates, **measured}, row_bytes, tuple(unmeasured)
    )


def _host_rates(row_bytes: int, table_bytes: int) -> dict[str, float]:
    """Measure host memory: one thread copies, one gathers rows."""
    rng = np.random.default_rng(0)
    table = np.zeros((table_bytes // row_bytes, row_bytes // 4), np.float32)
    table += 1.0  # pages that are only reserved read no memory
    num_rows = min(table.shape[0], max(1, GATHERED_BYTES // row_bytes))
    rows, out = rng.integers(0, table.shape[0], num_rows), np.empty_like(table[:num_rows])
    source, target = table[: table.shape[0] // 2], np.empty_like(table[: table.shape[0] // 2])
    return {
        "host_copy": source.nbytes / _least_s(lambda: np.copyto(target, source)),
        "host_gather": out.nbytes
        / _least_s(lambda: np.take(table, rows, axis=0, out=out, mode="clip")),
    }


def _gpu_rates(row_bytes: int, table_bytes: int) -> tuple[str, int, dict[str, float]] | None:
    """Measure HBM and the link; None without a GPU.

    Returns:
        (name of the GPU, its free bytes, rates).
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    num_rows = min(table_bytes, free // 4) // row_bytes
    table = torch.zeros((num_rows, row_bytes // 4), device="cuda")
    rows = torch.randint(num_rows, (max(1, GATHERED_BYTES // row_bytes),), device="cuda")
    gathered, copied = table[rows], torch.empty_like(table)
    pinned = torch.zeros(GATHERED_BYTES // 4, pin_memory=True)
    landed = torch.empty_like(pinned, device="cuda")

    def timed(work: Callable[[], object]) -> float:
        """Seconds of work on the GPU."""

        def wait() -> None:
            """Do it and wait for it."""
            work()
            torch.cuda.synchronize()

        return _least_s(wait)

    rates = {
        "hbm_copy": table.nbytes / timed(lambda: copied.copy_(table)),
        "hbm_gather": gathered.nbytes
        / timed(lambda: torch.index_select(table, 0, rows, out=gathered)),
        "link_copy": pinned.nbytes / timed(lambda: landed.copy_(pinned, non_blocking=True)),
    }
    return torch.cuda.get_device_name(), int(free), rates


def _least_s(work: Callable[[], object]) -> float:
    """Least seconds of some rounds, after one that is not counted."""
    work()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return max(min(seconds), 1e-9)


def _free_host_bytes() -> int:
    """Bytes of host memory that are free, as far as the system says."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 34
