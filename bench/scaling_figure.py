"""The figure of the case ``scaling``: seconds of each step and memory over the ids of the trace.

Flow: result of the case -> *SVG*.  Drawn with matplotlib, which only this file needs.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grace_torchrec.errors import GraceError

STEPS = {
    "generate_s": ("generate", "#888888", "s"),
    "count_s": ("count pairs", "#3b78b4", "o"),
    "fit_s": ("merge", "#d9822b", "^"),
}
INCHES = (9.0, 3.6)


def check(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is measured.

    Raises:
        GraceError: matplotlib is missing, or ``path`` is no file name that ends in .svg.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise GraceError("--figure needs matplotlib; install it: pip install matplotlib")
    if path.suffix != ".svg" or not path.absolute().parent.is_dir():
        raise GraceError(f"{path}: give the name of an .svg file in a folder that is there")


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write the figure; equal results give equal files.

    Args:
        result: What the case printed: ``method``, ``sizes``, ``slopes``.
        path: The SVG to write.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = sorted(result["sizes"], key=lambda row: row["ids"])
    ids = [row["ids"] for row in rows]
    with matplotlib.rc_context({"svg.hashsalt": "scaling", "svg.fonttype": "none"}):
        figure = Figure(INCHES, layout="constrained")
        seconds, memory = figure.subplots(1, 2)
        for name, (label, colour, marker) in STEPS.items():
            slope = result["slopes"][name]
            text = label if slope is None else f"{label} (slope {slope:.2f})"
            values = [max(row[name], 1e-3) for row in rows]
            seconds.plot(ids, values, color=colour, marker=marker, label=text)
        seconds.set_ylabel("seconds")
        seconds.set_title(f"generated traces, {result['method']}, one sum an item")
        seconds.legend(frameon=False)
        memory.plot(ids, [row["peak_mb"] / 1024 for row in rows], color="#5b9e5b", marker="D")
        memory.set_ylabel("peak memory of the process, GiB")
        memory.set_title("generator included")
        for row in rows:
            memory.annotate(
                f"{_short(row['items'])} items\n{_short(row['users'])} users",
                (row["ids"], row["peak_mb"] / 1024),
                textcoords="offset points",
                xytext=(4, 14) if row is rows[0] else (-6, 4),  # beside the axis there is no room
                ha="left" if row is rows[0] else "right",
                fontsize=7,
            )
        for axes in (seconds, memory):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("ids in all bags")
            axes.grid(True, which="major", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _short(number: int) -> str:
    """Return a number with its thousands or millions as a letter.

    >>> _short(10_000), _short(2_345_346)
    ('10k', '2.3M')
    """
    if number < 1_000_000:
        return f"{number / 1e3:.3g}k"
    return f"{number / 1e6:.2g}M"
