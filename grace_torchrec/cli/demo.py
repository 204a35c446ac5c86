"""``grace-torchrec demo``: the whole job on a trace, with measured and modelled figures apart."""

import json
from dataclasses import replace
from pathlib import Path

import click

from grace_sharding.memory_files import memory_named
from grace_torchrec import artifact
from grace_torchrec.cli.options import (
    budget_option,
    hbm_bytes_option,
    host_bytes_option,
    progress_to_stderr,
    show,
)
from grace_torchrec.cli.places import DEMO, InPath, OutPath
from grace_torchrec.cli.trace_options import (
    RowNames,
    columns_option,
    format_option,
    read_trace,
    remap_option,
)
from grace_torchrec.demo.job import run
from grace_torchrec.demo.result import DemoResult
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace
from grace_torchrec.views.demo import demo_view
from grace_torchrec.views.report import write_report

GENERATED = (20_000, 12_000)  # items, bags


@click.command()
@click.option(
    "--trace",
    "trace_file",
    type=InPath(),
    help="Trace file; default: a generated trace.",
)
@format_option
@columns_option
@remap_option
@click.option(
    "--memory",
    default="a40",
    show_default=True,
    help="Target machine that is modelled: a name, or a file of calibrate.",
)
@hbm_bytes_option
@host_bytes_option
@budget_option
@click.option(
    "-o",
    "--out",
    type=OutPath(DEMO),
    default=Path("grace-demo"),
    show_default=True,
    help="Folder to write: profile/, plan/, report.html, tensorboard/, demo.json (what --json prints).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(
    trace_file: Path | None,
    trace_format: str | None,
    columns: tuple[str, ...] | None,
    names_file: Path | None,
    memory: str,
    hbm_bytes: int | None,
    host_bytes: int | None,
    budget: float,
    out: Path,
    as_json: bool,
) -> None:
    """Run the whole job on a trace: profile, plan, train, swap, verify, measure, report.

    A verdict "leave stock" is a finished job too.
    """
    if trace_file is None and (trace_format or columns or names_file):
        raise click.UsageError("--format, --columns and --remap are for a --trace: give one.")
    target = memory_named(memory, hbm_bytes, host_bytes)
    options, rows = PlanOptions(budget=budget), RowNames.of(names_file)
    with progress_to_stderr() as progress:
        progress(f"reading {trace_file}" if trace_file else "generating bags")
        name, trace = _trace(trace_file, trace_format, columns, rows)
        with artifact.new_folder(out, "demo") as aside:
            made = run(trace, name, target, aside, options, progress)
            progress("writing the report")
            result = replace(made, profile_path=str(out / "profile"), plan_path=str(out / "plan"))
            _report(made, aside / "report.html", result.plan_path)
            found = {**result.document(), "report": str(out / "report.html")}
            artifact.write_document(aside / "demo.json", found)
            rows.save()
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(demo_view(result))
        click.echo(f"report: {found['report']} (open it in a browser)")
    if not result.equal:
        raise click.exceptions.Exit(1)


def _report(made: DemoResult, path: Path, source: str) -> None:
    """Write the plan as a page, its rows placed anew for other machines from the saved profile."""
    write_report(Plan.load(made.plan_path), path, Profile.load(made.profile_path), source)


def _trace(
    trace_file: Path | None,
    trace_format: str | None,
    columns: tuple[str, ...] | None,
    rows: RowNames,
) -> tuple[str, Trace]:
    """Return the name and the bags of the trace that was asked for."""
    if trace_file is None:
        return f"generated {GENERATED[0]:,} items, {GENERATED[1]:,} bags", generate(*GENERATED)
    return trace_file.stem, read_trace(trace_file, trace_format, columns, rows)
