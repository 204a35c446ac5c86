"""Options and habits that sub-commands share."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich.console import Console, RenderableType

from grace_torchrec.plans.options import MOST_BUDGET

text_format_option = click.option(
    "--format",
    "text_format",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="How to show it; markdown has all columns.",
)


class Number(click.FloatRange):
    """A finite number in a range: ``nan`` is in every range of click's."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number.

        Raises:
            click.BadParameter: it is none, or out of range.
        """
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


hbm_bytes_option = click.option(
    "--hbm-bytes", type=click.IntRange(min=0), help="HBM for rows; default: what the machine has."
)
host_bytes_option = click.option(
    "--host-bytes", type=click.IntRange(min=0), help="The same of host memory; 0: all rows in HBM."
)
budget_option = click.option(
    "--budget",
    type=Number(0, MOST_BUDGET),
    default=1.0,
    show_default=True,
    help="Most sums, as a multiple of the rows.",
)


class _Output(Console):
    """A console that leaves it to the command line what happens once nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Go on with the BrokenPipeError, which rich is about to hide."""
        raise


def show(what: RenderableType, width: int | None = None) -> None:
    """Print a table or a text of rich on standard output.

    Args:
        what: It.
        width: Columns; None: those of the terminal.
    """
    _Output(width=width).print(what)


@contextmanager
def progress_to_stderr(every_s: float = 30.0) -> Iterator[Callable[[str], None]]:
    """Yield a function that is told what is being done, and shows it on standard error.

    On a terminal a spinner shows it at once. Elsewhere, as in the log of a job, a line in so many
    seconds says what has been going on and for how long: short commands say nothing there.

    Args:
        every_s: Seconds between two lines.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    began, ended, doing = time.monotonic(), threading.Event(), ["starting"]

    def tell() -> None:
        while not ended.wait(every_s):
            with suppress(OSError, ValueError):  # nobody reads it any more
                click.echo(f"{time.monotonic() - began:.0f} s: {doing[0]}", err=True)

    teller = threading.Thread(target=tell, name="grace-progress", daemon=True)
    teller.start()
    try:
        yield lambda line: doing.__setitem__(0, line)
    finally:
        ended.set()
        teller.join()
