"""Sections of the report on sums: what more of them would cut, and how few are read most.

Flow: values of a plan -> *Html* -> report.
Shapes: R sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.plans.curve import CurvePoint
from grace_torchrec.sums.count_reads import MOST_READS, few_take_most
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.views.html import Html, element
from grace_torchrec.views.report_parts import keys, numbers, section
from grace_torchrec.views.svg import Axis, Line, line_chart, share_axis
from grace_torchrec.views.tables import Grid

MOST_CHARTS = 12  # tables that are drawn; those with the most reads come first
MOST_POINTS = 160  # of a curve over sums
TOP_SUMS = 8


@dataclass(frozen=True)
class CutCurve:
    """What a table would save with fewer sums.

    Attributes:
        table: Its name.
        points: Cuts of the best candidates, at rising budgets.
    """

    table: str
    points: Sequence[CurvePoint]


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


def budget_section(curves: Sequence[CutCurve]) -> Html:
    """Return a chart a table: reads saved over the number of sums."""
    shown = [curve for curve in curves if curve.points][:MOST_CHARTS]
    if not shown:
        return section(
            "budget", "Budget", element("p", "No table could store sums.", class_="soft")
        )
    return section(
        "budget",
        "Budget: what fewer sums would save",
        element(
            "p",
            "Share of row reads that the best candidate saves on held-out bags, by the number of "
            "sums it may store. Memory and time decide which of them a plan takes.",
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
        element(
            "p", "Reads of stored sums by the validation bags, which took part in the last fit."
        ),
        element("div", [_reads(table) for table in shown], class_="charts"),
        _more(len(tables) - len(shown)),
    )


def _curve(curve: CutCurve) -> Html:
    """Return the chart of one table."""
    points = curve.points
    lines = [
        Line("in line", "b", [(point.num_sums, point.in_line_cut) for point in points]),
        Line("ahead", "a", [(point.num_sums, point.ahead_cut) for point in points]),
    ]
    ticks = [(point.num_sums, _short(point.num_sums)) for point in points]
    last = points[-1]
    told = (
        f"Up to {last.num_sums:,} sums save {last.ahead_cut:.1%} ahead, "
        f"{last.in_line_cut:.1%} in line."
    )
    rows = [
        (f"{point.num_sums:,}", f"{point.ahead_cut:.1%}", f"{point.in_line_cut:.1%}")
        for point in points
    ]
    return element(
        "figure",
        element("h3", curve.table),
        line_chart(
            lines,
            Axis("sums", ticks, log=True),
            share_axis("reads saved", max(point.ahead_cut for point in points)),
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
    num, few = table.reads_R.size, few_take_most(table.reads_R)
    at = np.unique(np.geomspace(1, num, MOST_POINTS).astype(np.int64))
    points = [(float(n), float(running[n - 1])) for n in at]
    marks = sorted({10**power for power in range(len(str(num))) if 10**power < num})
    across = [*marks, num] if num > 1 else [1, 2]
    if len(across) > 2 and across[-1] < 3 * across[-2]:
        del across[-2]  # two texts would touch
    told = f"{few:,} of {num:,} sums ({few / num:.1%}) take {MOST_READS:.0%} of the reads of sums."
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
