"""Lines of words as ids: what baskets and user_items hold where the items are numbered by name.

Flow: block of lines -> words between blanks -> rows by ItemNames -> *read_words* -> Trace.
Shapes: W bytes of a block, P lines that are not blank, T words, I items (words that are no user).
"""

import os
import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from grace_torchrec.traces.readers.columns import Columns, cut_columns, keys, unquoted
from grace_torchrec.traces.readers.first_seen import ItemNames
from grace_torchrec.traces.readers.integer_lines import refuse_empty, text_blocks
from grace_torchrec.traces.readers.interaction_layout import looks_like_interactions
from grace_torchrec.traces.readers.line_errors import (
    NAME_COLUMNS,
    READ_AS_LOG,
    BadLines,
    file_error,
    open_source,
    refuse_line,
)
from grace_torchrec.traces.trace import Trace

FORM = "lines hold items with spaces between them"
OTHER_SEPARATORS = (b",", b";", b"|", b"::")  # of logs; a tab is a blank to the lines read here
LEAST_LINES = 2  # from which on lines tell how they are written
Int64s = npt.NDArray[np.int64]


def read_words(
    path: str | os.PathLike[str],
    names: ItemNames,
    *,
    users: bool = False,
    bad_lines: BadLines | None = None,
) -> Iterator[Trace]:
    """Yield the bags of a file block by block, items numbered by their names; a line is a bag.

    Blank lines make no bag. A word ends at a blank, and one pair of double quotes around it is no
    part of it, as in a log of interactions: ``007`` is not ``7``.

    Args:
        path: Text file, plain or gzip.
        names: Numbers the items.
        users: The first word of a line is the user, who is dropped.
        bad_lines: Counts bad lines, which make no bag. None: the first is an error.

    Raises:
        GraceError: the file cannot be read, is empty or a log of interactions, or ``FILE:LINE:`` of
            a line that holds a NUL byte, an empty item, a negative number (padding), or an item that
            has no row.
    """
    if looks_like_interactions(path):
        file_error(path, f"its first line is that of a log of interactions; {READ_AS_LOG}")
    first_line, found = 1, 0
    with open_source(path) as source:
        for block in text_blocks(path, source, FORM):
            lines = cut_columns(block, first_line, b" ")
            if not found:
                _refuse_columns(path, lines)
            lines = _checked(path, lines, users, bad_lines)
            first_line += block.count(b"\n")
            found += lines.line_P.size
            yield _bags(path, lines, names, users, bad_lines)
    if not found:
        refuse_empty(path, first_line == 1, "no line holds an item", FORM)


def _refuse_columns(path: str | os.PathLike[str], lines: Columns) -> None:
    """Refuse lines of one word each, none of them twice, that another separator cuts alike.

    As items, none of them would ever be asked for again; they are lines of a log.
    """
    if lines.line_P.size < LEAST_LINES or (lines.count_P != 1).any():
        return
    words = [
        lines.text_W[start:end].tobytes()
        for start, end in zip(lines.starts_P.tolist(), lines.ends_P.tolist(), strict=True)
    ]
    cuts = [mark for mark in OTHER_SEPARATORS if all(mark in word for word in words)]
    if cuts and len(set(words)) == len(words):
        what = f"every line is one word, none of them twice, with {cuts[0].decode()!r} inside"
        todo = f"{READ_AS_LOG} and {NAME_COLUMNS}"
        file_error(path, f"{what}; if it is a log of interactions, {todo}; else {FORM}")


def _checked(
    path: str | os.PathLike[str], lines: Columns, users: bool, bad_lines: BadLines | None
) -> Columns:
    """Return the lines that hold nothing but names."""
    wrong: dict[int, tuple[str, str]] = {}  # line -> what, and what to do
    line_I, starts_I, ends_I = _items(lines, users)
    suspect_I = (starts_I == ends_I) | (lines.text_W[starts_I] == ord("-"))
    for item in np.flatnonzero(suspect_I).tolist():
        word = lines.token(item, starts_I, ends_I)
        if not word:
            wrong.setdefault(int(line_I[item]), ("an item is empty", FORM))
        elif re.fullmatch("-[0-9]+", word):
            told = (f"{word[:40]!a} is negative", "drop padding before")
            wrong.setdefault(int(line_I[item]), told)
    nul = np.flatnonzero(lines.text_W == 0)
    for line in np.unique(np.searchsorted(lines.starts_P, nul, side="right") - 1).tolist():
        wrong[line] = ("the line holds a NUL byte", f"is this a binary file? {FORM}")
    return _without(path, lines, wrong, bad_lines)


def _without(
    path: str | os.PathLike[str],
    lines: Columns,
    wrong: Mapping[int, tuple[str, str]],
    bad_lines: BadLines | None,
) -> Columns:
    """Refuse lines in their order; return the others."""
    good_P = np.ones(lines.line_P.size, np.bool_)
    for line in sorted(wrong):
        refuse_line(path, int(lines.line_P[line]), *wrong[line], bad_lines)
        good_P[line] = False
    return lines if good_P.all() else lines.take(good_P)


def _bags(
    path: str | os.PathLike[str],
    lines: Columns,
    names: ItemNames,
    users: bool,
    bad_lines: BadLines | None,
) -> Trace:
    """Return the bags of a block; a line with an item that has no row makes none."""
    line_I, starts_I, ends_I = _items(lines, users)
    rows_I = names.rows_of(
        keys(lines, starts_I, ends_I),
        lambda item: lines.token(item, starts_I, ends_I, "surrogateescape"),
    )
    wrong: dict[int, tuple[str, str]] = {}
    for item in np.flatnonzero(rows_I < 0).tolist():
        what = f"item {lines.token(item, starts_I, ends_I)[:40]!a} has no row"
        wrong.setdefault(
            int(line_I[item]), (what, "add it to the names, or number anew in a new file of names")
        )
    if wrong:  # then names were given, and none is new
        return _bags(path, _without(path, lines, wrong, bad_lines), names, users, bad_lines)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lines.count_P - users)])
    return Trace(offsets, rows_I, len(names.names))


def _items(lines: Columns, users: bool) -> tuple[Int64s, Int64s, Int64s]:
    """Return (line, first byte, byte behind) ``[I]`` of every item."""
    first_P, begins_T, stops_T = lines.cuts
    first_P, count_P = first_P + users, lines.count_P - users
    line_I = np.repeat(np.arange(count_P.size), count_P)
    word_I = np.arange(line_I.size) + np.repeat(first_P - (np.cumsum(count_P) - count_P), count_P)
    return line_I, *unquoted(lines.text_W, begins_T[word_I], stops_T[word_I])
