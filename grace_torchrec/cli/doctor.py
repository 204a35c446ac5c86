"""``grace-torchrec doctor``: the versions found beside those that fit, and how to mend the rest."""

import json
from dataclasses import asdict

import click

from grace_torchrec.doctor.diagnose import diagnose
from grace_torchrec.doctor.facts import collect
from grace_torchrec.views.doctor_text import doctor_lines


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this installation and say how to mend it.

    Compares the installed torch, fbgemm, torchrec, triton, numba and numpy with releases that are
    known to fit, and imports them in processes of their own. Exit code 1 means that something is wrong.
    """
    diagnosis = diagnose(collect())
    if as_json:
        click.echo(json.dumps({"healthy": diagnosis.healthy, **asdict(diagnosis)}, indent=2))
    else:
        click.echo("\n".join(doctor_lines(diagnosis)))
    ctx.exit(0 if diagnosis.healthy else 1)
