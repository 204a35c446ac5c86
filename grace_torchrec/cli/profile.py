"""``grace-torchrec profile``: turn a trace file into a profile folder."""

import json
from pathlib import Path

import click

from grace_torchrec.cli.options import progress_to_stderr
from grace_torchrec.cli.places import NAMES, PROFILE, InPath, OutPath
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.readers import FORMATS, ItemNames
from grace_torchrec.traces.shards import Thinning, read_shards
from grace_torchrec.views.profile_text import profile_lines


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=InPath())
@click.option("-o", "--out", required=True, type=OutPath(PROFILE), help="Profile folder to write.")
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
@click.option(
    "--remap",
    "names_file",
    type=OutPath(NAMES),
    help="Number the items: by this file (the name of row 0, of row 1 ..., one a line) where it is "
    "there; else by first appearance, and write it. Text files may then hold any words as ids.",
)
@click.option(
    "--skip-bad-lines", is_flag=True, help="Leave out lines that cannot be read, and count them."
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
    names_file: Path | None,
    skip_bad_lines: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Read TRACE (a file, its shards or a folder of them) and write a profile folder."""
    made = names_file is not None and not names_file.exists()
    names = None
    if names_file is not None:
        names = ItemNames() if made else ItemNames.load(names_file)
    with progress_to_stderr() as progress:
        progress(f"reading {', '.join(map(str, traces))}")
        read = read_shards(
            traces,
            trace_format,
            thinning=Thinning(most_ids, share),
            processes=processes,
            names=names,
            skip_bad_lines=skip_bad_lines,
        )
    bags = read.trace
    recorded = Profile.from_trace(table, bags, features or (table.removeprefix("t_"),))
    if names is not None and names_file is not None and made:
        names.save(names_file)  # first: a profile whose rows have no names is of no use
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
        "lines_skipped": read.lines_skipped,
        "first_skipped": read.first_skipped,
        "names": str(names_file) if made else None,
        "note": bags.note,
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo("\n".join(profile_lines(summary)))
