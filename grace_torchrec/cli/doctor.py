"""``grace-torchrec doctor``: the versions found beside those that fit, and how to mend the rest."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from grace_torchrec.doctor.diagnose import diagnose
from grace_torchrec.doctor.facts import collect
from grace_torchrec.doctor.findings import Diagnosis, Finding


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this installation and say how to mend it.

    Compares the installed torch, fbgemm, torchrec, triton, numba and numpy with releases that are
    known to fit, and imports them in processes of their own. Exit code 1 means that something is wrong.
    """
    diagnosis = diagnose(collect())
    click.echo(as_document(diagnosis) if as_json else "\n".join(as_lines(diagnosis)))
    ctx.exit(0 if diagnosis.healthy else 1)


def as_document(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object: ``healthy``, ``packages``, ``findings``."""
    return json.dumps({"healthy": diagnosis.healthy, **asdict(diagnosis)}, indent=2)


def as_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The diagnosis as text: the table, then each finding with the pip lines that mend it."""
    header = ("package", "found", "known good")
    rows = [(row.package, row.found, row.known_good) for row in diagnosis.packages]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    marks = ["", *("" if row.fits else "  <- look below" for row in diagnosis.packages)]
    for cells, mark in zip([header, *rows], marks, strict=True):
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield padded.rstrip() + mark
    yield ""
    for finding in diagnosis.findings:
        yield from _finding_lines(finding)
    if any("+cpu" in line for finding in diagnosis.findings for line in finding.fix):
        yield "torch releases that end in +cpu come from PyTorch's CPU wheel index"
    yield "healthy" if diagnosis.healthy else "not healthy"


def _finding_lines(finding: Finding) -> Iterator[str]:
    """One finding and its pip lines, indented so that they can be copied."""
    yield f"{finding.level}: {finding.text}"
    for line in finding.fix:
        yield f"    {line}"
    yield ""
