"""Launches: give each kernel of a profile to the operator whose range launched it.

Flow: a Chrome trace of torch.profiler, or an SQLite export of Nsight Systems
(``nsys export --type sqlite``) -> ranges, launches, kernels -> *OpStats*.
Source: RecOS, IJCAI'25, section 3.2 (collected with Nsight Systems).  The grid of an operator is
that of its largest kernel, its time the sum of its kernels; averaged over the rounds in the file.
"""

import bisect
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats

RANGE_PREFIX = "grace.op:"  # one run of an operator
VIEW_PREFIX = "grace.view:"  # what its views launch is added to it


@dataclass(frozen=True)
class Range:
    """A range that one thread marked: begin and end in microseconds."""

    name: str
    begin_us: float
    end_us: float
    thread: int


@dataclass(frozen=True)
class Launch:
    """A call that launched a kernel."""

    correlation: int
    begin_us: float
    duration_us: float
    thread: int


@dataclass(frozen=True)
class Kernel:
    """A kernel that ran."""

    correlation: int
    duration_us: float
    grid: int


def stats_of_launches(
    graph: OpGraph,
    ranges: Iterable[Range],
    launches: Iterable[Launch],
    kernels: Iterable[Kernel],
    source: str,
    device: str,
    bytes_out: Sequence[int] | None = None,
) -> OpStats:
    """Sum kernels by range.

    Args:
        graph: Operators; a range ``grace.op:NAME`` is one run of the operator NAME.
        ranges: Marked ranges; others are not counted.
        launches: Calls, found by correlation.
        kernels: Kernels, found by correlation.
        source: For the result.
        device: For the result.
        bytes_out: Bytes of each operator's output, if known.

    Raises:
        GraceError: an operator has no range.
    """
    by_thread: dict[int, list[Range]] = defaultdict(list)
    rounds: dict[str, int] = defaultdict(int)
    for found in ranges:
        if found.name.startswith((RANGE_PREFIX, VIEW_PREFIX)):
            by_thread[found.thread].append(found)
            rounds[found.name.removeprefix(RANGE_PREFIX)] += 1
    for marked in by_thread.values():
        marked.sort(key=lambda r: r.begin_us)
    ran = {kernel.correlation: kernel for kernel in kernels}
    time_us: dict[str, float] = defaultdict(float)
    host_us: dict[str, float] = defaultdict(float)
    grid: dict[str, int] = defaultdict(lambda: 1)
    for launch in launches:
        inside = _range_of(by_thread.get(launch.thread, []), launch.begin_us)
        kernel = ran.get(launch.correlation)
        if inside is None or kernel is None:
            continue
        name = inside.name.partition(":")[2]
        time_us[name] += kernel.duration_us
        host_us[name] += launch.duration_us
        grid[name] = max(grid[name], kernel.grid)
    stats = []
    for place, op in enumerate(graph.ops):
        runs = rounds[op.name]
        if not runs:
            raise GraceError(
                f"profile: no range {RANGE_PREFIX}{op.name}; mark every operator's run"
            )
        size = bytes_out[place] if bytes_out else 0
        stats.append(OpStat(time_us[op.name] / runs, host_us[op.name] / runs, grid[op.name], size))
    return OpStats.of(graph, stats, source, device)


def from_chrome_trace(
    graph: OpGraph, path: Path, device: str, bytes_out: Sequence[int] | None = None
) -> OpStats:
    """Read a trace that torch.profiler exported.

    Args:
        graph: Operators.
        path: The JSON file.
        device: Name of the GPU, for the result.
        bytes_out: Bytes of each operator's output, if known.

    Raises:
        GraceError: the file is not such a trace, or lacks an operator.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        ranges, launches, kernels = [], [], []
        for event in events:
            kind = event.get("cat")
            if kind == "user_annotation":
                end = float(event["ts"]) + float(event["dur"])
                ranges.append(Range(event["name"], float(event["ts"]), end, event["tid"]))
            elif kind in ("cuda_runtime", "cuda_driver"):
                number = int(event["args"]["correlation"])
                begin, length = float(event["ts"]), float(event["dur"])
                launches.append(Launch(number, begin, length, event["tid"]))
            elif kind == "kernel":
                x, y, z = event["args"]["grid"]
                number = int(event["args"]["correlation"])
                kernels.append(Kernel(number, float(event["dur"]), x * y * z))
    except (ValueError, KeyError, TypeError) as error:
        raise GraceError(f"{path}: not a trace of torch.profiler ({error})") from error
    return stats_of_launches(graph, ranges, launches, kernels, "cuda", device, bytes_out)


def from_nsight(graph: OpGraph, path: Path, device: str = "unknown GPU") -> OpStats:
    """Read an SQLite export of Nsight Systems whose NVTX ranges name the operators.

    Args:
        graph: Operators; ranges are named ``grace.op:NAME``.
        path: The SQLite file.
        device: Name of the GPU, for the result.

    Raises:
        GraceError: the file is missing, not such an export, or lacks an operator.
    """
    if not path.is_file():
        raise GraceError(f"{path}: no such file; write it with 'nsys export --type sqlite'")
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            ranges = [
                Range(name, begin / 1e3, end / 1e3, thread)
                for begin, end, name, thread in file.execute(_NVTX)
            ]
            launches = [
                Launch(number, begin / 1e3, (end - begin) / 1e3, thread)
                for begin, end, number, thread in file.execute(_RUNTIME)
            ]
            kernels = [
                Kernel(number, (end - begin) / 1e3, x * y * z)
                for begin, end, number, x, y, z in file.execute(_KERNEL)
            ]
    except sqlite3.Error as error:
        raise GraceError(f"{path}: not an SQLite export of Nsight Systems ({error})") from error
    return stats_of_launches(graph, ranges, launches, kernels, "nsight", device)


_NVTX = (
    "SELECT e.start, e.end, COALESCE(e.text, s.value), e.globalTid FROM NVTX_EVENTS e "
    "LEFT JOIN StringIds s ON e.textId = s.id WHERE e.end IS NOT NULL "
    "AND COALESCE(e.text, s.value) IS NOT NULL"
)
_RUNTIME = "SELECT start, end, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL = "SELECT start, end, correlationId, gridX, gridY, gridZ FROM CUPTI_ACTIVITY_KIND_KERNEL"


def _range_of(marked: Sequence[Range], at_us: float) -> Range | None:
    """Return the range of one thread that holds a time; ranges do not nest."""
    place = bisect.bisect_right(marked, at_us, key=lambda r: r.begin_us) - 1
    return marked[place] if place >= 0 and at_us <= marked[place].end_us else None
