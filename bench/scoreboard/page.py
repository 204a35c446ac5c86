"""The page: rows joined with what was measured, as JSON, as a table and as ``docs/papers.md``.

Flow: rows + results -> *joined rows* -> JSON object, Markdown.  The same inputs give the same text.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.scoreboard.measuring import Result
from bench.scoreboard.rows import PAPERS, PrintedRow
from grace_torchrec.views.tables import Grid

TITLES = {
    "GRACE": "GRACE (ASPLOS'23)",
    "RecOS": "RecOS (IJCAI'25)",
}
HOW = {
    "measured": "measured",
    "modelled": "model",
    "simulated": "simulator",
    "needs_gpu": "needs a GPU",
    "out_of_scope": "out of scope",
}
COLUMNS = ("printed", "what", "ours", "how", "on", "why it differs, or why there is none")
HEAD = """# The papers' figures, and ours

One row for every figure, table and printed number of the two papers. Made by

<!-- not run: a test runs it -->

```sh
python -m bench papers --write docs/papers.md
```

from `bench/papers.toml` (what is printed, how ours is obtained) and `bench/data/papers.json` (what
was measured). `python -m bench papers --measure --traces DIR` runs the commands of rows that have no value
yet; with ids it runs theirs again. `TRACES` in a command is the folder of `--traces`.

*How*: **measured** counts or times the code; **model** is the time of two memories read at once,
counted in rows, on held-out bags (see [placement.md](placement.md)); **simulator** is the one of
[scheduling.md](scheduling.md), which is no evidence about a GPU; **needs a GPU** names the command that was not run. The data sets of GRACE are not
public in the form it used: ours are public traces, named in the row. A time that was taken while
other processes were at work says *machine busy*. Behind a time stand the values that 20 and 80 % of its rounds stay
under; *spread not kept* is a time of one round, or one that was kept without them.
"""


def joined(rows: Iterable[PrintedRow], results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Return one mapping a row: what is printed, ours or None, and how."""
    values = {command: result.values for command, result in results.items()}
    spreads = {command: result.spreads for command, result in results.items()}
    found = []
    for row in rows:
        used = [results[command] for command in row.paths() if command in results]
        ours = row.ours(values)
        found.append(
            {
                "id": row.id,
                "paper": row.paper,
                "where": row.where,
                "what": row.what,
                "printed": row.printed or None,
                "unit": row.unit,
                "ours": ours,
                "spread": row.spread(spreads) if row.timed else {},
                "timed": row.timed,
                "how": row.how,
                "on": row.on,
                "reason": row.reason,
                "command": row.command,
                "date": max(one.date for one in used) if ours is not None else None,
                "busy": row.timed and any(one.busy for one in used),
            }
        )
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    parts = [HEAD]
    counted = Counter(row["how"] for row in rows)
    told = ", ".join(f"{counted[how]} {name}" for how, name in HOW.items() if counted[how])
    parts.append(f"{len(rows)} rows: {told}.\n")
    for paper in PAPERS:
        own = [row for row in rows if row["paper"] == paper]
        parts.append(f"## {TITLES[paper]}\n")
        for where in dict.fromkeys(row["where"] for row in own):
            cells = [_cells(row) for row in own if row["where"] == where]
            table = Grid("", COLUMNS, cells, frozenset(COLUMNS)).markdown()
            parts.append(f"### {where}\n\n{table.strip()}\n")
    parts.append(_commands(rows))
    return "\n".join(parts)


def table(rows: list[dict[str, Any]]) -> Grid:
    """Return a table for a terminal."""
    cells = [
        (row["id"], _printed(row), shown(row["ours"], row["unit"]), HOW[row["how"]]) for row in rows
    ]
    return Grid("papers", ("id", "printed", "ours", "how"), cells, frozenset({"id", "how"}))


def shown(
    ours: float | Mapping[str, float] | None,
    unit: str,
    spread: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Return a value or several as text, with three digits; a dash for none.

    Args:
        ours: A value, or values by label.
        unit: Of all of them.
        spread: Label -> q20 and q80; the label of a single value is empty.

    >>> shown(40.123, "%"), shown({"a": 0.5, "b": 1234.0}, ""), shown(None, "x")
    ('40.1 %', 'a: 0.5, b: 1,234', '-')
    >>> shown(0.881, "x", {"": (0.85, 0.904)})
    '0.881 (0.85 to 0.904) x'
    """
    if ours is None:
        return "-"
    values, spread = (ours if isinstance(ours, Mapping) else {"": ours}), spread or {}
    parts = []
    for label, value in values.items():
        ends = f" ({' to '.join(map(_number, spread[label]))})" if label in spread else ""
        parts.append(f"{label}: {_number(value)}{ends}" if label else f"{_number(value)}{ends}")
    return f"{', '.join(parts)} {unit}".strip()


def _number(value: float) -> str:
    """Return three significant digits, or a whole number with thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def _printed(row: Mapping[str, Any]) -> str:
    """Return what the paper prints; words have no unit."""
    printed = row["printed"] or "no number"
    return f"{printed} {row['unit']}".strip() if printed[-1].isdigit() else printed


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row of the page."""
    how = HOW[row["how"]] + (", machine busy" if row["busy"] else "")
    if row["timed"] and row["ours"] is not None and not row["spread"]:
        how += ", spread not kept"
    ours = shown(row["ours"], row["unit"], row["spread"])
    return (_printed(row), row["what"], ours, how, row["on"], row["reason"])


def _commands(rows: list[dict[str, Any]]) -> str:
    """Return the commands, each once, with the day they ran."""
    lines = ["## Commands\n", "| command | run on | rows |", "|:--|:--|:--|"]
    for command in dict.fromkeys(row["command"] for row in rows if row["command"]):
        own = [row for row in rows if row["command"] == command]
        days = sorted({row["date"] for row in own if row["date"]})
        names = ", ".join(row["id"] for row in own)
        lines.append(f"| `{command}` | {days[-1] if days else 'not run'} | {names} |")
    return "\n".join([*lines, ""])
