"""The doctor's diagnosis as text.

Flow: Diagnosis -> *lines* -> ``doctor``.  Needs nothing but Python: it runs where nothing is installed.
"""

from collections.abc import Iterator

from grace_torchrec.doctor.findings import Diagnosis, Finding


def doctor_lines(diagnosis: Diagnosis) -> Iterator[str]:
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
