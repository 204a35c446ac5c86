"""Inputs that cases share: a trace from a file or from the generator."""

from pathlib import Path

import click

from grace_torchrec.traces.readers import read
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def load_trace(trace: Path | None, sizes: str | None, seed: int) -> Trace:
    """Return the trace that ``--trace F`` (of any format that tells itself) or ``--generate ITEMS,USERS`` names.

    Raises:
        GraceError: the file is refused.
        click.UsageError: neither or both are given, or the sizes are not two numbers.
    """
    if (trace is None) == (sizes is None):
        raise click.UsageError("give one of --trace F, --generate ITEMS,USERS")
    return read(trace) if trace is not None else _generated(sizes or "", seed)


def _generated(sizes: str, seed: int) -> Trace:
    """Return the trace of ``--generate ITEMS,USERS``."""
    try:
        num_items, num_users = (int(size) for size in sizes.split(","))
    except ValueError as error:
        raise click.UsageError(
            f"--generate {sizes}: two whole numbers expected, as 20000,50000"
        ) from error
    return generate(num_items, num_users, seed)
