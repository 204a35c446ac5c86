"""A picture of latency by clients, one line for each entrant.

Flow: JSON object of the load test -> *write_latency_figure* -> file (matplotlib chooses by its name).
"""

import os
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError, NotSupported

TYPES = ("png", "svg", "pdf")
SHADED = 5  # rounds: of fewer, 20 % are less than one


def check_figure(path: str | os.PathLike[str]) -> None:
    """Refuse a file that no picture can be written to.

    Raises:
        NotSupported: matplotlib is not installed.
        GraceError: its name ends in none of the types that are written.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotSupported("a figure needs matplotlib; pip install matplotlib") from error
    if _type(path) not in TYPES:
        raise GraceError(f"{os.fspath(path)}: no type of pictures; name it .png, .svg or .pdf")


def write_latency_figure(found: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw median and 99th percentile over the number of clients.

    Args:
        found: What the load test returned.
        path: File to write, .png, .svg or .pdf.

    Raises:
        NotSupported: matplotlib is not installed.
        GraceError: the file cannot be written.
    """
    check_figure(path)
    from matplotlib.figure import Figure

    labels, shaded = list(found["clients"]), found["rounds"] >= SHADED
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, quantile in zip(figure.subplots(1, 2), ("p50", "p99"), strict=True):
        for name in found["clients"][labels[0]]:
            cells = [found["clients"][label][name] for label in labels]
            axes.plot(labels, _points(cell[quantile] for cell in cells), marker="o", label=name)
            if shaded:
                low, high = zip(*(cell["spread"][quantile] for cell in cells), strict=True)
                axes.fill_between(labels, _points(low), _points(high), alpha=0.15)
        axes.set_xlabel("load" if found["pattern"] else "clients")
        axes.set_ylabel(f"{quantile} latency, ms")
        axes.set_ylim(bottom=0)
    axes.legend()
    told = ", 20 to 80 % shaded" if shaded else ""
    figure.suptitle(f"{found['subject']}: median of {found['rounds']} rounds{told}")
    drawn = BytesIO()
    figure.savefig(drawn, format=_type(path))
    try:
        artifact.write_file(path, drawn.getvalue())
    except OSError as error:
        raise GraceError(f"{path}: cannot be written: {error.strerror}") from error


def _points(values: Iterable[float | None]) -> list[float]:
    """Return values as matplotlib takes them: what is not known is a gap."""
    return [float("nan") if value is None else value for value in values]


def _type(path: str | os.PathLike[str]) -> str:
    """Return the type of a picture, as its name says."""
    return Path(path).suffix.removeprefix(".").lower()
