"""Tables: one grid of texts, shown by rich on a terminal or as Markdown.

Flow: values -> *Grid* -> terminal, Markdown.  The columns are the same in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

SHORT = 16  # longest cell of a column whose texts are never folded; the first column may be


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Attributes:
        title: Said above it; empty: nothing is.
        columns: Headings.
        rows: Cells, one text a column.
        left: Columns that are aligned left; all others hold numbers and are aligned right.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: frozenset[str] = frozenset()

    def rich(self) -> Table:
        """Return it for a terminal; long texts are folded, numbers are never cut."""
        table = Table(
            title=escape(self.title) or None,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
        )
        for at, name in enumerate(self.columns):
            left = name in self.left
            longest = max((len(row[at]) for row in self.rows), default=0)
            table.add_column(
                name,
                justify="left" if left else "right",
                overflow="fold",
                no_wrap=not left or (at > 0 and longest <= SHORT),
            )
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        """Return it in Markdown as GitHub reads it."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [
            _line(self.columns),
            _line([":--" if name in self.left else "--:" for name in self.columns]),
        ]
        return "\n".join([*lines, *map(_line, self.rows)])


def _line(cells: Sequence[str]) -> str:
    """Return one row; a bar inside a cell would end it."""
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def short_names(tables: Sequence[str]) -> dict[str, str]:
    """Return the last part of every dotted path, or the whole path where two would be alike.

    >>> short_names(["a.t_user", "a.t_item", "b.t_item"])
    {'a.t_user': 't_user', 'a.t_item': 'a.t_item', 'b.t_item': 'b.t_item'}
    """
    last = [table.rpartition(".")[2] for table in tables]
    return {
        table: name if last.count(name) == 1 else table
        for table, name in zip(tables, last, strict=True)
    }
