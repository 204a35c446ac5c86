"""papers: what the two papers print beside what this project reaches, one row a figure.

Flow: ``bench/papers.toml`` + ``bench/data/papers.json`` -> joined rows -> JSON, a table or the page.
With --measure the commands of rows run first, each in a process of its own.
"""

import os
from pathlib import Path

import click
from rich.console import Console

from bench.run import emit
from bench.scoreboard.measuring import load_results, measure, wanted
from bench.scoreboard.page import joined, markdown, table
from bench.scoreboard.rows import load_rows


@click.command(name="papers", help=__doc__)
@click.argument("ids", nargs=-1)
@click.option("--measure", "measuring", is_flag=True, help="Run the commands of rows without a value; with IDS: theirs, again.")  # fmt: skip
@click.option("--traces", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of traces, TRACES in the commands.")  # fmt: skip
@click.option("--write", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    ids: tuple[str, ...], measuring: bool, traces: Path | None, page: Path | None, as_json: bool
) -> None:
    """Parse, measure, join, print."""
    rows = load_rows()
    unknown = set(ids) - {row.id for row in rows}
    if unknown:
        raise click.UsageError(f"{sorted(unknown)[0]}: no row has this id; see --json")
    asked = [row for row in rows if not ids or row.id in ids]
    if measuring:
        commands = wanted(asked, load_results(), again=bool(ids))
        measure(rows, commands, traces, say=lambda text: click.echo(text, err=True))
    found = joined(asked, load_results())
    if page is not None:
        beside = page.with_name(f"{page.name}.tmp")
        beside.write_text(markdown(joined(rows, load_results())), encoding="utf-8")
        os.replace(beside, page)
    if as_json:
        emit({"rows": found}, True, "papers")
        return
    Console().print(table(found).rich())
