"""Where the columns of a log of interactions stand, told by its first line.

Flow: first line -> *Layout* -> interactions.  Without a header the columns are user, item,
rating, time.
"""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.line_errors import (
    LEAVE_COLUMNS,
    NAME_COLUMNS,
    line_error,
    open_source,
)

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
FORM = "lines are `user item [rating] [time]`, items are numbered from 0 as the rows of the table"


@dataclass(frozen=True)
class Layout:
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


def tell_layout(
    path: str | os.PathLike[str],
    line: int,
    head: bytes,
    names: Sequence[str] | None,
    text_items: bool,
) -> Layout:
    """Tell separator, header and columns from the first line that is filled.

    A header is a line whose item is no number; where items may be any text, one that names columns.
    """
    if b"\0" in head:
        line_error(path, line, "the line holds a NUL byte", "is this a binary file? " + FORM)
    separator = next((s for s in SEPARATORS if s in head.strip()), None)
    if separator is None:
        line_error(path, line, f"{head[:40].decode('latin-1')!a} is one column", FORM)
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
    if text_items:
        own = _named([_plain(token) for token in tokens])
        header = own["user"] is not None and own["item"] is not None
    else:
        header = number >= len(tokens) or not _is_number(tokens[number])
    if not header and names is None:
        return _unnamed(path, line, tokens, separator)
    user, item = named["user"], named["item"]
    if (user is None or item is None) and names is not None:
        raise GraceError(
            f"{os.fspath(path)}: the columns {', '.join(names)[:80]!a} name no user or no item; "
            "call them user and item"
        )
    if names is not None and len(names) < len(tokens):  # else a rating may be read as a time
        what = f"the line has {len(tokens)} columns and {len(names)} are named"
        todo = "name each from the left ('-' leaves one out)"
        own = _named([_plain(token) for token in tokens])
        if own["user"] is not None and own["item"] is not None:
            todo = f"{todo}, {LEAVE_COLUMNS}: the line names them itself"
        line_error(path, line, what, todo)
    if user is None or item is None:
        lacks = "user" if user is None else "item"
        line_error(
            path,
            line,
            f"no column of {', '.join(found)[:80]!a} is known as the {lacks}",
            f"rename it to user or item, or {NAME_COLUMNS}",
        )
    return Layout(separator, user, item, named["time"], header)


def _named(found: list[str]) -> dict[str, int | None]:
    """Return the first column of each kind."""
    kinds = {"user": USER_NAMES, "item": ITEM_NAMES, "time": TIME_NAMES}
    return {
        kind: next((found.index(name) for name in names if name in found), None)
        for kind, names in kinds.items()
    }


def _unnamed(
    path: str | os.PathLike[str], line: int, tokens: list[str], separator: bytes
) -> Layout:
    """Return the layout of a file without header."""
    if len(tokens) > 4:
        line_error(
            path,
            line,
            f"{len(tokens)} columns without a header",
            f"keep two to four, or {NAME_COLUMNS}",
        )
    is_time = len(tokens) == 3 and _is_number(tokens[2]) and float(tokens[2]) >= EARLIEST_TIME
    time = 3 if len(tokens) == 4 else 2 if is_time else None
    return Layout(separator, 0, 1, time, False)


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
