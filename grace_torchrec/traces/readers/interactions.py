"""Logs of interactions: ``user item [rating] [time]`` a line, grouped into one bag a user.

Flow: file -> *read_interactions* -> Trace.  Formats: MovieLens (``::``, tab, CSV with header),
RecBole ``.inter`` (typed header), SASRec (``user item``), and other CSV or TSV logs.
Shapes: P lines of a block.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.readers.columns import (
    Columns,
    cut_columns,
    keys,
    parse_integers,
    parse_numbers,
    trimmed,
)
from grace_torchrec.traces.readers.first_seen import ItemNames
from grace_torchrec.traces.readers.integer_lines import parse_token, refuse_empty, text_blocks
from grace_torchrec.traces.readers.interaction_bags import Interactions, bags_of_users
from grace_torchrec.traces.readers.interaction_layout import FORM, Layout, tell_layout
from grace_torchrec.traces.readers.line_errors import (
    BadLines,
    count_line,
    line_error,
    open_source,
    refuse_line,
)
from grace_torchrec.traces.trace import Trace


def read_interactions(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> Trace:
    """Read one interaction a line; each user is one bag, in order of first appearance.

    Separator and header are told by the first line. With a header the columns are found by
    their names (RecBole's ``:token``, ``:float`` are left out); without one they are user,
    item, rating, time, and a third column without a fourth is a time where its first value is
    10**8 or more. Items keep their numbers; users may be any text (told apart by 64 bits).
    With a time the ids of a bag stand in its order (equal times in the order of the file) and
    ``time_B`` is the latest of the bag; without one the order of the file stays. Ratings and
    other columns are not read. A column may stand in quotes, but no separator inside of them.

    Args:
        path: Text file, plain or gzip.
        columns: Names of the columns from the left, for files without (or with another)
            header; ``user`` and ``item`` are needed, ``time`` is used, others are left out
            (``-``). Each column of the first line needs one.

    Raises:
        GraceError: the file cannot be read or is empty, its columns cannot be told, some of them
            are not named, or
            ``FILE:LINE:`` of a line with too few columns, a column whose quotes are not closed, or an item or time
            that is no number.
    """
    return concatenate(stream_interactions(path, columns=columns))


def stream_interactions(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    names: ItemNames | None = None,
    bad_lines: BadLines | None = None,
) -> Iterator[Trace]:
    """Yield the bags of 65,536 users at a time; see :func:`read_interactions`.

    A bag is whole when the file is read to its end: until then lines wait, in temporary files
    where they are many. Memory holds a piece, four million lines and 16 bytes a user.

    Args:
        path: As for the reader, as the next.
        columns: Names of the columns.
        names: Numbers the items, which may then be any text. None: they keep their numbers.
        bad_lines: Counts bad lines, which are left out. None: the first is an error.

    Raises:
        GraceError: as the reader, or an item that has no row where names were given.
    """
    pieces = bags_of_users(_interactions(path, columns, names, bad_lines))
    for piece in pieces:  # all lines are read by now, all items have their rows
        yield piece if names is None else piece.over(len(names.names))


def _interactions(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None,
    names: ItemNames | None,
    bad_lines: BadLines | None,
) -> Iterator[Interactions]:
    """Yield the lines of a file block by block."""
    found = 0
    for every, layout in _blocks(path, columns, names is not None):
        block = _with_columns(path, every, layout, bad_lines)
        good_P = np.ones(block.line_P.size, np.bool_)
        times = None
        if layout.time is not None:
            times = _times(path, block, layout.time, good_P, bad_lines)
        if names is None:
            items = _items(path, block, layout.item, good_P, bad_lines)
        else:
            items = _rows(path, block, layout.item, names, good_P, bad_lines)
        users = keys(block, *block.column(layout.user))
        found += int(good_P.sum())
        yield Interactions(users[good_P], items[good_P], None if times is None else times[good_P])
    if not found:
        line_error(path, 1, "no line holds an interaction", FORM)


def _blocks(
    path: str | os.PathLike[str], names: Sequence[str] | None, text_items: bool
) -> Iterator[tuple[Columns, Layout]]:
    """Yield the blocks of a file, cut into columns; the header is left out."""
    layout, first_line = None, 1
    with open_source(path) as source:
        for block in text_blocks(path, source, FORM):
            num_lines = block.count(b"\n")
            if layout is None and block.strip():
                blank = len(block) - len(block.lstrip())
                skipped = block[:blank].count(b"\n")  # blank lines before the first
                head = block.splitlines()[0] if not skipped else block[blank:].splitlines()[0]
                layout = tell_layout(path, first_line + skipped, head, names, text_items)
                if layout.header:
                    block = block.split(b"\n", skipped + 1)[-1]
                    first_line, num_lines = first_line + skipped + 1, num_lines - skipped - 1
            if layout is not None and block:
                yield cut_columns(block, first_line, layout.separator), layout
            first_line += num_lines
    if layout is None:
        refuse_empty(path, first_line == 1, "no line is filled", FORM)


def _with_columns(
    path: str | os.PathLike[str], block: Columns, layout: Layout, bad_lines: BadLines | None
) -> Columns:
    """Return the lines with enough columns, none of them cut inside of quotes."""
    short_P = block.count_P < layout.least_columns
    for line in np.flatnonzero(short_P).tolist():
        count = int(block.count_P[line])
        what = f"{count} columns, at least {layout.least_columns} expected"
        refuse_line(path, int(block.line_P[line]), what, FORM, bad_lines)
    block = block.take(~short_P) if short_P.any() else block
    unclosed_P = block.unclosed(layout.least_columns)
    for line in np.flatnonzero(unclosed_P).tolist():
        what = "a quote opens a column and does not close it"
        todo = "separators inside of quotes are not read: use another separator in the file"
        refuse_line(path, int(block.line_P[line]), what, todo, bad_lines)
    return block.take(~unclosed_P) if unclosed_P.any() else block


def _items(
    path: str | os.PathLike[str],
    block: Columns,
    column: int,
    good_P: npt.NDArray[np.bool_],
    bad_lines: BadLines | None,
) -> npt.NDArray[np.int64]:
    """Return the items of a block; ``good_P`` loses those that are no numbers."""
    starts, ends = block.column(column)
    values, odd = parse_integers(block, starts, ends)
    for line in odd[
        good_P[odd]
    ].tolist():  # names what is wrong, or reads what has more than 18 digits
        token = block.token(line, starts, ends)
        try:
            values[line] = parse_token(path, int(block.line_P[line]), token, FORM)
        except GraceError as error:
            count_line(error, bad_lines)
            good_P[line] = False
    return values


def _rows(
    path: str | os.PathLike[str],
    block: Columns,
    column: int,
    names: ItemNames,
    good_P: npt.NDArray[np.bool_],
    bad_lines: BadLines | None,
) -> npt.NDArray[np.int64]:
    """Return the rows of the items of a block; ``good_P`` loses those that have none."""
    starts, ends = block.column(column)
    starts, ends = trimmed(block.text_W, starts, ends)  # blanks inside of quotes
    for line in np.flatnonzero(good_P & (starts == ends)).tolist():
        refuse_line(path, int(block.line_P[line]), "the item is empty", FORM, bad_lines)
        good_P[line] = False
    own = np.flatnonzero(good_P)
    rows = np.full(good_P.size, -1, np.int64)
    rows[own] = names.rows_of(
        keys(block, starts[own], ends[own]),
        lambda place: block.token(int(own[place]), starts, ends, "surrogateescape"),
    )
    for line in own[rows[own] < 0].tolist():
        shown = ascii(block.token(line, starts, ends)[:40])
        what = f"item {shown} has no row"
        refuse_line(
            path,
            int(block.line_P[line]),
            what,
            "add it to the names, or number anew in a new file of names",
            bad_lines,
        )
        good_P[line] = False
    return rows


def _times(
    path: str | os.PathLike[str],
    block: Columns,
    column: int,
    good_P: npt.NDArray[np.bool_],
    bad_lines: BadLines | None,
) -> npt.NDArray[np.float64]:
    """Return the times of a block; ``good_P`` loses those that are no numbers."""
    starts, ends = block.column(column)
    values, odd = parse_numbers(block, starts, ends)
    for line in odd.tolist():
        what = f"time {block.token(line, starts, ends)[:40]!a} is no number"
        todo = "give seconds since 1970, or leave the column out"
        refuse_line(path, int(block.line_P[line]), what, todo, bad_lines)
        good_P[line] = False
    return values
