"""The grid of ``bench placement``: every beta and capacity, each trace alone and as tables of one model.

Flow: traces -> cells, those of one trace and capacity one after the other -> a line of JSON per cell
in a file -> a table.  Fitting does not look at the machine: cells that differ in beta share it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from bench.kept_cells import Cell, add_cell, key_of, read_cells
from bench.measure import machine

BETAS = (0.013, 0.036, 0.1, 0.294, 1.0)  # of PCIe, of NVLink-C2C and of one uniform memory
CAPACITIES = (0.25, 0.5, 1.0, 2.0)
MIXTURES = (2, 4, 8)  # the first so many traces
OURS = "ours"
HEAD = """# Placement: every beta, every capacity

Throughput on held-out bags, 1.00 is all rows in HBM without sums. Made by `python -m bench placement --grid FILE
--markdown PAGE`, a `--trace` for each table; what the columns mean stands in [placement.md](placement.md). *Best* is
the fastest of all rivals in the cell."""
EVEN = 0.995  # of the best rival: what is below it has lost, and stands in the summary by name


def cells(traces: Sequence[Path], asked: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells of every trace, then those of the mixtures."""
    alone = [[trace] for trace in traces]
    mixed = [list(traces[:size]) for size in MIXTURES if size <= len(traces)]
    for tables in alone + mixed:
        for capacity in CAPACITIES:
            for beta in BETAS:
                yield {
                    "traces": [str(table) for table in tables],
                    "beta": beta,
                    "capacity": capacity,
                    "entrants": list(asked),
                }


def run_grid(
    measure: Callable[[Cell], dict[str, Any]],
    traces: Sequence[Path],
    asked: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """Measure every cell that is not in ``out`` yet; return all of them.

    Args:
        measure: Measures a cell; returns what the placement case does.
        traces: Traces, in the order in which they are mixed.
        asked: Entrants of every cell.
        out: File of one JSON object per line; cells are added as they are finished.
    """
    commit = str(machine()["commit"])
    finished, wanted = read_cells(out, commit), list(cells(traces, asked))
    left = [cell for cell in wanted if key_of(cell) not in finished]
    start = time.perf_counter()
    for number, cell in enumerate(left, 1):
        entry = {"cell": cell, "commit": commit, **measure(cell)}
        finished[key_of(cell)] = entry
        add_cell(out, entry)
        minutes = (time.perf_counter() - start) / number * (len(left) - number) / 60
        click.echo(f"{_line(entry)}  [{len(left) - number} left, {minutes:.0f} min]", err=True)
    return {"cells": [finished[key_of(cell)] for cell in wanted], "file": str(out)}


def _line(entry: dict[str, Any]) -> str:
    """Return one line for people."""
    cell = entry["cell"]
    names = "+".join(Path(trace).stem for trace in cell["traces"])
    ratios = " ".join(f"{name} {value:.2f}" for name, value in entry["throughput"].items())
    return f"{names} beta={cell['beta']} capacity={cell['capacity']}: {ratios}"


def as_markdown(entries: Sequence[dict[str, Any]]) -> str:
    """Return every cell as a row of a Markdown table, those of one machine together.

    Args:
        entries: Cells as :func:`run_grid` returns them.
    """
    asked = list(entries[0]["cell"]["entrants"])
    rivals = [name for name in asked if name != OURS]
    heads = ["tables", *asked, "bound", f"ours / best of {', '.join(rivals)}", "imbalance"]
    parts = [HEAD, "## Summary", summary(entries)]
    for capacity in CAPACITIES:
        for beta in BETAS:
            here = _at(entries, beta, capacity)
            if not here:
                continue
            ratios = [over_best(entry) for entry in here]
            rows = [
                [_names(entry), *(f"{entry['throughput'][name]:.2f}" for name in asked),
                 f"{entry['throughput']['any_pair_bound']:.2f}", f"{ratio:.2f}",
                 f"{entry['imbalance']['ours']:.0%}"]
                for entry, ratio in zip(here, ratios, strict=True)
            ]  # fmt: skip
            lost = sum(ratio < EVEN for ratio in ratios)
            parts += [
                f"## Capacity {capacity:g}, beta {beta:g}",
                f"Ours below the best in {lost} of {len(here)} models, least {min(ratios):.2f}, "
                f"mean {sum(ratios) / len(ratios):.2f}.",
                _table(heads, rows),
            ]
    return "\n\n".join(parts) + "\n"


def summary(entries: Sequence[dict[str, Any]]) -> str:
    """Return ours over the best rival by machine: the mean of single tables, and which lose.

    Args:
        entries: Cells as :func:`run_grid` returns them.
    """
    rows = []
    for capacity in CAPACITIES:
        row = [f"{capacity:g}"]
        for beta in BETAS:
            alone = [one for one in _at(entries, beta, capacity) if len(one["cell"]["traces"]) == 1]
            ratios = {_names(one): over_best(one) for one in alone}
            lost = [
                f"{name} {ratio:.2f}"
                for name, ratio in sorted(ratios.items(), key=lambda item: item[1])
                if ratio < EVEN
            ]
            mean = f"{sum(ratios.values()) / len(ratios):.2f}" if ratios else "-"
            row.append(f"{mean} ({', '.join(lost)})" if lost else mean)
        rows.append(row)
    return _table(["capacity", *(f"beta {beta:g}" for beta in BETAS)], rows)


def _names(entry: dict[str, Any]) -> str:
    """Return the traces of a cell; a mixture by how many it holds and what comes last."""
    names = [Path(trace).stem for trace in entry["cell"]["traces"]]
    return names[0] if len(names) == 1 else f"the first {len(names)}, {names[0]} to {names[-1]}"


def over_best(entry: dict[str, Any]) -> float:
    """Return the throughput of ours over that of the best of all rivals in the cell."""
    rivals = [name for name in entry["cell"]["entrants"] if name != OURS]
    return float(entry["throughput"][OURS] / max(entry["throughput"][name] for name in rivals))


def _at(entries: Sequence[dict[str, Any]], beta: float, capacity: float) -> list[dict[str, Any]]:
    """Return the cells of one machine."""
    return [
        entry
        for entry in entries
        if (entry["cell"]["beta"], entry["cell"]["capacity"]) == (beta, capacity)
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])
