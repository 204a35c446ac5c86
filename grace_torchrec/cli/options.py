"""Options and habits that sub-commands share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
        folder = path.absolute().parent
        while not (self.in_folder or folder.exists()):
            folder = folder.parent
        if not folder.is_dir():
            self.fail(f"{str(path)!r}: {str(folder)!r} is no folder.", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{str(path)!r}: folder {str(folder)!r} is not writable.", param, ctx)
        return path


@contextmanager
def progress_to_stderr() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done: a spinner on a terminal, else silent."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("starting") as status:
        yield status.update
