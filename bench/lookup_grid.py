"""The grid of ``bench lookup``: every shape in turn, kept on disk, resumed where it stopped.

Flow: shapes (and traces) -> *run_grid* -> one line of JSON per cell in a file -> a summary.
A cell loses where what the plan's model chooses, the module or the stock collection left as it is,
is slower than the stock collection by more than 3 % in the median; such a cell is measured twice more, and counts
when two of the three runs say so.  Losing cells are printed like winning ones.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from bench.kept_cells import add_cell, key_of, read_cells
from bench.measure import machine

DIMS, POOLINGS, BATCHES, THREADS, SAVED = (64, 128, 256), (30, 60, 145), (64, 512, 4096), (1, 2), (0.13, 0.25, 0.40)  # fmt: skip
LEAST_RATIO = 0.97  # stock time over ours
RUNS, RUNS_TO_COUNT = 3, 2


@dataclass(frozen=True)
class Cell:
    """One shape; of a trace (its path) only D, B and threads are ours to choose."""

    dim: int
    pooling: int
    batch: int
    threads: int
    saved: float
    trace: str | None = None

    @property
    def key(self) -> str:
        """What tells cells apart, also in the file."""
        return key_of(asdict(self))

    def __str__(self) -> str:
        """One line for people."""
        what = Path(self.trace).stem if self.trace else f"P={self.pooling} saved={self.saved}"
        return f"D={self.dim} {what} B={self.batch} T={self.threads}"


def cells(traces: tuple[Path, ...]) -> Iterator[Cell]:
    """Yield all shapes, then those of the traces."""
    for dim, pooling, batch, threads, saved in itertools.product(
        DIMS, POOLINGS, BATCHES, THREADS, SAVED
    ):
        yield Cell(dim, pooling, batch, threads, saved)
    for trace, dim, batch, threads in itertools.product(traces, DIMS, BATCHES[:2], THREADS):
        yield Cell(dim, 0, batch, threads, 0.0, str(trace))


def run_grid(
    measure: Callable[[Cell], dict[str, Any]], traces: tuple[Path, ...], out: Path
) -> dict[str, Any]:
    """Measure every cell that is not in ``out`` yet; return what all of them say.

    Args:
        measure: Measures a cell; returns what the lookup case does.
        traces: Traces whose cells follow the shapes.
        out: File of one JSON object per line; cells are added as they are finished.
    """
    commit = str(machine()["commit"])
    finished = read_cells(out, commit)
    wanted = list(cells(traces))
    left = [cell for cell in wanted if cell.key not in finished]
    start = time.perf_counter()
    for number, cell in enumerate(left):
        runs = _runs(measure, cell)
        finished[cell.key] = {"cell": asdict(cell), "commit": commit, "runs": runs}
        add_cell(out, finished[cell.key])
        each = (time.perf_counter() - start) / (number + 1)
        minutes = each * (len(left) - number - 1) / 60
        click.echo(f"{_line(cell, runs)}  [{len(left) - number - 1} left, {minutes:.0f} min]", err=True)  # fmt: skip
    results = [(cell, finished[cell.key]["runs"]) for cell in wanted]
    losing = [_line(cell, runs) for cell, runs in results if _loses(runs)]
    ratios = sorted(_forward(runs[0]) for _, runs in results)
    return {
        "cells": len(results),
        "losing": len(losing),
        "losing_cells": losing,
        "stock_over_forward": {
            "least": ratios[0],
            "median": ratios[len(ratios) // 2],
            "most": ratios[-1],
        },
        "modes": {
            mode: sum(runs[0]["mode"] == mode for _, runs in results) for mode in ("fused", "stock")
        },
        "file": str(out),
        "lines": [_line(cell, runs) for cell, runs in results],
    }


def _runs(measure: Callable[[Cell], dict[str, Any]], cell: Cell) -> list[dict[str, Any]]:
    """Measure a cell; if it loses, twice more."""
    runs: list[dict[str, Any]] = []
    while not runs or (_forward(runs[0]) < LEAST_RATIO and len(runs) < RUNS):
        runs.append(measure(cell))
        gc.collect()  # modules are cycles that hold gigabytes of tables
    return runs


def _loses(runs: list[dict[str, Any]]) -> bool:
    """Tell whether two of three runs say that a cell loses."""
    return sum(_forward(run) < LEAST_RATIO for run in runs) >= RUNS_TO_COUNT


def _forward(run: dict[str, Any]) -> float:
    """Return stock forward over ours, the median."""
    return float(run["ratios"]["forward"]["stock_ebc"]["median"])


def _line(cell: Cell, runs: list[dict[str, Any]]) -> str:
    """Return one line for people: the mode, and stock over ours of each way."""
    ratios = runs[0]["ratios"]
    parts = [f"{name} {ratios[name]['stock_ebc']['median']:.2f}" for name in ("in_line", "ahead")]
    tried = " ".join(f"{_forward(run):.2f}" for run in runs)
    return f"{cell}: {runs[0]['mode']}, forward {tried}; {', '.join(parts)}"
