"""A plan for a terminal or in Markdown: memories, every table in each of them, verdicts.

Flow: PlanSummary -> *text* -> ``inspect``.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from grace_torchrec.plans.summary import PlanSummary, TableSummary, TierPart, slack_s
from grace_torchrec.views.claim_text import (
    MODELLED,
    claimed_text,
    doubt_lines,
    host_lines,
    speed_text,
)
from grace_torchrec.views.numbers import bytes_text, known, seconds_text, share_text
from grace_torchrec.views.tables import Grid, short_names

NARROW = ("table", "memory", "rows", "bytes", "reads", "time", "slack")
WIDE = (
    "table", "memory", "originals", "sums", "hot rows", "bytes", "reads", "time", "slack",
    "verdict", "method", "cut", "in line", "ahead", "lookup", "reason",
)  # fmt: skip
LEFT = frozenset(
    {"table", "memory", "verdict", "method", "lookup", "reason", "setting", "value", "shards "}
)
NOTES = (
    "reads: rows that the bags of the profile read, counted; time: of the held-out bags, modelled from "
    "bytes and bandwidths, not measured",
    "bytes: of rows, and of the code that turns ids into stored ones; those beside extra rows also of the "
    "sets that form sums anew, which lie outside of these memories",
    "slack: how long this memory waits until the slower one is done; of a table, by its own reads alone",
)


def inspect_view(summary: PlanSummary, wide: bool = False) -> RenderableType:
    """Return what ``inspect`` shows on a terminal.

    Args:
        summary: The plan.
        wide: One table with all columns, whatever the width of the terminal.
    """
    grids = [_memories(summary), _parts(summary, wide), *_ranks(summary)]
    if wide:
        grids.append(_settings(summary))
    words = [] if wide else list(_verdict_lines(summary))
    return Group(
        *(Text(line) for line in _head(summary)),
        Text(),
        *(grid.rich() for grid in grids),
        *(Text(line) for line in words),
        Text(),
        *(Text(note, style="dim") for note in NOTES),
    )


def inspect_markdown(summary: PlanSummary) -> str:
    """Return the same in Markdown, with all columns."""
    grids = (_memories(summary), _parts(summary, True), *_ranks(summary), _settings(summary))
    notes = "\n".join(f"- {note}" for note in NOTES)
    return "\n\n".join([*_head(summary), *(grid.markdown() for grid in grids), notes])


def headline(summary: PlanSummary) -> str:
    """Return whose plan it is, where it is, and how many tables have which verdict."""
    whose = "plan" if summary.kind == "grace" else "sharding plan of TorchRec"
    machine = f" for {summary.machine}" if summary.kind == "grace" else ""
    counts = summary.verdicts_told()
    tables = f"{len(summary.tables):,} table{'s' * (len(summary.tables) != 1)}"
    return f"{whose} {summary.source}{machine}: {tables}" + (f" ({counts})" if counts else "")


def _head(summary: PlanSummary) -> list[str]:
    """Return the headline and, where it is known, what the plan gains."""
    lines = [headline(summary)]
    if summary.time_s and summary.stock_s is not None:
        lines.append(
            f"lookups of the held-out bags, {MODELLED}: {seconds_text(summary.time_s)}, stock "
            f"{seconds_text(summary.stock_s)}{claimed_text(summary)}"
        )
        lines += [f"lookups: {speed_text(summary)}", *doubt_lines(summary), *host_lines(summary)]
    return lines


def _memories(summary: PlanSummary) -> Grid:
    """Return all tables together, memory by memory."""
    rows = []
    for part in summary.tiers:
        room = summary.rooms.get(part.tier)
        full = room is not None and room > 0 and part.bytes is not None
        rows.append(
            (
                part.tier,
                known(part.rows),
                _bytes(part.bytes),
                _bytes(room),
                share_text((part.bytes or 0) / (room or 1)) if full else "-",
                _share(part.reads, summary),
                *_times(part, summary.tiers),
            )
        )
    columns = ("memory", "rows", "bytes", "of", "full", "reads", "time", "slack")
    return Grid("memories", columns, rows, LEFT)


def _parts(summary: PlanSummary, wide: bool) -> Grid:
    """Return every table in each memory."""
    names = short_names([table.table for table in summary.tables])
    rows = []
    for table in summary.tables:
        for number, part in enumerate(table.tiers):
            cells = (part.tier, *(_wide_rows(part) if wide else (known(part.rows),)))
            cells += (_bytes(part.bytes), known(part.reads), *_times(part, table.tiers))
            if wide:
                cells += _decision(table) if number == 0 else ("",) * 7
            rows.append((names[table.table] if number == 0 else "", *cells))
    return Grid("tables", WIDE if wide else NARROW, rows, LEFT)


def _ranks(summary: PlanSummary) -> list[Grid]:
    """Return what each rank holds, and how each table is held; nothing without ranks."""
    sharding = summary.sharding
    if sharding is None:
        return []
    of_rank = []
    for rank, milliseconds in enumerate(sharding.rank_ms):
        here = [s for table in sharding.tables for s in table.shards if s.rank == rank]
        sizes = (sum(s.hbm_bytes for s in here), sum(s.host_bytes for s in here))
        cells = (f"{len(here):,}", *map(bytes_text, sizes), seconds_text(milliseconds / 1000))
        of_rank.append((f"{rank}", *cells))
    how = [(f"{table.module}.{table.table}", table.told) for table in sharding.tables]
    return [
        Grid("ranks", ("rank", "shards", "hbm", "host", "batch, modelled"), of_rank, LEFT),
        Grid("which rank holds what", ("table", "shards "), how, LEFT),
    ]


def _wide_rows(part: TierPart) -> tuple[str, ...]:
    """Return rows by kind."""
    return known(part.originals), f"{part.sums:,}", f"{part.hot_rows:,}"


def _decision(table: TableSummary) -> tuple[str, ...]:
    """Return what was decided over one table."""
    cuts = (known(cut, ".1%") for cut in (table.cut, table.in_line_cut, table.ahead_cut))
    return table.verdict_told, table.method, *cuts, table.lookup, table.reason


def _verdict_lines(summary: PlanSummary) -> Iterator[str]:
    """Yield a paragraph a table: verdict, method, figures and reason."""
    names = short_names([table.table for table in summary.tables])
    for table in summary.tables:
        facts = [table.method] if table.method not in ("none", "") else []
        facts += [table.lookup] if table.verdict != "leave stock" else []
        if table.ahead_cut:
            facts.append(
                f"cut {known(table.cut, '.1%')}, possible in line "
                f"{known(table.in_line_cut, '.1%')}, ahead {known(table.ahead_cut, '.1%')}"
            )
        if table.extra_bytes:
            facts.append(f"{table.extra_rows:,} extra rows, {bytes_text(table.extra_bytes)}")
        told = f" ({'; '.join(facts)})" if facts else ""
        yield f"{names[table.table]}: {table.verdict_told}{told}: {table.reason}"


def _settings(summary: PlanSummary) -> Grid:
    """Return what was asked for."""
    rows = [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in summary.settings.items()
    ]
    return Grid("settings", ("setting", "value"), rows, LEFT)


def _times(part: TierPart, tiers: tuple[TierPart, ...]) -> tuple[str, str]:
    """Return time and slack."""
    waits = slack_s(part, tiers)
    return (
        "-" if part.time_s is None else seconds_text(part.time_s),
        "-" if waits is None else seconds_text(waits),
    )


def _bytes(num_bytes: int | None) -> str:
    """Return a size, a dash where it is not known."""
    return "-" if num_bytes is None else bytes_text(num_bytes)


def _share(reads: int | None, summary: PlanSummary) -> str:
    """Return the share of all reads."""
    everywhere = [part.reads for part in summary.tiers]
    if reads is None or None in everywhere:
        return "-"
    total = sum(count for count in everywhere if count is not None)
    return share_text(reads / total) if total else "-"
