"""The driver: finds cases by file name, prints their result as one JSON object or a table.

Flow: click parses -> a case returns a mapping -> :func:`emit`.  A case file ``cases/NAME.py``
holds a click command named ``command``; it is imported only when it is called or listed.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any, cast

import click
from rich.console import Console

import bench.cases
from grace_torchrec.errors import GraceError
from grace_torchrec.views.tables import Grid

LEFT = frozenset({"", "field"})


class Cases(click.Group):
    """The files of ``bench/cases`` as sub-commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all cases."""
        found = (module.name for module in pkgutil.iter_modules(bench.cases.__path__))
        return sorted(name for name in found if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the case ``cmd_name``; None if there is no such file."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return cast(click.Command, importlib.import_module(f"bench.cases.{cmd_name}").command)


@click.command(cls=Cases)
def cli() -> None:
    """Run one benchmark case; each prints one JSON object with --json."""


def emit(result: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a result: one JSON object on one line, or tables of its fields."""
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
        return
    console = Console()
    for grid in grids(result, title):
        console.print(grid.rich())


def grids(result: Mapping[str, Any], title: str) -> list[Grid]:
    """Return a table of single values, then one for each field that holds several.

    Args:
        result: What a case returned.
        title: Title of the first table.
    """
    plain = {name: value for name, value in result.items() if not _is_nested(value)}
    shown = [Grid(title, ("field", "value"), _pairs(plain), LEFT)]
    for name, value in result.items():
        if _is_nested(value):
            shown += _nested(name, value)
    return shown


def _is_nested(value: Any) -> bool:
    """Tell values that need a table of their own."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _nested(title: str, value: Mapping[str, Any] | list[Mapping[str, Any]]) -> list[Grid]:
    """Return a table of rows with the same columns, of pairs, or several tables."""
    if isinstance(value, list):
        value = {str(number): row for number, row in enumerate(value, 1)}
    rows = {name: row for name, row in value.items() if isinstance(row, Mapping)}
    flat = all(not _is_nested(cell) for row in rows.values() for cell in row.values())
    if rows and flat and len(rows) == len(value):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [
            (name, *(_readable(row.get(column)) for column in columns))
            for name, row in rows.items()
        ]
        return [Grid(title, ("", *columns), cells, LEFT)]
    return [
        Grid(inner.title if inner.title == title else f"{title}: {inner.title}", *_rest(inner))
        for inner in grids(value, title)
        if inner.rows
    ]


def _rest(grid: Grid) -> tuple[Any, ...]:
    """Everything of a table but its title."""
    return grid.columns, grid.rows, grid.left


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row a value."""
    return [(name, _readable(value)) for name, value in values.items()]


def main() -> None:
    """Run the command line; a wrong call is one line on stderr and exit status 2."""
    try:
        cli(prog_name="python -m bench")
    except GraceError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _readable(value: Any) -> str:
    """Return a table cell: thousands separated, four digits, a dash for what does not apply."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_readable, value)) or "-"
    return "-" if value == {} else str(value)
