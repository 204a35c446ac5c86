"""``grace-torchrec convert``: turn a model and its plan into a folder that serves."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.options import progress_to_stderr
from grace_torchrec.cli.places import SERVED, InPath, OutPath
from grace_torchrec.plans.options import RowDtype
from grace_torchrec.plans.plan import Plan
from grace_torchrec.schedule.schedule import Machine

if TYPE_CHECKING:
    from grace_torchrec.serve.served import Served

Target = Literal["module", "torchscript"]


@click.command()
@click.argument("model")
@click.argument("plan", type=InPath())
@click.option("-o", "--out", required=True, type=OutPath(SERVED), help="Served folder to write.")
@click.option(
    "--row-dtype",
    type=click.Choice(get_args(RowDtype)),
    help="Type of all rows (default: the plan's).",
)
@click.option(
    "--streams", type=click.IntRange(min=1), help=f"Streams at most.  [default: {Machine.streams}]"
)
@click.option("--target", type=click.Choice(get_args(Target)), default="module", show_default=True)
@click.option(
    "--slots", type=click.IntRange(1, 2), default=2, show_default=True,
    help="2: no delta makes a reader wait; 1: half the memory.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def convert(
    model: str,
    plan: Path,
    out: Path,
    row_dtype: str | None,
    streams: int | None,
    target: Target,
    slots: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Convert MODEL (package.module:function) by PLAN (a folder); load_served reads the result."""
    from grace_torchrec.serve.convert import convert as convert_model

    if Path(model).is_dir() and not plan.is_dir():
        raise click.UsageError(
            f"MODEL {model!r} is a folder, PLAN {str(plan)!r} is none: swap them."
        )
    loaded = Plan.load(plan)
    with progress_to_stderr() as progress:
        progress(f"making {model}")
        given = load_model(model, to_plan=True)
        progress(f"converting {model}")
        served = convert_model(
            given.model, loaded, example=given.batches[0], streams=streams, target=target,
            row_dtype=row_dtype, slots=slots,
        )  # fmt: skip
        served.save(out)
    found = summary(served, out)
    if as_json:
        click.echo(json.dumps(found))
        return
    for key, kind in found["row_types"].items():
        click.echo(f"{key}: rows {kind}")
    for path, reason in found["refused"].items():
        click.echo(f"{path}: left as it is: {reason}")
    click.echo(f"streams: {found['streams'] or found['one_stream_because']}")
    click.echo(f"saved as {out}, converted in {found['build_s']:.1f} s")


def summary(served: "Served", out: Path) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    scheduled = served.scheduled
    used = scheduled is not None and scheduled.modified and scheduled.schedule is not None
    return {
        "served": str(out),
        "target": served.conversion.target,
        "row_types": dict(served.conversion.row_types),
        "refused": served.refused,
        "streams": scheduled.schedule.num_streams if used else 0,  # type: ignore[union-attr]
        "one_stream_because": "TorchScript is not scheduled"
        if scheduled is None
        else scheduled.reason,
        "takes_deltas": served.masters is not None,
        "master_bytes": 0 if served.masters is None else served.masters.num_bytes,
        "build_s": served.build_s,
    }
