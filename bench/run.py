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
from rich.table import Table

import bench.cases
from grace_sharding.memory_tiers import MemoryModelError
from grace_torchrec.errors import GraceError


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
    """Print a result: one JSON object on one line, or a table of its fields."""
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
        return
    table = Table("field", "value", title=title)
    for name, value in result.items():
        table.add_row(name, _readable(value))
    Console().print(table)


def main() -> None:
    """Run the command line; a wrong call is one line on stderr and exit status 2."""
    try:
        cli(prog_name="python -m bench")
    except (GraceError, MemoryModelError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _readable(value: Any) -> str:
    """Return a table cell: thousands separated, four digits, a dash for what does not apply."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
