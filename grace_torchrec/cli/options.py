"""Options and habits that sub-commands share."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

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
budget_option = click.option(
    "--budget",
    type=Number(0, MOST_BUDGET),
    default=1.0,
    show_default=True,
    help="Most sums, as a multiple of the rows.",
)


class OutPath(click.Path):
    """A file or folder that the command will write; refused before the work where it could not be."""

    def __init__(self, *, in_folder: bool = False) -> None:
        """Take a path.

        Args:
            in_folder: It is a file, whose folder must be there; else missing folders are made.
        """
        super().__init__(path_type=Path, dir_okay=not in_folder)
        self.in_folder = in_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: no folder that is there could take it.
        """
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not str(value):
            self.fail("it is empty.", param, ctx)
        folder = path.absolute().parent
        while not (self.in_folder or folder.exists()):
            folder = folder.parent
        if not folder.is_dir():
            self.fail(f"{str(path)!r}: {str(folder)!r} is no folder.", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{str(path)!r}: folder {str(folder)!r} is not writable.", param, ctx)
        return path


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
