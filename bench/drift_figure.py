"""The figure of the case ``drift``: cuts over time, and over the size of the sample.

Flow: result of the case -> *SVG*.  Drawn with matplotlib, which only figures need.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.scaling_figure import check as check

LINES = {
    "fresh": ("fresh: all live bags", "#888888", "s", "-"),
    "rebuilt": ("rebuilt: the sample", "#3b78b4", "o", "-"),
    "stale": ("stale: first plan", "#d9822b", "^", "-"),
    "none": ("none: stock", "#5b9e5b", "", ":"),
}
SAMPLES = {"reservoir": ("#3b78b4", "o"), "share": ("#d9822b", "^")}
INCHES = (9.0, 3.6)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write the figure; equal results give equal files.

    Args:
        result: What the case printed: ``periods``, ``sampling``, ``source``.
        path: The SVG to write.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "drift", "svg.fonttype": "none"}):
        figure = Figure(INCHES, layout="constrained")
        over_time, over_size = figure.subplots(1, 2)
        names = [row["period"] for row in result["periods"]]
        for key, (label, colour, marker, style) in LINES.items():
            values = [row[key] for row in result["periods"]]
            over_time.plot(names, values, style, color=colour, marker=marker, label=label)
        for row in result["periods"]:
            if row["outcome"] == "stock":
                over_time.annotate(
                    "stock model", (row["period"], row["rebuilt"]), textcoords="offset points",
                    xytext=(0, 8), ha="center", fontsize=7,
                )  # fmt: skip
        over_time.set_title(str(result["source"]))
        over_time.set_xlabel("period")
        for how, (colour, marker) in SAMPLES.items():
            rows = [row for row in result["sampling"] if row["how"] == how]
            bags, cuts = [row["bags"] for row in rows], [row["cut"] for row in rows]
            over_size.plot(bags, cuts, color=colour, marker=marker, label=how)
        over_size.set_title("plan of the first period")
        over_size.set_xlabel("bags in the sample")
        over_size.set_xscale("log")
        for axes in (over_time, over_size):
            axes.set_ylabel("cut on held-out bags")
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False, fontsize=8)
            axes.grid(True, which="major", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})
