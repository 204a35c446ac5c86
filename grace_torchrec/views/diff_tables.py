"""The difference of two plans for a terminal or in Markdown.

Flow: PlanDiff -> *text* -> ``diff``.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from grace_torchrec.plans.diff import Change, PlanDiff, TableDiff
from grace_torchrec.views.numbers import bytes_text, seconds_text, share_text
from grace_torchrec.views.tables import Grid, short_names

COLUMNS = ("table", "memory", "what", "before", "after", "change")
LEFT = frozenset({"table", "memory", "what", "setting", "before ", "after "})
NAMES = {"time_s": "modelled time"}
SHOWN = {
    "time_s": seconds_text, "bytes": bytes_text, "row_bytes": bytes_text, "cut": share_text,
    "in_line_cut": share_text, "ahead_cut": share_text,
    "hbm bytes": bytes_text, "host bytes": bytes_text, "cache_bytes": bytes_text, "launch_s": seconds_text,
}  # fmt: skip


def diff_view(diff: PlanDiff) -> RenderableType:
    """Return what ``diff`` shows on a terminal."""
    return Group(*map(Text, _head(diff)), *(grid.rich() for grid in _grids(diff)))


def diff_markdown(diff: PlanDiff) -> str:
    """Return the same in Markdown."""
    return "\n\n".join(["  \n".join(_head(diff)), *(grid.markdown() for grid in _grids(diff))])


def _head(diff: PlanDiff) -> list[str]:
    """Return the sentences above the tables: the cost first."""
    lines = [f"{diff.before} -> {diff.after}"]
    if not diff.differs:
        return [*lines, f"the same plan: {diff.same:,} tables are equal"]
    lines += diff.apart
    if diff.time_s is not None:
        before, after = diff.time_s.before, diff.time_s.after
        lines.append(
            f"held-out bags, modelled: {seconds_text(before)} before, {seconds_text(after)} after"
            + ("" if diff.apart else _faster(before, after))
        )
    if diff.against_stock is not None:
        before, after = diff.against_stock.before, diff.against_stock.after
        lines.append(
            f"claimed over stock, modelled: {before:.2f} times the speed before, {after:.2f} after"
            + (", each on its own machine and bags" if diff.apart else "")
        )
    lines.append(f"{len(diff.tables):,} of {len(diff.tables) + diff.same:,} tables differ")
    for what, tables in (("only before", diff.removed), ("only after", diff.added)):
        if tables:
            lines.append(f"{what}: {', '.join(tables)}")
    return lines


def _faster(before: float, after: float) -> str:
    """Return how many times as fast or slow that is; nothing where one of the plans reads nothing."""
    if not before or not after:
        return ""
    if before >= after:
        return f", {before / after:.2f} times as fast"
    return f", {after / before:.2f} times as slow"


def _grids(diff: PlanDiff) -> Iterable[Grid]:
    """Yield the tables that have something to say."""
    if diff.settings:
        rows = [(c.name, _text(c.name, c.before), _text(c.name, c.after)) for c in diff.settings]
        yield Grid("asked for", ("setting", "before ", "after "), rows, LEFT)
    if diff.totals:
        rows_of_all = [
            (tier, *_cells(change)) for tier, found in diff.totals.items() for change in found
        ]
        yield Grid("all tables together", COLUMNS[1:], rows_of_all, LEFT)
    if diff.tables:
        names = short_names([table.table for table in diff.tables])
        rows_of_tables = [row for table in diff.tables for row in _rows(names[table.table], table)]
        yield Grid("table by table", COLUMNS, rows_of_tables, LEFT)
    if diff.ranks:
        rows = [(change.name, change.before, change.after) for change in diff.ranks]
        yield Grid("which rank holds what", ("table", "before ", "after "), rows, LEFT)


def _rows(name: str, table: TableDiff) -> list[tuple[str, ...]]:
    """Return the rows of one table, its name in the first one only."""
    rows = [("", *_cells(change)) for change in table.changes]
    for swap in table.swaps:
        count = swap.kept + swap.removed, swap.kept + swap.added
        moved = f"+{swap.added:,} -{swap.removed:,}"
        rows.append(("", f"which {swap.kind}", f"{count[0]:,}", f"{count[1]:,}", moved))
    rows += [(tier, *_cells(change)) for tier, found in table.tiers.items() for change in found]
    return [(name if number == 0 else "", *row) for number, row in enumerate(rows)]


def _cells(change: Change) -> tuple[str, str, str, str]:
    """Return what, before, after, and the difference of two numbers."""
    before, after = change.before, change.after
    name = NAMES.get(change.name, change.name.replace("_", " "))
    moved = ""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in (before, after)):
        size = _text(change.name, abs(after - before))
        is_seen = size != _text(change.name, 0)  # a tenth of what the last digit shows is not
        moved = f"{'+' if after > before else '-'}{size}" if is_seen else "rounding"
    return name, _text(change.name, before), _text(change.name, after), moved


def _text(name: str, value: Any) -> str:
    """Return one value as people read it."""
    if name in SHOWN and isinstance(value, int | float):
        return SHOWN[name](value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
