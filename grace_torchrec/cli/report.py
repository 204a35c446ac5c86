"""``grace-torchrec report``: a plan as one HTML page."""

import json
from pathlib import Path

import click

from grace_torchrec.cli.places import BOARD, REPORT, InPath, OutPath
from grace_torchrec.plans.plan import Plan
from grace_torchrec.traces.profile import Profile
from grace_torchrec.views.report import write_report
from grace_torchrec.views.tensorboard import Board


@click.command()
@click.argument("plan", type=InPath())
@click.option(
    "-o",
    "--out",
    type=OutPath(REPORT),
    default=Path("report.html"),
    show_default=True,
    help="HTML file to write.",
)
@click.option(
    "--profile",
    "profile_folder",
    type=InPath(),
    help="Profile folder: rows are placed anew for other HBM sizes and bandwidths.",
)
@click.option(
    "--tensorboard",
    "board_folder",
    type=OutPath(BOARD),
    help="Also write tags, options and the figure of the plan for TensorBoard here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(
    plan: Path, out: Path, profile_folder: Path | None, board_folder: Path | None, as_json: bool
) -> None:
    """Write PLAN as one HTML page that needs no network: times, verdicts, sums, other machines."""
    loaded = Plan.load(plan)
    profile = Profile.load(profile_folder) if profile_folder is not None else None
    written = write_report(loaded, out, profile, str(plan))
    if profile is not None and profile.fingerprint() != loaded.profile_fingerprint:
        other = "not the bags that the plan was made from; only the section What if is of them"
        click.echo(f"note: {profile_folder}: {other}", err=True)
    if board_folder is not None:
        with Board(board_folder) as board:
            board.plan(loaded)
    if as_json:
        told = {"plan": str(plan), "report": str(written), "tables": len(loaded.tables)}
        folder = None if board_folder is None else str(board_folder)
        click.echo(json.dumps({**told, "tensorboard": folder}))
        return
    click.echo(f"wrote {written}; open it in a browser")
    if board_folder is not None:
        click.echo(f"wrote {board_folder}; tensorboard --logdir {board_folder} shows it")
