"""``grace-torchrec inspect``: what a plan puts where, what it costs, and why."""

import json

import click

from grace_torchrec.cli.options import show, text_format_option
from grace_torchrec.cli.plan_argument import load_summary
from grace_torchrec.views.plan_tables import inspect_markdown, inspect_view

WIDE_COLUMNS = 260


@click.command()
@click.argument("plan")
@click.option("--wide", is_flag=True, help="All columns, whatever the width of the terminal.")
@text_format_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(plan: str, wide: bool, text_format: str, as_json: bool) -> None:
    """Show PLAN: rows, bytes, reads, time and slack of each table and memory, verdict and reason.

    PLAN is a plan folder, a JSON file with a sharding plan of TorchRec, or package.module:function,
    a function that returns a ShardingPlan or (ShardingPlan, model).
    """
    summary = load_summary(plan)
    if as_json:
        click.echo(json.dumps(summary.document()))
    elif text_format == "markdown":
        click.echo(inspect_markdown(summary))
    else:
        show(inspect_view(summary, wide), WIDE_COLUMNS if wide else None)
