"""``grace-torchrec diff``: what moved between two plans, and what it costs."""

import json

import click

from grace_torchrec.cli.options import show, text_format_option
from grace_torchrec.cli.plan_argument import load_summary
from grace_torchrec.plans.diff import diff_plans
from grace_torchrec.views.diff_tables import diff_markdown, diff_view


@click.command()
@click.argument("before")
@click.argument("after")
@text_format_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(before: str, after: str, text_format: str, as_json: bool) -> int:
    """Compare two plans, named as for inspect; exit code 1 when they differ."""
    found = diff_plans(load_summary(before), load_summary(after))
    if as_json:
        click.echo(json.dumps(found.document()))
    elif text_format == "markdown":
        click.echo(diff_markdown(found))
    else:
        show(diff_view(found))
    return 1 if found.differs else 0
