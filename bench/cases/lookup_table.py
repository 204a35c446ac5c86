"""lookup_table: runs of ``bench lookup --json`` as one Markdown table, with their range and spread.

Flow: JSON lines, a run each (several of the same dimension are what a range is of) -> a row an entrant.
A cell is the nanoseconds an id, least to greatest median of the runs, and the ratios to rivals: least to
greatest median, and in brackets the least p10 and the greatest p90 of their rounds.  A head says how many
runs ended with more processes at work than processors.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

# entrant -> the stock entrants whose ratios are shown, an op beside an op, a module beside a module
OPS: dict[str, tuple[str, ...]] = {
    "embedding_bag": (), "tbe": (), "tbe_inference": (), "plain_gather": ("embedding_bag",),
    "fused": ("embedding_bag", "tbe_inference"), "fused_other": ("fused",), "fused_ordered": ("embedding_bag",),
    "int8_stock": (), "int8_ahead": ("int8_stock",),
}  # fmt: skip
MODULES: dict[str, tuple[str, ...]] = {
    "stock_ebc": (),
    "in_line": ("stock_ebc",),
    "ahead": ("stock_ebc",),
}
Run = dict[str, Any]


def as_markdown(runs: Sequence[Run]) -> str:
    """Return the tables of ops and of modules.

    Args:
        runs: What ``bench lookup --json`` printed, any number for each dimension.
    """
    by_dim: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_dim[run["dim"]].append(run)
    parts = []
    for title, entrants in (("ops", OPS), ("modules", MODULES)):
        heads = [title, *(_head(dim, by_dim[dim]) for dim in sorted(by_dim))]
        rows = [
            [f"`{name}`", *(_cell(by_dim[dim], name, rivals) for dim in sorted(by_dim))]
            for name, rivals in entrants.items()
        ]
        lines = [heads, ["---"] * len(heads), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def _head(dim: int, runs: Sequence[Run]) -> str:
    """Return the head of a column: the dimension, how many runs, how many of them on a busy machine."""
    busy = sum(run["machine"]["load"] > run["machine"]["cores"] for run in runs)
    return f"D={dim} ({len(runs)} runs{f', {busy} of them busy' if busy else ''})"


def _cell(runs: Sequence[Run], name: str, rivals: Sequence[str]) -> str:
    """Return times and ratios of one entrant, a dash where no run has it."""
    times = [run["ns_per_id"][name]["median"] for run in runs if name in run["ns_per_id"]]
    if not times:
        return "-"
    parts = [_range(times, 1)]
    for rival in rivals:
        ratios = [run["ratios"][name][rival] for run in runs if rival in run["ratios"][name]]
        if ratios:
            ends = min(one["p10"] for one in ratios), max(one["p90"] for one in ratios)
            middle = _range([one["median"] for one in ratios], 2)
            parts.append(f"{middle}x `{rival}` ({ends[0]:.2f} to {ends[1]:.2f})")
    return ", ".join(parts)


def _range(values: Sequence[float], digits: int) -> str:
    """Return the least and the greatest value, once where they read alike."""
    ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


@click.command(name="lookup_table", help=__doc__)
@click.argument("runs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def command(runs: Path) -> None:
    """Read, print."""
    lines = runs.read_text(encoding="utf-8").splitlines()
    click.echo(as_markdown([json.loads(line) for line in lines if line.startswith("{")]))
