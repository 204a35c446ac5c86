"""``grace-torchrec profile``: turn a trace file into a profile folder."""

import json
from pathlib import Path

import click

from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import FORMATS, read


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Profile folder to write."
)
@click.option("--table", default="t_history", show_default=True, help="Table the trace belongs to.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    help="Feature that reads it (default: the name of the table without t_).",
)
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(sorted(FORMATS)),
    help="Default: by name and content.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    trace: Path,
    out: Path,
    table: str,
    features: tuple[str, ...],
    trace_format: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Read TRACE (npz, "user item item ...", one basket a line) and write a profile folder."""
    bags = read(trace, trace_format)
    recorded = Profile.from_trace(table, bags, features or (table.removeprefix("t_"),))
    recorded.save(out)
    summary = {
        "profile": str(out),
        "table": table,
        "features": list(recorded.tables[table].features),
        "bags": bags.num_bags,
        "ids": bags.num_ids,
        "items": bags.num_items,
        "pooling_factor": bags.pooling_factor,
        "fingerprint": recorded.fingerprint(),
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        for name, value in summary.items():
            click.echo(f"{name:>15}  {value}")
