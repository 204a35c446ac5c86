"""The result of serve-bench as text.

Flow: JSON object of the load test -> *lines* -> command line.
"""

from collections.abc import Mapping
from typing import Any

from grace_torchrec.views.numbers import known

COLUMNS = ("p50", "p95", "p99", "service_p50", "service_p99")
HEADS = (
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "service p50",
    "service p99",
    "right/s",
    "rejected",
    "errors",
)
RATIOS = ("p50", "p99", "service_p50", "throughput")


def serve_bench_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a table for each client count with its ratios, then what weakens them.

    Args:
        found: What the load test returned; latencies are milliseconds.
    """
    settings, machine = found["settings"], found["machine"]
    lines = [
        f"{found['subject']}: {found['requests']:,} requests in {found['rounds']} rounds, "
        f"{found['errors']} errors (those of the warm-up too)",
        "p50, p95, p99: from asking to the answer in another process; service: without transport; "
        "ms, medians over the rounds",
        f"rows of a request {settings['rows']}, of a batch {settings['max_batch']} at most; batches "
        f"in flight {settings['inflight']}, of streams and stock_workers {settings['workers']}; "
        f"torch threads {settings['threads']}; cores {machine['cores']}, "
        f"load before {machine['load_before']}",
    ]
    for label, cells in found["clients"].items():
        lines += ["", _heading(found, label)]
        lines += [_row(name, cell) for name, cell in cells.items()]
        if found["ratios"][label]:
            lines.append(f"{'ratios':>26}: {_head_of_ratios(found)}; ms: below 1 is faster")
        lines += _ratio_lines(found["ratios"][label])
    return [
        *lines,
        *(["", *(f"note: {note}" for note in found["notes"])] if found["notes"] else []),
    ]


def _heading(found: Mapping[str, Any], label: str) -> str:
    """Return the line above a table."""
    what = f"{label} client" + ("" if label == "1" else "s")
    if found["pattern"]:
        what = f"{label}, {found['rate']:g}/s"
    return f"{what:>18} " + " ".join(f"{name:>11}" for name in HEADS)


def _row(name: str, cell: Mapping[str, Any]) -> str:
    """Return the line of one entrant."""
    numbers = [f"{known(cell[column], '.3f'):>11}" for column in COLUMNS]
    counts = [f"{cell['throughput']:>11.0f}", f"{cell['rejected']:>11}", f"{cell['errors']:>11}"]
    return f"{name:>18} " + " ".join([*numbers, *counts])


def _ratio_lines(ratios: Mapping[str, Any]) -> list[str]:
    """Return ratios with their intervals."""
    return [
        f"{pair:>26}: "
        + ", ".join(
            f"{'right/s' if figure == 'throughput' else figure.replace('_', ' ')} "
            + _interval(ratio[figure])
            for figure in RATIOS
        )
        for pair, ratio in ratios.items()
    ]


def _head_of_ratios(found: Mapping[str, Any]) -> str:
    """Return what a ratio is, and its interval, where there are rounds enough for one."""
    least = found["rounds_for_an_interval"]
    if found["rounds"] < least:
        return f"median over the rounds (95 % interval: n/a, needs {least} rounds)"
    return "median over the rounds (its 95 % interval)"


def _interval(ratio: Mapping[str, float | None]) -> str:
    """Return a ratio and the interval of its median."""
    if ratio["low"] is None:
        return f"{known(ratio['median'], '.3f')} (n/a)"
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
