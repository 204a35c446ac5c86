"""``grace-torchrec schedule``: show, prove and draw the schedule of a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.options import OutPath, progress_to_stderr
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_stats import CostFile
from grace_torchrec.schedule.stream_pass import Scheduled, schedule_
from grace_torchrec.views.chrome_trace import chrome_trace
from grace_torchrec.views.gantt import gantt
from grace_torchrec.views.schedule_text import schedule_lines


@click.command()
@click.argument("model")
@click.option("--streams", default=4, show_default=True, help="Streams at most.")
@click.option(
    "--stats", type=click.Path(path_type=Path), help="Cost file (default: profile the model)."
)
@click.option("--save-stats", type=OutPath(in_folder=True), help="Write the costs that were used.")
@click.option("--prove", is_flag=True, help="Exit 1 unless the race check finds nothing.")
@click.option("--queries", default=3, show_default=True, help="Queries in flight to check.")
@click.option("--trace", type=OutPath(in_folder=True), help="Write a trace for Perfetto.")
@click.option("--svg", type=OutPath(in_folder=True), help="Write a Gantt chart.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def schedule(
    model: str,
    streams: int,
    stats: Path | None,
    save_stats: Path | None,
    prove: bool,
    queries: int,
    trace: Path | None,
    svg: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Schedule MODEL over streams (dlrm, wide_deep, din, bst, or package.module:function).

    A model that cannot be traced is no failure, unless a file of its schedule was asked for (exit 2).
    """
    if streams < 1 or not 1 <= queries <= 8:
        raise click.UsageError("--streams is one or more, --queries is 1 to 8.")
    costs = CostFile.load(stats).stats if stats else None
    with progress_to_stderr() as progress:
        progress(f"making {model}")
        example = load_model(model)
        progress(f"scheduling {model}")
        result = schedule_(example.model, example.batches[0], streams, stats=costs, queries=queries)
    if result.schedule is not None:
        if trace is not None:
            _write(trace, json.dumps(chrome_trace(result.schedule)))
        if svg is not None:
            _write(svg, gantt(result.schedule))
        if save_stats is not None and result.stats is not None:
            CostFile(result.schedule.graph, result.stats, f"profile of {model}").save(save_stats)
    if as_json:
        click.echo(json.dumps(summary(model, result)))
    else:
        click.echo("\n".join(schedule_lines(result)))
    unwritten = [str(path) for path in (trace, svg, save_stats) if path is not None]
    if result.schedule is None and unwritten:
        raise GraceError(
            f"{', '.join(unwritten)}: not written, as there is no schedule: {result.reason}"
        )
    proven = result.proof is not None and not result.proof.races
    return 1 if prove and result.modified and not proven else 0


def summary(model: str, result: Scheduled) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    found: dict[str, Any] = {
        "model": model,
        "scheduled": result.modified,
        "reason": result.reason,
    }
    plan = result.schedule
    if plan is not None:
        found |= {
            "operators": len(plan.graph.ops),
            "parallel_share": plan.graph.parallel_share(),
            "streams": plan.num_streams,
            "makespan_us": plan.makespan_us,
            "bound_us": plan.bound_us,
            "single_stream_us": sum(plan.times_us),
            "predicted": ["makespan_us", "bound_us", "single_stream_us"],
            "stream_of": dict(zip((op.name for op in plan.graph.ops), plan.stream_n, strict=True)),
        }
    if result.stats is not None:
        timed = result.stats.timed
        found["costs"] = {
            "source": result.stats.source,
            "device": result.stats.device,
            "timed": None if timed is None else asdict(timed),
        }
    if result.lowered is not None:
        found |= result.lowered.figures
    if result.proof is not None:
        found |= {
            "proven_programs": result.proof.programs,
            "races": [str(race) for race in result.proof.races],
        }
    return found


def _write(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        GraceError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GraceError(f"{path}: cannot be written: {error.strerror}") from error
