"""Options and habits that sub-commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console

text_format_option = click.option(
    "--format",
    "text_format",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="How to show it; markdown has all columns.",
)

hbm_bytes_option = click.option(
    "--hbm-bytes", type=int, help="HBM for rows; default: what the machine has."
)
budget_option = click.option(
    "--budget",
    type=float,
    default=1.0,
    show_default=True,
    help="Most sums, as a multiple of the rows.",
)


@contextmanager
def progress_to_stderr() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: a spinner on a terminal, else silent."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("starting") as status:
        yield status.update
