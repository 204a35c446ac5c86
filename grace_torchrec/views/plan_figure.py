"""Plan figure: how long held-out bags keep each memory busy, stock and planned, table by table.

Flow: PlanSummary -> *figure* of matplotlib -> TensorBoard, a PNG file.  The report draws the same
figures as SVG.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from grace_torchrec.plans.summary import PlanSummary, TableSummary
from grace_torchrec.views.claim_text import speed_text
from grace_torchrec.views.tables import short_names

MOST_TABLES = 20
COLOURS = {"hbm": "#1d5fb8", "host": "#b3500b"}
STOCK_COLOURS = {"hbm": "#98a2ae", "host": "#7b8694"}
MEMORY = {"hbm": "HBM", "host": "host memory"}


def plan_figure(summary: PlanSummary) -> Any | None:
    """Return a figure of the tables that take longest; None where matplotlib is not installed.

    A bar for each memory, stock above planned: the memories work side by side, so the longest bar
    is the time.
    """
    if find_spec("matplotlib") is None:
        return None
    slowest = sorted(summary.tables, key=lambda t: -max(t.stock_s or 0, t.time_s or 0))
    tables = slowest[:MOST_TABLES]
    names = short_names([table.table for table in summary.tables])
    figure = import_module("matplotlib.figure").Figure(
        figsize=(8, 1.8 + 0.6 * max(len(tables), 1)), layout="constrained"
    )
    axes = figure.subplots()
    for place, table in enumerate(tables):
        for number, (label, time_s, colour) in enumerate(bars := _bars(table)):
            offset = 0.8 * ((number + 0.5) / len(bars) - 0.5)
            axes.barh(place + offset, time_s * 1e6, 0.7 / len(bars), color=colour, label=label)
    axes.set_yticks(range(len(tables)), [names[table.table] for table in tables])
    axes.set_ylim(len(tables) - 0.5, -0.5)
    axes.set_xlabel("us that held-out bags keep a memory busy (modelled)")
    told = f"{summary.machine}: {summary.cut:.1%} of the row reads saved, "
    axes.set_title(f"{told}{speed_text(summary)}", loc="left")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(named))
    return figure


def _bars(table: TableSummary) -> list[tuple[str, float, str]]:
    """Return (label, seconds, colour) of each bar of one table, from above."""
    stock = [(part.tier, "stock", part.stock_s, STOCK_COLOURS) for part in table.tiers]
    planned = [(part.tier, "planned", part.time_s, COLOURS) for part in table.tiers]
    return [
        (f"{what}, {MEMORY.get(tier, tier)}", time_s or 0.0, colours.get(tier, "#555555"))
        for tier, what, time_s, colours in (*stock, *planned)
    ]
