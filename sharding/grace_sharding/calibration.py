"""Calibration: the rates of this machine's memories, measured where it can be.

Flow: this machine -> *Calibration* -> memory model -> plans.  Measured: copying (what the memory can
do at best) and gathering rows at random (what lookups do), in host memory and, where there is a GPU,
in HBM; the link between them by copying from page-locked memory; and one more kernel
of a CUDA graph.
Without a GPU two rates are measured, and the calibration says what is missing (lookups are timed by
who knows them).  A rate is that of
the fastest round; the spread of the rounds and the load of the machine stand beside it.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_sharding.memory_files import save_memory
from grace_sharding.memory_tiers import MemoryModel, MemoryModelError, Tier

HOST_TABLE_BYTES = 1 << 30  # far beyond what caches hold
GATHERED_BYTES = 1 << 26
ROUNDS = 5
MOST_LOAD = (
    1.5  # processes that want a core, for each core; those of whoever measures are among them
)
MOST_UNSTEADY = 1.5  # median over least time of the rounds: beyond, the machine was busy
KERNELS = 200  # of the graph that is replayed to time one kernel more
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
        spread: Of each rate, what 20 % and 80 % of the rounds stay under.
        unsteady: Rates and lookups whose rounds differ so much that the machine was busy with something else.
        load: Processes that wanted a core before, over a minute; None where the system does not say.
        cores: Of the machine.
        lookup_ns: Nanoseconds an id of lookups on one core, by name, where a CPU does them and they were
            timed.
    """

    memory: MemoryModel
    bytes_per_s: dict[str, float]
    row_bytes: int
    unmeasured: tuple[str, ...]
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    unsteady: tuple[str, ...] = ()
    load: float | None = None
    cores: int = 0
    lookup_ns: dict[str, float] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory model, with the measurements beside it.

        Raises:
            MemoryModelError: the file cannot be written.
        """
        notes = {
            "bytes_per_s": self.bytes_per_s,
            "row_bytes": self.row_bytes,
            "unmeasured": list(self.unmeasured),
            "spread": self.spread,
            "unsteady": list(self.unsteady),
            "load": self.load,
            "cores": self.cores,
            "lookup_ns": self.lookup_ns,
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
    load, found = load_now(), _host_rates(row_bytes, table_bytes)
    unmeasured = ["host memory with all cores: one thread was measured"]
    gpu = _gpu_rates(row_bytes, table_bytes)
    host_bytes = int(SHARE_FOR_ROWS * _free_host_bytes())
    if gpu is None:
        unmeasured += ["HBM: there is no GPU that torch can use", "host link: there is no GPU"]
        memory = MemoryModel(
            platform.node() or "this machine",
            (Tier("host", host_bytes, found["host_gather"].best),),
            cache_bytes=last_cache_bytes(),
        )
    else:
        unmeasured.append("single rows over the host link: copies from page-locked memory stand in")
        found |= gpu.rates
        link = min(found["link_copy"].best, found["host_gather"].best)
        hbm_bytes = int(SHARE_FOR_ROWS * gpu.free_bytes)
        memory = MemoryModel(
            gpu.name,
            (Tier("hbm", hbm_bytes, found["hbm_gather"].best), Tier("host", host_bytes, link)),
            cache_bytes=gpu.cache_bytes,
            launch_s=gpu.launch_s,
        )
    return Calibration(
        memory=memory,
        bytes_per_s={name: rate.best for name, rate in found.items()},
        row_bytes=row_bytes,
        unmeasured=tuple(unmeasured),
        spread={name: (rate.q20, rate.q80) for name, rate in found.items()},
        unsteady=tuple(name for name, rate in found.items() if rate.is_unsteady),
        load=load,
        cores=os.cpu_count() or 0,
    )


@dataclass(frozen=True)
class _Rate:
    """Bytes a second over some rounds."""

    best: float
    q20: float
    q80: float
    is_unsteady: bool

    @classmethod
    def of(cls, num_bytes: int, work: Callable[[], object]) -> "_Rate":
        """Time work that moves so many bytes."""
        seconds = _seconds(work)
        rates = num_bytes / seconds
        low, high = np.quantile(rates, [0.2, 0.8]).tolist()
        return cls(float(rates.max()), low, high, is_unsteady(seconds))


@dataclass(frozen=True)
class _Gpu:
    """What was measured of a GPU, and what it says of itself."""

    name: str
    free_bytes: int
    cache_bytes: int | None
    launch_s: float
    rates: dict[str, _Rate]


def last_cache_bytes() -> int | None:
    """Return the bytes of the largest cache of this processor, None where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:])
        if unit is not None and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << unit)
    return max(sizes, default=0) or None


def is_unsteady(seconds_R: npt.NDArray[np.float64]) -> bool:
    """Tell whether rounds differ so much that the machine was busy with something else.

    Args:
        seconds_R: Seconds of each round, one or more.
    """
    return bool(np.median(seconds_R) > MOST_UNSTEADY * seconds_R.min())


def is_loaded(load: float | None, cores: int) -> bool:
    """Tell whether so many other processes want the cores that no time means much.

    Args:
        load: As :func:`load_now` told.
        cores: Of the machine, 0 where they are not known.
    """
    return load is not None and load > MOST_LOAD * cores > 0


def load_now() -> float | None:
    """Return how many processes want a core, over the last minute; None where nobody says."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _host_rates(row_bytes: int, table_bytes: int) -> dict[str, _Rate]:
    """Measure host memory: one thread copies, one gathers rows."""
    rng = np.random.default_rng(0)
    table = np.zeros((table_bytes // row_bytes, row_bytes // 4), np.float32)
    table += 1.0  # pages that are only reserved read no memory
    num_rows = min(table.shape[0], max(1, GATHERED_BYTES // row_bytes))
    rows, out = rng.integers(0, table.shape[0], num_rows), np.empty_like(table[:num_rows])
    source, target = table[: table.shape[0] // 2], np.empty_like(table[: table.shape[0] // 2])
    return {
        "host_copy": _Rate.of(source.nbytes, lambda: np.copyto(target, source)),
        "host_gather": _Rate.of(
            out.nbytes, lambda: np.take(table, rows, axis=0, out=out, mode="clip")
        ),
    }


def _gpu_rates(row_bytes: int, table_bytes: int) -> _Gpu | None:
    """Measure HBM, the link and a launch; None without a GPU."""
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
    landed, one = torch.empty_like(pinned, device="cuda"), torch.zeros(1, device="cuda")

    def waited(work: Callable[[], object]) -> Callable[[], None]:
        """Return work on the GPU that is waited for."""

        def wait() -> None:
            """Do it and wait for it."""
            work()
            torch.cuda.synchronize()

        return wait

    one.add_(1)  # loaded before it is recorded
    torch.cuda.synchronize()
    kernels = torch.cuda.CUDAGraph()
    with torch.cuda.graph(kernels):  # replayed without Python and torch between two kernels
        for _ in range(KERNELS):
            one.add_(1)

    rates = {
        "hbm_copy": _Rate.of(table.nbytes, waited(lambda: copied.copy_(table))),
        "hbm_gather": _Rate.of(
            gathered.nbytes, waited(lambda: torch.index_select(table, 0, rows, out=gathered))
        ),
        "link_copy": _Rate.of(
            pinned.nbytes, waited(lambda: landed.copy_(pinned, non_blocking=True))
        ),
    }
    return _Gpu(
        name=torch.cuda.get_device_name(),
        free_bytes=int(free),
        cache_bytes=getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None) or None,
        launch_s=float(_seconds(waited(kernels.replay)).min()) / KERNELS,
        rates=rates,
    )


def _seconds(work: Callable[[], object]) -> npt.NDArray[np.float64]:
    """Seconds of some rounds, after one that is not counted."""
    work()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return np.array([max(each, 1e-9) for each in seconds], np.float64)


def _free_host_bytes() -> int:
    """Bytes of host memory that are free, as far as the system says."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 34
