"""``grace-torchrec profile``: turn a trace file into a profile folder."""

import json
from pathlib import Path

import click

from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import FORMATS
from grace_torchrec.traces.shards import Thinning, read_shards
from grace_torchrec.views.profile_text import profile_lines


@click.command()
@click.argument(
    "traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
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
@click.option(
    "--most-ids", type=click.IntRange(min=1), help="Cut longer bags to a sample of so many ids."
)
@click.option(
    "--share", type=float, default=1.0, show_default=True, help="Share of the bags to keep."
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="That read shards.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    traces: tuple[Path, ...],
    out: Path,
    table: str,
    features: tuple[str, ...],
    trace_format: str | None,
    most_ids: int | None,
    share: float,
    processes: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Read TRACE (a file, its shards or a folder of them) and write a profile folder."""
    read = read_shards(
        traces, trace_format, thinning=Thinning(most_ids, share), processes=processes
    )
    bags = read.trace
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
        "bags_read": read.bags_read,
        "bags_capped": read.bags_capped,
        "ids_dropped": read.ids_dropped,
        "pairs_dropped": read.pairs_dropped,
        "note": bags.note,
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo("\n".join(profile_lines(summary)))
