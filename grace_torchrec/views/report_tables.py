"""Sections of the report on time and verdicts.

Flow: PlanSummary -> *Html* -> report.
"""

from collections.abc import Sequence

from grace_torchrec.plans.summary import PlanSummary, TableSummary, TierPart, slack_s
from grace_torchrec.views.html import Html, element
from grace_torchrec.views.numbers import bytes_text, known, seconds_text, share_text
from grace_torchrec.views.report_parts import numbers, pill, scroll, section
from grace_torchrec.views.svg import bar
from grace_torchrec.views.tables import Grid, short_names

MEMORY = {"hbm": "HBM", "host": "Host memory"}
MOST_PARTS = 8  # of a bar; tables that take less time are drawn as one


def time_section(summary: PlanSummary) -> Html:
    """Return how long the held-out bags keep each memory busy, table by table."""
    stock = summary.stock_s or 0.0
    longest = max(summary.time_s or 0.0, stock)
    rows = [_tier_row(part, summary, longest) for part in summary.tiers]
    rows.append(
        _bar_row(
            "Stock model",
            seconds_text(stock),
            bar([(stock, "stock model")], longest, "stock", "Stock model, slower memory"),
            _stock_line(summary),
        )
    )
    return section(
        "time",
        "Time in each memory",
        element(
            "p",
            "Both memories are read at the same time, so a lookup takes as long as the slower one. "
            "Modelled for the held-out bags from the bandwidths of the machine.",
        ),
        element("div", rows, class_="panel"),
        numbers(_time_grid(summary)),
    )


def verdict_section(summary: PlanSummary) -> Html:
    """Return every table with its verdict, figures and reason."""
    names = short_names([table.table for table in summary.tables])
    longest = max(
        [max(table.time_s or 0.0, table.stock_s or 0.0) for table in summary.tables], default=0.0
    )
    heads = (
        "Table",
        "Verdict",
        "Reads saved",
        "Extra memory",
        "Time, modelled",
        "Stock, modelled",
        "Reason",
    )
    table = element(
        "table",
        element("thead", element("tr", [_head(name) for name in heads])),
        element("tbody", [_verdict_row(t, names[t.table], longest) for t in summary.tables]),
        class_="cards sortable",
        id="verdicts",
    )
    counts = summary.verdicts()
    choices = [("", f"All {len(summary.tables):,}")]
    choices += [(verdict, f"{verdict} {count:,}") for verdict, count in counts.items()]
    buttons = [
        element(
            "button", text, type="button", data_show=verdict, aria_pressed=str(not verdict).lower()
        )
        for verdict, text in (choices if len(counts) > 1 else [])
    ]
    shown = element("div", buttons, class_="choose script-only", role="group", aria_label="Show")
    return section(
        "tables",
        "Tables",
        element(
            "p",
            "Reads saved and times are of held-out bags, with sums that were fitted without them. "
            "A table that would not gain keeps its stock lookup.",
        ),
        shown if buttons else None,
        element("div", scroll(table, "Tables"), class_="panel"),
    )


def _tier_row(part: TierPart, summary: PlanSummary, longest: float) -> Html:
    """Return the bar of one memory, its tables from left to right."""
    names = short_names([table.table for table in summary.tables])
    times = [
        (own.time_s or 0.0, names[table.table])
        for table in summary.tables
        for own in table.tiers
        if own.tier == part.tier
    ]
    ranked = sorted(times, reverse=True)
    rest = sum(value for value, _ in ranked[MOST_PARTS:])
    parts = [*ranked[:MOST_PARTS], (rest, "other tables")]
    kept = [(value, name) for value, name in parts if value]
    total = part.time_s or 0.0
    told = [f"{name} {value / total:.0%}" for value, name in kept[:4]]
    waits = slack_s(part, summary.tiers) or 0.0
    under = ", ".join(told) + (
        f". Waits {seconds_text(waits)} for the slower one." if waits else ""
    )
    return _bar_row(
        MEMORY.get(part.tier, part.tier),
        seconds_text(total),
        bar(
            [(value, f"{name}: {seconds_text(value)}") for value, name in kept],
            longest,
            part.tier,
            f"{MEMORY.get(part.tier, part.tier)}: {seconds_text(total)}",
        ),
        under or "Nothing is read here.",
    )


def _stock_line(summary: PlanSummary) -> str:
    """Say how long the model as it is keeps each memory busy."""
    names = {"hbm": "HBM", "host": "host memory"}
    busy = [(names.get(p.tier, p.tier), p.stock_s) for p in summary.tiers if p.stock_s]
    if len(busy) == 1:
        return f"The model as it is, all of it read from {busy[0][0]}."
    times = ", ".join(f"{name} {seconds_text(time_s)}" for name, time_s in busy)
    return f"The model as it is: {times or 'nothing is read'}."


def _bar_row(what: str, value: str, drawn: Html, under: str) -> Html:
    """Return one bar with its name, its number and a line under it."""
    return element(
        "div",
        element("span", what, class_="what"),
        drawn,
        element("span", value, class_="value"),
        element("p", under, class_="under note"),
        class_="barrow",
    )


def _head(name: str) -> Html:
    """Return a heading that sorts, except over reasons."""
    right = (
        "num"
        if name in ("Reads saved", "Extra memory", "Time, modelled", "Stock, modelled")
        else None
    )
    if name == "Reason":
        return element("th", name, scope="col")
    return element("th", element("button", name, type="button"), scope="col", class_=right)


def _verdict_row(table: TableSummary, name: str, longest: float) -> Html:
    """Return one table; on a narrow screen its cells become lines with labels."""
    cells: Sequence[tuple[str, float | None, str]] = (
        ("Reads saved", table.cut, known(table.cut, ".1%")),
        ("Extra memory", table.extra_bytes, bytes_text(table.extra_bytes or 0)),
        ("Time, modelled", table.time_s, seconds_text(table.time_s or 0.0)),
        ("Stock, modelled", table.stock_s, seconds_text(table.stock_s or 0.0)),
    )
    return element(
        "tr",
        element("th", name, scope="row", class_="name", title=table.table),
        element("td", pill(table.verdict_told)),
        [
            element("td", text, class_="num cell", data_label=label, data_value=value)
            for label, value, text in cells
        ],
        element("td", table.reason, class_="reason"),
        data_verdict=table.verdict,
    )


def _time_grid(summary: PlanSummary) -> Grid:
    """Return rows, bytes, reads and time of every memory."""
    rows = []
    for part in summary.tiers:
        room = summary.rooms.get(part.tier, 0)
        rows.append(
            (
                MEMORY.get(part.tier, part.tier),
                known(part.originals),
                f"{part.sums:,}",
                f"{part.hot_rows:,}",
                bytes_text(part.bytes or 0),
                bytes_text(room),
                share_text((part.bytes or 0) / room) if room else "-",
                known(part.reads),
                seconds_text(part.time_s or 0.0),
            )
        )
    columns = (
        "memory", "originals", "sums", "hot rows", "bytes", "of", "full", "reads", "time, modelled",
    )  # fmt: skip
    return Grid("Memories", columns, rows, frozenset({"memory"}))
