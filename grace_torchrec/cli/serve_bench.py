"""``grace-torchrec serve-bench``: an engine under load from another process, beside stock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

import grace_torchrec as grace
from grace_torchrec.cli.function_argument import spelled
from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.options import Number, progress_to_stderr
from grace_torchrec.cli.places import PICTURE, InPath, OutPath
from grace_torchrec.cli.trace_options import (
    RowNames,
    columns_option,
    format_option,
    read_trace,
    remap_option,
)
from grace_torchrec.errors import GraceError
from grace_torchrec.models.bundled import MODELS
from grace_torchrec.schedule.arrivals import PATTERNS
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace
from grace_torchrec.views.latency_figure import check_figure, write_latency_figure
from grace_torchrec.views.serve_bench_text import serve_bench_lines

if TYPE_CHECKING:
    from grace_torchrec.loadtest.subject import Subject

GENERATED = (3_706, 6_040)  # items, users: as many as ml1m has


@click.command(name="serve-bench")
@click.argument("what", metavar="[SERVED|MODEL]", required=False)
@click.option("--model", "code", help="MODEL that a SERVED folder was converted from.")
@click.option(
    "--trace", type=InPath(),
    help="Without SERVED or MODEL: bags of a DLRM over histories; default: generated ones.",
)  # fmt: skip
@format_option
@columns_option
@remap_option
@click.option("--clients", default="1,8,15,22,30", show_default=True, help="Closed loop: clients.")
@click.option("--open", "pattern", type=click.Choice(sorted(PATTERNS)), help="Open loop instead.")
@click.option("--rate", type=Number(0, min_open=True), help="Its requests a second.")
@click.option(
    "--entrants",
    default="",
    help="Entrants, by commas; default: all but ours_workers, shared_streams.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=6, show_default=True,
    help="Six and more give intervals.",
)  # fmt: skip
@click.option(
    "--requests", type=click.IntRange(min=20), default=1000, show_default=True,
    help="Of each entrant, client count and round.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=1, show_default=True, help="A request.")
@click.option("--max-batch", type=click.IntRange(min=1), default=256, show_default=True)
@click.option(
    "--inflight", type=click.IntRange(min=1), default=1, show_default=True,
    help="Batches in flight of ours and of stock.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True,
    help="Batches in flight of entrants with several.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Torch's."
)
@click.option(
    "--tolerance", type=Number(0), default=1e-3, show_default=True,
    help="Largest difference to stock of a right answer; rows in fewer bits need more.",
)  # fmt: skip
@click.option(
    "--recorder", is_flag=True,
    help="Add ours_recorded, a TraceRecorder looks on; without --entrants beside stock and ours.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--figure", type=OutPath(PICTURE), help="Picture of latency by clients.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def serve_bench(
    what: str | None,
    code: str | None,
    trace: Path | None,
    trace_format: str | None,
    columns: tuple[str, ...] | None,
    names_file: Path | None,
    clients: str,
    pattern: str | None,
    rate: float | None,
    entrants: str,
    rounds: int,
    requests: int,
    rows: int,
    max_batch: int,
    inflight: int,
    workers: int,
    threads: int,
    tolerance: float,
    recorder: bool,
    seed: int,
    figure: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Serve concurrent requests of another process by stock and by ours, in turns.

    SERVED is a folder of convert (give its code with --model), MODEL is package.module:function.
    """
    from grace_torchrec.loadtest.rounds import Settings, chosen_entrants, load_test

    if (pattern is None) != (rate is None):
        raise click.UsageError("--open and --rate go together.")
    if what is not None and trace is not None:
        raise click.UsageError("--trace is for the model of histories: give no SERVED or MODEL.")
    if code is not None and (what is None or not Path(what).is_dir()):
        raise click.UsageError("--model is for a SERVED folder: give one, or a MODEL without it.")
    if trace is None and (trace_format or columns or names_file):
        raise click.UsageError("--format, --columns and --remap are for a --trace: give one.")
    if what is not None and ":" not in what and what not in MODELS and not Path(what).is_dir():
        raise click.UsageError(f"{what!r}: no such SERVED folder; as a MODEL, {spelled(what)}.")
    if figure is not None:
        check_figure(figure)
    torch.set_num_threads(threads)
    names = tuple(name for name in entrants.split(",") if name)
    if recorder:
        names = (*(names or ("stock", "ours")), "ours_recorded")
    settings = Settings(
        _numbers(clients), names, rounds, requests, pattern, rate or 0.0, max_batch, inflight,
        workers, tolerance=tolerance, seed=seed,
    )  # fmt: skip
    chosen_entrants(settings, recorder)  # refused now, not once the model is made
    with progress_to_stderr() as progress:
        progress("planning and converting")
        bags, row_names = None, RowNames.of(names_file)
        if trace is not None:
            bags = read_trace(trace, trace_format, columns, row_names)
        subject = _subject(what, code, None if trace is None else trace.stem, bags, rows)
        found = load_test(subject, settings, _recorder if recorder else None, progress)
        row_names.save()
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(serve_bench_lines(found)))
    if figure is not None:  # last: what was measured for minutes is out already
        write_latency_figure(found, figure)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the client counts that ``--clients`` names."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.UsageError(f"--clients {text}: whole numbers, as 1,8,30") from error
    if min(counts) < 1:
        raise click.UsageError(f"--clients {text}: one or more each")
    return counts


def _subject(
    what: str | None, code: str | None, name: str | None, bags: Trace | None, rows: int
) -> "Subject":
    """Return what is served and asked."""
    from grace_torchrec.loadtest.subject import history_subject, model_subject

    if what is None:
        bags = generate(*GENERATED) if bags is None else bags
        return history_subject(bags, name or "generated", rows=rows)
    if not Path(what).is_dir():
        given = load_model(what, to_plan=True)
        return model_subject(what, given.model, given.batches, rows=rows)
    if code is None:
        raise click.UsageError(
            "a SERVED folder holds no code: give --model package.module:function"
        )
    given = load_model(code, to_plan=True)
    served = grace.load_served(what, given.model, example=given.batches[0])
    return model_subject(what, given.model, given.batches, served=served, rows=rows)


def _recorder(model: Any) -> Any:
    """Return a TraceRecorder for a model."""
    make: Callable[[Any], Any] | None = getattr(grace, "TraceRecorder", None)
    if make is None:
        raise GraceError("serve-bench: this version has no TraceRecorder")
    return make(model)
