"""Options of commands that read a trace file: format, columns, and names of items.

Flow: options -> *RowNames*, *read_trace* -> readers.
"""

from dataclasses import dataclass
from pathlib import Path

import click

from grace_torchrec.cli.places import NAMES, OutPath
from grace_torchrec.traces.readers import FORMATS, ItemNames, read
from grace_torchrec.traces.readers.interaction_layout import ITEM_NAMES, TIME_NAMES, USER_NAMES
from grace_torchrec.traces.trace import Trace


def _column_names(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Return the names between the commas.

    Raises:
        click.BadParameter: one is empty, or two are the same of user, item and time.
    """
    if value is None:
        return None
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise click.BadParameter(f"{value!r}: give a name for each column, as user,item,time.")
    for known in (USER_NAMES, ITEM_NAMES, TIME_NAMES):
        if sum(name.lower() in known for name in names) > 1:
            raise click.BadParameter(
                f"{value!r}: two columns are the {known[0]}; call one of them -."
            )
    return names


format_option = click.option(
    "--format",
    "trace_format",
    type=click.Choice(sorted(FORMATS)),
    help="Default: by name and content.",
)
columns_option = click.option(
    "--columns",
    callback=_column_names,
    metavar="NAME,...",
    help="Columns of a log of interactions from the left, for a file without such a header: user, item "
    "and, if there is one, time; any other name for a column that is left out.",
)
remap_option = click.option(
    "--remap",
    "names_file",
    type=OutPath(NAMES),
    help="Number the items: by this file (the name of row 0, of row 1 ..., one a line) where it is "
    "there; else by first appearance, and write it. Text files may then hold any words as ids.",
)


@dataclass
class RowNames:
    """The names of rows that ``--remap`` gives.

    Attributes:
        file: Of the names, or None: items keep their numbers.
        names: What is in it, or will be.
        is_new: It has to be written.
    """

    file: Path | None
    names: ItemNames | None
    is_new: bool

    @classmethod
    def of(cls, file: Path | None) -> "RowNames":
        """Read the names, or begin some.

        Raises:
            GraceError: the file is there and holds no names.
        """
        if file is None:
            return cls(None, None, False)
        return cls(file, ItemNames.load(file) if file.exists() else ItemNames(), not file.exists())

    def save(self) -> None:
        """Write names that are new, once the job is done: the next one would read those of a failed one.

        Raises:
            GraceError: they cannot be written.
        """
        if self.is_new and self.names is not None and self.file is not None:
            self.names.save(self.file)


def read_trace(
    path: Path, trace_format: str | None, columns: tuple[str, ...] | None, rows: RowNames
) -> Trace:
    """Read one trace file as the options say; names that are new are left to :meth:`RowNames.save`.

    Raises:
        GraceError: it cannot be read.
    """
    return read(path, trace_format, columns=columns, names=rows.names)
