"""The result of serve-bench as text.

Flow: JSON object of the load test -> *lines* -> command line.
"""

from collections.abc import Mapping
from typing import Any

COLUMNS = ("p50", "p95", "p99", "service_p50", "service_p99", "throughput")


def serve_bench_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a table for each client count, then the ratios of ours to stock.

    Args:
        found: What the load test returned; latencies are milliseconds.
    """
    lines = [
        f"{found['subject']}: {found['requests']:,} requests in {found['rounds']} rounds, "
        f"{found['errors']} errors; milliseconds with transport and, as service, without"
    ]
    for label, cells in found["clients"].items():
        lines += ["", _heading(found, label)]
        lines += [_row(name, cell) for name, cell in cells.items()]
        lines += _ratio_lines(found["ratios"][label])
    return lines


def _heading(found: Mapping[str, Any], label: str) -> str:
    """Return the line above a table."""
    what = f"{label}, {found['rate']:g}/s" if found["pattern"] else f"{label} clients"
    return f"{what:>18} " + " ".join(f"{name:>11}" for name in (*COLUMNS, "rejected"))


def _row(name: str, cell: Mapping[str, Any]) -> str:
    """Return the line of one entrant."""
    numbers = [f"{cell[column]:>11.3f}" for column in COLUMNS[:-1]]
    return f"{name:>18} " + " ".join(
        [*numbers, f"{cell['throughput']:>11.0f}", f"{cell['rejected']:>11}"]
    )


def _ratio_lines(ratios: Mapping[str, Any]) -> list[str]:
    """Return ratios with their spread over the rounds."""
    return [
        f"{pair:>26}: "
        + ", ".join(f"{figure} {_interval(ratio[figure])}" for figure in COLUMNS[::2])
        for pair, ratio in ratios.items()
    ]


def _interval(ratio: Mapping[str, float]) -> str:
    """Return a ratio and its spread."""
    return f"{ratio['median']:.3f} ({ratio['q20']:.3f} to {ratio['q80']:.3f})"
