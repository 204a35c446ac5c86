"""Logs of interactions: ``user item [rating] [time]`` a line, grouped into one bag a user.

Flow: file -> *read_interactions* -> Trace.  Formats: MovieLens (``::``, tab, CSV with header),
RecBole ``.inter`` (typed header), SASRec (``user item``), and other CSV or TSV logs.
Shapes: T interactions, B users.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.traces.readers.columns import (
    Columns,
    cut_columns,
    keys,
    parse_integers,
    parse_numbers,
)
from grace_torchrec.traces.readers.integer_lines import parse_token, text_blocks
from grace_torchrec.traces.readers.line_errors import line_error, open_source
from grace_torchrec.traces.trace import Trace

SEPARATORS = (b"\t", b"::", b",", b";", b"|", b" ")  # the first that the first line holds
USER_NAMES = (
    *("user", "user_id", "userid", "uid", "reviewerid", "reviewer_id", "visitorid"),
    *("customer_id", "session", "session_id", "sessionid", "basket", "order_id"),
)
ITEM_NAMES = (
    *("item", "item_id", "itemid", "iid", "movieid", "movie_id", "asin", "parent_asin"),
    *("video_id", "product_id", "productid", "article_id", "business_id", "book_id"),
)
TIME_NAMES = ("time", "timestamp", "ts", "unixreviewtime", "time_ms", "unix_time", "datetime")
EARLIEST_TIME = 10**8  # a third column from here on is Unix time, below it a rating
_FORM = "lines are `user item [rating] [time]`, items are numbered from 0 as the rows of the table"


@dataclass(frozen=True)
class _Layout:
    """Where the columns stand.

    Attributes:
        separator: Bytes between columns; a space for any run of blanks.
        user: Column of the user.
        item: Column of the item.
        time: Column of the time, or None.
        header: The first line names the columns.
    """

    separator: bytes
    user: int
    item: int
    time: int | None
    header: bool

    @property
    def least_columns(self) -> int:
        """Columns that every line must have."""
        return 1 + max(self.user, self.item, -1 if self.time is None else self.time)


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
    other columns are not read. The whole file is held once as numbers: 24 bytes a line.

    Args:
        path: Text file, plain or gzip.
        columns: Names of the columns from the left, for files without (or with another)
            header; ``user`` and ``item`` are needed, ``time`` is used, others are left out.

    Raises:
        GraceError: the file cannot be read or is empty, its columns cannot be told, or
            ``FILE:LINE:`` of a line with too few columns, or an item or time that is no number.
    """
    users: list[npt.NDArray[np.uint64]] = []
    items: list[npt.NDArray[np.int64]] = []
    times: list[npt.NDArray[np.float64]] = []
    for block, layout in _blocks(path, columns):
        _check_counts(path, block, layout)
        users.append(keys(block, *block.column(layout.user)))
        items.append(_items(path, block, layout.item))
        if layout.time is not None:
            times.append(_times(path, block, layout.time))
    if not sum(part.size for part in items):
        line_error(path, 1, "no line holds an interaction", _FORM)
    return _grouped(
        np.concatenate(users), np.concatenate(items), np.concatenate(times) if times else None
    )


def looks_like_interactions(path: str | os.PathLike[str]) -> bool:
    """Tell whether the first line is one that only this format has: ``::``, or a named header.

    Raises:
        GraceError: the file cannot be read.
    """
    try:
        with open_source(path) as source:
            line = source.read(4096).split(b"\n")[0].decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return False  # whoever reads the file says what is wrong with it
    if "::" in line and line.split("::")[0].strip().isdigit():
        return True
    tokens = [line]
    for separator in "\t,;|":
        tokens = [part for token in tokens for part in token.split(separator)]
    names = {_plain(token) for token in tokens}
    return bool(names & set(USER_NAMES) and names & set(ITEM_NAMES))


def _blocks(
    path: str | os.PathLike[str], names: Sequence[str] | None
) -> Iterator[tuple[Columns, _Layout]]:
    """Yield the blocks of a file, cut into columns; the header is left out."""
    layout, first_line = None, 1
    with open_source(path) as source:
        for block in text_blocks(path, source, _FORM):
            num_lines = block.count(b"\n")
            if layout is None and block.strip():
                blank = len(block) - len(block.lstrip())
                skipped = block[:blank].count(b"\n")  # blank lines before the first
                head = block.splitlines()[0] if not skipped else block[blank:].splitlines()[0]
                layout = _layout(path, first_line + skipped, head, names)
                if layout.header:
                    block = block.split(b"\n", skipped + 1)[-1]
                    first_line, num_lines = first_line + skipped + 1, num_lines - skipped - 1
            if layout is not None and block:
                yield cut_columns(block, first_line, layout.separator), layout
            first_line += num_lines
    if layout is None:
        line_error(path, 1, "the file is empty" if first_line == 1 else "no line is filled", _FORM)


def _layout(
    path: str | os.PathLike[str], line: int, head: bytes, names: Sequence[str] | None
) -> _Layout:
    """Tell separator, header and columns from the first line that is filled."""
    if b"\0" in head:
        line_error(path, line, "the line holds a NUL byte", "is this a binary file? " + _FORM)
    separator = next((s for s in SEPARATORS if s in head.strip()), None)
    if separator is None:
        line_error(path, line, f"{head[:40].decode('latin-1')!a} is one column", _FORM)
    if (
        separator == b"\t"
        and b" " in head.strip()
        and all(map(_is_number, head.decode("latin-1").split()))
    ):
        separator = b" "  # spaces and tabs between numbers: any run of them
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    tokens = text.split() if separator == b" " else text.split(separator.decode())
    found = [_plain(token) for token in (names or tokens)]
    named = _named(found)
    number = named["item"] if names and named["item"] is not None else 1
    header = number >= len(tokens) or not _is_number(tokens[number])
    if not header and names is None:
        return _unnamed(path, line, tokens, separator)
    user, item = named["user"], named["item"]
    if user is None or item is None:
        lacks = "user" if user is None else "item"
        line_error(
            path,
            line,
            f"no column of {', '.join(found)[:80]!a} is known as the {lacks}",
            "rename it to user or item, or name the columns: read_interactions(columns=)",
        )
    return _Layout(separator, user, item, named["time"], header)


def _named(found: list[str]) -> dict[str, int | None]:
    """Return the first column of each kind."""
    kinds = {"user": USER_NAMES, "item": ITEM_NAMES, "time": TIME_NAMES}
    return {
        kind: next((found.index(name) for name in names if name in found), None)
        for kind, names in kinds.items()
    }


def _unnamed(
    path: str | os.PathLike[str], line: int, tokens: list[str], separator: bytes
) -> _Layout:
    """Return the layout of a file without header."""
    if len(tokens) > 4:
        line_error(
            path,
            line,
            f"{len(tokens)} columns without a header",
            "name them: read_interactions(columns=('user', 'item', ...)), or keep two to four",
        )
    is_time = len(tokens) == 3 and _is_number(tokens[2]) and float(tokens[2]) >= EARLIEST_TIME
    time = 3 if len(tokens) == 4 else 2 if is_time else None
    return _Layout(separator, 0, 1, time, False)


def _plain(token: str) -> str:
    """Return a column name without quotes, type and case."""
    return token.strip().strip('"').split(":")[0].strip().lower()


def _is_number(token: str) -> bool:
    """Tell whether a token of the first line is data and no name."""
    try:
        float(token.strip().strip('"'))
    except ValueError:
        return False
    return True


def _check_counts(path: str | os.PathLike[str], block: Columns, layout: _Layout) -> None:
    """Refuse the first line with too few columns."""
    short = np.flatnonzero(block.count_P < layout.least_columns)
    if short.size:
        count = int(block.count_P[short[0]])
        line_error(
            path,
            int(block.line_P[short[0]]),
            f"{count} columns, at least {layout.least_columns} expected",
            _FORM,
        )


def _items(path: str | os.PathLike[str], block: Columns, column: int) -> npt.NDArray[np.int64]:
    """Return the items of a block."""
    starts, ends = block.column(column)
    values, odd = parse_integers(block, starts, ends)
    for line in odd.tolist():  # names what is wrong, or reads what has more than 18 digits
        token = block.token(line, starts, ends)
        values[line] = parse_token(path, int(block.line_P[line]), token, _FORM)
    return values


def _times(path: str | os.PathLike[str], block: Columns, column: int) -> npt.NDArray[np.float64]:
    """Return the times of a block."""
    starts, ends = block.column(column)
    values, odd = parse_numbers(block, starts, ends)
    if odd.size:
        shown = ascii(block.token(int(odd[0]), starts, ends)[:40])
        line_error(
            path,
            int(block.line_P[odd[0]]),
            f"time {shown} is no number",
            "give seconds since 1970, or leave the column out",
        )
    return values


def _grouped(
    user_T: npt.NDArray[np.uint64],
    item_T: npt.NDArray[np.int64],
    time_T: npt.NDArray[np.float64] | None,
) -> Trace:
    """Group interactions by user, users in order of first appearance."""
    _, first_B, group_T = np.unique(user_T, return_index=True, return_inverse=True)
    rank_B = np.empty(first_B.size, np.int64)
    rank_B[np.argsort(first_B)] = np.arange(first_B.size)
    bag_T = rank_B[group_T]
    order = np.argsort(bag_T, kind="stable") if time_T is None else np.lexsort((time_T, bag_T))
    offsets = np.zeros(first_B.size + 1, np.int64)
    np.cumsum(np.bincount(bag_T, minlength=first_B.size), out=offsets[1:])
    time_B = None if time_T is None else time_T[order][offsets[1:] - 1]
    return Trace(offsets, item_T[order], time_B=time_B)
