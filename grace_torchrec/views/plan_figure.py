"""Plan figure: how long held-out bags keep each memory busy, stock and planned, table by table.

Flow: PlanSummary -> *figure* of matplotlib -> TensorBoard, a PNG file.  The report draws the same
figures as SVG.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from grace_torchrec.plans.summary import PlanSummary, TableSummary
from grace_torchrec.views.tables import short_names

MOST_TABLES = 20
COLOURS = {"hbm": "#1d5fb8", "host": "#b3500b"}
STOCK_COLOURS = {"hbm": "#98a2ae", "host": "#7b8694"}
MEMORY = {"hbm": "HBM", "host": "host memory"}


def plan_figure(summary: PlanSummary) -> Any | None:
    """Return a figure of the tables that take longest; None where matplotlib is not installed.

    Two bars a table: stock above, planned below, each with the time of both memories end to end.
    """
    if find_spec("matplotlib") is None:
        return None
    slowest = sorted(summary.tables, key=lambda t: -max(t.stock_s or 0, t.time_s or 0))
    tables = slowest[:MOST_TABLES]
    names = short_names([table.table for table in summary.tables])
    figure = import_module("matplotlib.figure").Figure(
        figsize=(8, 1.6 + 0.45 * max(len(tables), 1)), layout="constrained"
    )
    axes = figure.subplots()
    for place, table in enumerate(tables):
        _bars(axes, place, table)
    axes.set_yticks(range(len(tables)), [names[table.table] for table in tables])
    axes.invert_yaxis()
    axes.set_xlabel("us that held-out bags keep a memory busy (modelled)")
    told = f"{summary.machine}: {summary.cut:.1%} of the row reads saved, "
    axes.set_title(f"{told}{summary.time_ratio:.2f} times as fast", loc="left")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        axes.legend(named.values(), named.keys(), loc="lower right")
    return figure


def _bars(axes: Any, place: int, table: TableSummary) -> None:
    """Draw the two bars of one table."""
    ends = {"stock": 0.0, "planned": 0.0}
    for part in table.tiers:
        for what, time_s, colours in (
            ("stock", part.stock_s, STOCK_COLOURS),
            ("planned", part.time_s, COLOURS),
        ):
            if not time_s:
                continue
            label = f"{what}, {MEMORY.get(part.tier, part.tier)}"
            offset = -0.2 if what == "stock" else 0.2
            colour = colours.get(part.tier, "#555555")
            axes.barh(
                place + offset, time_s * 1e6, 0.36, left=ends[what], color=colour, label=label
            )
            ends[what] += time_s * 1e6
