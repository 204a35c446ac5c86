"""``grace-torchrec plan``: what to store beside the tables of a model, and where, as a plan folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click

from grace_sharding.memory_files import memory_named
from grace_torchrec import api
from grace_torchrec.cli.model_argument import load_model
from grace_torchrec.cli.options import (
    budget_option,
    hbm_bytes_option,
    host_bytes_option,
    progress_to_stderr,
)
from grace_torchrec.cli.places import PLAN, InPath, OutPath
from grace_torchrec.errors import PlanMismatch
from grace_torchrec.plans.options import BadIds, Rewriting
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.texts import NO_BAGS, NO_WEIGHTS, NOT_HELD, names
from grace_torchrec.traces.profile import Profile

LACKS = {  # reasons to leave a table stock that are the profile's -> what to do
    NOT_HELD: "record its bags too, if sums of it may pay",
    NO_BAGS: "record some",
    NO_WEIGHTS: "record them with their weights",
}
AGAIN = "grace-torchrec profile TRACE --table NAME --feature NAME, with the names of the model"


@click.command()
@click.argument("model")
@click.option(
    "--profile",
    "profile_folder",
    type=InPath(),
    required=True,
    help="Profile folder of its bags; tables it lacks are left stock.",
)
@click.option(
    "--memory", required=True, help="Machine that will serve: a name, or a file of calibrate."
)
@hbm_bytes_option
@host_bytes_option
@budget_option
@click.option(
    "--rewriting",
    type=click.Choice(["in_line", "ahead"]),
    default="in_line",
    show_default=True,
    help="How bags arrive: plain, or rewritten by the loader.",
)
@click.option(
    "--bad-ids",
    type=click.Choice(get_args(BadIds)),
    default="raise",
    show_default=True,
    help="What serving does with an id outside its table.",
)
@click.option(
    "-o",
    "--out",
    type=OutPath(PLAN),
    default=Path("plan"),
    show_default=True,
    help="Plan folder to write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    model: str,
    profile_folder: Path,
    memory: str,
    hbm_bytes: int | None,
    host_bytes: int | None,
    budget: float,
    rewriting: Rewriting,
    bad_ids: BadIds,
    out: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan MODEL (package.module:function, which returns model and example batches) for a machine."""
    machine = memory_named(memory, hbm_bytes, host_bytes)
    options = PlanOptions(budget=budget, rewriting=rewriting, bad_ids=bad_ids)
    profile = Profile.load(profile_folder)
    with progress_to_stderr() as progress:
        progress(f"making {model}")
        given = load_model(model, to_plan=True).model
        try:
            made = api.plan(given, profile, machine, options, progress=progress)
        except PlanMismatch as error:
            raise PlanMismatch(f"{error}: {AGAIN}") from error
    made.save(out)
    for warning in _lacking(made):
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(summarise(made, str(out)).document()))
    else:
        click.echo(f"{made!r}\nsaved as {out}; grace-torchrec inspect {out} shows it")


def _lacking(made: Plan) -> Iterator[str]:
    """Yield what the profile lacks, with the tables that are left stock for it."""
    for reason, todo in LACKS.items():
        tables = [key for key, table in made.tables.items() if table.reason.startswith(reason)]
        if tables:
            yield f"left stock: {names(tables)}: {reason}; {todo}"
