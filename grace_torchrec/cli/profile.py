"""``grace-torchrec profile``: turn a trace file into a profile folder."""

import json
from pathlib import Path

import click
import numpy as np

from grace_torchrec.cli.options import Number, progress_to_stderr
from grace_torchrec.cli.places import PROFILE, InPath, OutPath
from grace_torchrec.cli.trace_options import RowNames, columns_option, format_option, remap_option
from grace_torchrec.cli.words import in_own_words
from grace_torchrec.errors import GraceError
from grace_torchrec.strict_files import kind_of
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.shards import Thinning, read_shards
from grace_torchrec.traces.trace import Trace
from grace_torchrec.views.profile_text import profile_lines

MOST_ROWS_AN_ID = 1000  # a table with more rows for each id that was seen is hardly meant


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
@format_option
@columns_option
@click.option(
    "--most-ids", type=click.IntRange(min=1), help="Cut longer bags to a sample of so many ids."
)
@click.option(
    "--share",
    type=Number(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the bags to keep.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="That read shards.",
)
@remap_option
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
    columns: tuple[str, ...] | None,
    most_ids: int | None,
    share: float,
    processes: int,
    names_file: Path | None,
    skip_bad_lines: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Read TRACE (a file, its shards or a folder of them) and write a profile folder."""
    features = features or (table.removeprefix("t_"),)
    if not table or not all(features) or len(set(features)) < len(features):
        raise click.UsageError("--table and each --feature are names, no feature twice.")
    if names_file is not None and processes > 1:
        raise click.UsageError("--remap numbers items in one process: leave --processes out.")
    for path in traces:
        if (kind := kind_of(path)) is not None:
            raise click.UsageError(
                f"TRACE {str(path)!r} is a {kind} folder: give a trace, of bags."
            )
    rows = RowNames.of(names_file)
    with progress_to_stderr() as progress:
        progress(f"reading {', '.join(map(str, traces))}")
        read = read_shards(
            traces,
            trace_format,
            thinning=Thinning(most_ids, share),
            processes=processes,
            columns=columns,
            names=rows.names,
            skip_bad_lines=skip_bad_lines,
        )
    bags = read.trace
    if read.bags_read and not bags.num_bags:
        raise GraceError(
            f"profile: --share {share:g} keeps none of the {read.bags_read:,} bags; give more"
        )
    recorded = Profile.from_trace(table, bags, features)
    rows.save()  # first: a profile whose rows have no names is of no use
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
        "first_skipped": in_own_words(read.first_skipped),
        "names": str(names_file) if rows.is_new else None,
        "note": bags.note,
        "notes": [note for note in (bags.note, _spread(bags)) if note],
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo("\n".join(profile_lines(summary)))


def _spread(bags: Trace) -> str:
    """Return the note on ids that are no numbers of rows, or nothing."""
    if bags.num_items <= MOST_ROWS_AN_ID * MOST_ROWS_AN_ID:  # small, whatever the ids
        return ""
    distinct = np.unique(bags.ids_L).size
    if bags.num_items <= MOST_ROWS_AN_ID * distinct:
        return ""
    return (
        f"{distinct:,} distinct ids in a table of {bags.num_items:,} rows: where ids are no numbers "
        "of its rows, number the items: --remap FILE"
    )
