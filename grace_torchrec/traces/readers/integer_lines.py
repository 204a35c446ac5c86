"""Lines of non-negative integers, read in blocks: the shared half of the text readers.

Flow: file -> *read_lines* -> user_items, baskets -> Trace.  A block is parsed whole with numpy;
only a block that holds something unusual is walked line by line, to name the bad line or to
accept what the fast path does not know (numbers of more than 18 digits).
Accepted: spaces and tabs between numbers and at both ends, LF and CRLF, blank lines, a UTF-8
byte order mark, gzip.  Shapes: T numbers and P lines of one block.
"""

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NoReturn

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.line_errors import (
    NAME_ITEMS,
    UTF16_MARKS,
    BadLines,
    count_line,
    file_error,
    line_error,
    open_source,
)

BLOCK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 26  # a "line" beyond this is no bag, and would be held in memory whole
LARGEST = 2**62 - 1  # the largest id a Trace accepts
FAST_DIGITS = 18  # 10**18 < 2**62, so these need no overflow check
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BAD, _DIGIT, _BLANK, _NEWLINE = range(4)
_KINDS = np.full(256, _BAD, np.uint8)
_KINDS[list(b"0123456789")] = _DIGIT
_KINDS[list(b" \t\r")] = _BLANK
_KINDS[ord("\n")] = _NEWLINE
EMPTY = "give a file that holds bags"
_FORM = "lines hold non-negative integers with spaces between them"


@dataclass(frozen=True, eq=False)
class IntegerLines:
    """The numbers of consecutive lines.

    Attributes:
        first_line: Number of the first line, from 1.
        values_T: int64, all numbers in order.
        counts_P: int64, how many of them each line holds (0: a blank line).
    """

    first_line: int
    values_T: npt.NDArray[np.int64]
    counts_P: npt.NDArray[np.int64]

    def line_of(self, position: int) -> int:
        """Return the line number of ``values_T[position]``."""
        return self.first_line + int(
            np.searchsorted(np.cumsum(self.counts_P), position, side="right")
        )


def read_lines(
    path: str | os.PathLike[str], bad_lines: BadLines | None = None, form: str = _FORM
) -> Iterator[IntegerLines]:
    """Yield the lines of a text file, block by block, in bounded memory.

    Args:
        path: Text file, plain or gzip.
        bad_lines: Counts bad lines, which then stand as blank ones. None: the first is an error.
        form: What lines should hold, for messages.

    Raises:
        GraceError: the file cannot be read, or ``FILE:LINE:`` with what is wrong there.
    """
    first_line, found = 1, 0
    with open_source(path) as source:
        for block in text_blocks(path, source, form):
            lines = _parse_fast(block, first_line) or _parse_slow(
                path, block, first_line, bad_lines, form
            )
            first_line += lines.counts_P.size
            found += lines.values_T.size
            yield lines
    if not found:
        refuse_empty(path, first_line == 1, "no line holds a number", form)


def refuse_empty(path: str | os.PathLike[str], is_empty: bool, what: str, todo: str) -> NoReturn:
    """Raise the error of a file in which nothing was found.

    Args:
        path: File as the caller named it.
        is_empty: It has no line.
        what: What is wrong where it has some.
        todo: What the user can do then; into an empty file no form brings a bag.

    Raises:
        GraceError: always.
    """
    line_error(path, 1, *(("the file is empty", EMPTY) if is_empty else (what, todo)))


def text_blocks(path: str | os.PathLike[str], source: IO[bytes], form: str) -> Iterator[bytes]:
    """Cut a file after line ends; the last block gets a line end where it lacks one.

    Args:
        path: File as the caller named it.
        source: The open file; a byte order mark at its start is dropped.
        form: What lines should hold, for messages.

    Raises:
        GraceError: the file cannot be read or is in UTF-16, or ``FILE:LINE:`` of an endless line.
    """
    carried: list[bytes] = []
    line, head = 1, True
    while chunk := _read_chunk(path, source, line):
        if head:
            if chunk.startswith(UTF16_MARKS):
                file_error(path, "the encoding is UTF-16; convert it to UTF-8: iconv -f UTF-16")
            chunk, head = chunk.removeprefix(BYTE_ORDER_MARK), False
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = b"".join([*carried, chunk[:cut]])
            carried = []
            yield block
            line += block.count(b"\n")
        carried.append(chunk[cut:])
        if len(carried) * BLOCK_BYTES > MAX_LINE_BYTES:
            line_error(path, line, f"the line is longer than {MAX_LINE_BYTES:,} bytes", form)
    if rest := b"".join(carried):
        yield rest + b"\n"


def _read_chunk(path: str | os.PathLike[str], source: IO[bytes], line: int) -> bytes:
    """Read the next piece; ``line`` is the first line of it."""
    try:
        return source.read(BLOCK_BYTES)
    except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
        raise GraceError(
            f"{os.fspath(path)}:{line}: not readable after this line ({error}); fetch the file again"
        ) from error


def _parse_fast(block: bytes, first_line: int) -> IntegerLines | None:
    """Parse a block with numpy; None where it holds anything but short plain numbers."""
    text = np.frombuffer(block, np.uint8)
    kinds = _KINDS[text]
    if kinds.min() == _BAD:
        return None
    returns = np.flatnonzero(text == ord("\r"))
    if (text[returns + 1] != ord("\n")).any():  # the block ends with a line end: + 1 is inside
        return None
    is_digit = (kinds == _DIGIT).view(np.int8)
    edges = np.flatnonzero(np.diff(is_digit, prepend=np.int8(0)))  # up, down, up, down ...
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    widest = int(lengths.max(initial=0))
    if widest > FAST_DIGITS:
        return None
    values = np.zeros(starts.size, np.int64)
    shortest = int(lengths.min(initial=0))
    for place in range(widest):
        if place < shortest:
            values = values * 10 + (text[starts + place] - ord("0"))
        else:
            longer = np.flatnonzero(lengths > place)
            values[longer] = values[longer] * 10 + (text[starts[longer] + place] - ord("0"))
    line_ends = np.flatnonzero(kinds == _NEWLINE)
    counts = np.diff(np.searchsorted(starts, line_ends), prepend=0)
    return IntegerLines(first_line, values, counts.astype(np.int64))


def _parse_slow(
    path: str | os.PathLike[str],
    block: bytes,
    first_line: int,
    bad_lines: BadLines | None,
    form: str,
) -> IntegerLines:
    """Parse a block line by line; raises at the first bad line, or counts it and goes on."""
    rows: list[list[int]] = []
    for number, line in enumerate(block.split(b"\n")[:-1], first_line):
        rows.append(_parsed_or_counted(path, number, line.removesuffix(b"\r"), bad_lines, form))
    values = np.array([value for row in rows for value in row], np.int64)
    return IntegerLines(first_line, values, np.array([len(row) for row in rows], np.int64))


def _parsed_or_counted(
    path: str | os.PathLike[str], number: int, line: bytes, bad_lines: BadLines | None, form: str
) -> list[int]:
    """Return the numbers of one line; none of a bad one that is counted."""
    try:
        return _parse_line(path, number, line, form)
    except GraceError as error:
        if form != _FORM:  # the format is yet to be told, and no line is left out for that
            raise
        count_line(error, bad_lines)
        return []


def _parse_line(path: str | os.PathLike[str], number: int, line: bytes, form: str) -> list[int]:
    """Return the numbers of one line, or say what is wrong with it."""
    if b"\0" in line:
        line_error(path, number, "the line holds a NUL byte", "is this a binary file? " + form)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        line_error(
            path, number, f"byte 0x{byte:02x} is not UTF-8", "save the file as plain text; " + form
        )
    return [
        parse_token(path, number, token, form)
        for token in re.split("[ \t]+", text.strip(" \t"))
        if token
    ]


def parse_token(path: str | os.PathLike[str], number: int, token: str, form: str = _FORM) -> int:
    """Return the number that ``token`` spells; ASCII digits only (int() accepts more).

    Args:
        path: File as the caller named it.
        number: Line number, from 1.
        token: The text between two separators.
        form: What lines should hold, for the message.

    Raises:
        GraceError: ``FILE:LINE:`` and why ``token`` is no id.
    """
    shown = ascii(token if len(token) <= 40 else token[:40] + "...")
    if re.fullmatch("-[0-9]+", token):
        line_error(path, number, f"{shown} is negative", "ids count from 0; drop padding before")
    if not re.fullmatch("[0-9]+", token):
        line_error(path, number, f"{shown} is not an integer", f"{form}; {NAME_ITEMS}")
    digits = token.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > LARGEST:
        line_error(
            path,
            number,
            f"{shown} is too large",
            f"ids go up to {LARGEST}; number the items from 0",
        )
    return int(digits)
