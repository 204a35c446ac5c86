"""Sections of the report on sums: what more of them would cut, and how few are read most.

Flow: values of a plan -> *Html* -> report.
Shapes: R sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.views.html import Html, element
from grace_torchrec.views.report_parts import keys, numbers, section
from grace_torchrec.views.svg import Axis, Line, line_chart, share_axis
from grace_torchrec.views.tables import Grid

MOST_CHARTS = 12  # tables that are drawn; those with the most reads come first
MOST_POINTS = 160  # of a curve over sums
TOP_SUMS = 8
ENOUGH = 0.95


@dataclass(frozen=True)
class CutCurve:
    """What a table would save with fewer sums.

    Attributes:
        table: Its name.
        points: (number of sums, cut of bags rewritten in line, cut of bags rewritten ahead);
            None where that way cannot use such sums.
    """

    table: str
    points: Sequence[tuple[int, float | None, float | None]]


@dataclass(frozen=True, eq=False)
class ReadSums:
    """How often each sum of a table is read by the held-out bags.

    Attributes:
        table: Its name.
        sums: What is stored.
        reads_R: int64 ``[R]``.
    """

    table: str
    sums: StoredSums
    reads_R: npt.NDArray[np.int64]

    def few(self, share: float = ENOUGH) -> int:
        """Return how many of the most read sums take ``share`` of all reads of sums."""
        total = int(self.reads_R.sum())
        if not total:
            return 0
        running = np.cumsum(np.sort(self.reads_R)[::-1])
        return int(np.searchsorted(running, share * total)) + 1


def budget_section(curves: Sequence[CutCurve]) -> Html:
    """Return a chart a table: reads saved over the number of sums."""
    shown = [curve for curve in curves if curve.points][:MOST_CHARTS]
    if not shown:
        return section("budget", "Budget", element("p", "No table stores sums.", class_="soft"))
    return section(
        "budget",
        "Budget: what fewer sums would save",
        element(
            "p",
            "Share of row reads saved on held-out bags. Sums are kept in order of value, so a "
            "smaller budget keeps the best of them.",
        ),
        keys((("a", "bags rewritten ahead"), ("b", "bags rewritten in line"))),
        element("div", [_curve(curve) for curve in shown], class_="charts"),
        _more(len(curves) - len(shown)),
    )


def sums_section(tables: Sequence[ReadSums]) -> Html:
    """Return a chart a table: reads of the most read sums, and the top of them."""
    shown = [table for table in tables if int(table.reads_R.sum())][:MOST_CHARTS]
    if not shown:
        return section("sums", "Sums", element("p", "No sums are read.", class_="soft"))
    return section(
        "sums",
        "Sums: how few take most of the reads",
        element("p", "Reads of stored sums by held-out bags, the most read sums first."),
        element("div", [_reads(table) for table in shown], class_="charts"),
        _more(len(tables) - len(shown)),
    )


def _curve(curve: CutCurve) -> Html:
    """Return the chart of one table."""
    lines = [
        Line(
            name,
            style,
            [(num, cut) for num, *cuts in curve.points if (cut := cuts[way]) is not None],
        )
        for name, style, way in (("ahead", "a", 1), ("in line", "b", 0))
    ]
    lines = [line for line in lines if line.points]
    cuts = [cut for line in lines for _, cut in line.points]
    sums = [num for num, *_ in curve.points]
    ticks = [(num, _short(num)) for num in sums]
    last = curve.points[-1]
    told = f"{last[0]:,} sums save {_cut(last[2])} ahead, {_cut(last[1])} in line."
    rows = [(f"{num:,}", _cut(ahead), _cut(in_line)) for num, in_line, ahead in curve.points]
    return element(
        "figure",
        element("h3", curve.table),
        line_chart(
            lines,
            Axis("sums", ticks, log=True),
            share_axis("reads saved", max(cuts, default=0.0)),
            f"{curve.table}: {told}",
        ),
        element("figcaption", told),
        numbers(Grid(curve.table, ("sums", "ahead", "in line"), rows)),
    )


def _reads(table: ReadSums) -> Html:
    """Return the chart of one table and its most read sums."""
    order = np.argsort(-table.reads_R, kind="stable")
    total = int(table.reads_R.sum())
    running = np.cumsum(table.reads_R[order]) / total
    num, few = table.reads_R.size, table.few()
    at = np.unique(np.geomspace(1, num, MOST_POINTS).astype(np.int64))
    points = [(float(n), float(running[n - 1])) for n in at]
    marks = sorted({10**power for power in range(len(str(num))) if 10**power < num})
    across = [*marks, num] if num > 1 else [1, 2]
    if len(across) > 2 and across[-1] < 3 * across[-2]:
        del across[-2]  # two texts would touch
    told = f"{few:,} of {num:,} sums ({few / num:.1%}) take {ENOUGH:.0%} of the reads of sums."
    return element(
        "figure",
        element("h3", table.table),
        line_chart(
            [Line("reads", "a", points)],
            Axis("sums, the most read first", [(n, _short(n)) for n in across], log=True),
            share_axis("share of reads", 1.0),
            f"{table.table}: {told}",
            mark=few,
        ),
        element("figcaption", told),
        numbers(_top(table, order, total), f"Show the top {min(TOP_SUMS, num)}"),
    )


def _top(table: ReadSums, order: npt.NDArray[np.int64], total: int) -> Grid:
    """Return the most read sums with their items."""
    indptr, items = table.sums.set_indptr_R1, table.sums.set_items_S
    rows = [
        (
            " + ".join(map(str, items[indptr[row] : indptr[row + 1]].tolist())),
            f"{int(table.reads_R[row]):,}",
            f"{table.reads_R[row] / total:.2%}",
        )
        for row in order[:TOP_SUMS].tolist()
    ]
    return Grid(table.table, ("items", "reads", "share"), rows, frozenset({"items"}))


def _more(left: int) -> Html | None:
    """Say how many tables are not drawn."""
    if left <= 0:
        return None
    return element("p", f"{left:,} more tables are not drawn; inspect lists them.", class_="note")


def _cut(cut: float | None) -> str:
    """Return a cut, a dash where that way of rewriting cannot use the sums."""
    return "-" if cut is None else f"{cut:.1%}"


def _short(number: int) -> str:
    """Return a count in few letters.

    >>> [_short(n) for n in (950, 1200, 60_000, 2_500_000)]
    ['950', '1.2k', '60k', '2.5M']
    """
    for unit, scale in (("M", 1_000_000), ("k", 1_000)):
        if number >= scale:
            value = number / scale
            return (
                f"{value:.0f}{unit}" if value >= 10 or value == int(value) else f"{value:.1f}{unit}"
            )
    return str(number)
