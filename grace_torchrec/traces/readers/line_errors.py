"""How readers open a file and how they report a bad line: one message form for all formats.

Flow: file -> *open_source* -> reader -> Trace.  Text may be gzip (told by its first bytes, not
by its name). A git-lfs pointer, the usual stand-in for a file that was never fetched, is named.
"""

import gzip
import io
import os
from dataclasses import dataclass
from typing import IO, NoReturn

from grace_torchrec.errors import GraceError

# What to do, in Python's words; the command line says these in its own (cli/words.py).
NAME_ITEMS = "items of any name are numbered by read(names=ItemNames())"
NAME_COLUMNS = "name the columns from the left: read(columns=('user', 'item', ...))"
READ_AS_LOG = "read it with format='interactions'"
LEAVE_COLUMNS = "or leave columns= out"
NAME_FORMAT = "name the format: read(format=)"
SKIP_LINES = "or leave such lines out: stream(bad_lines=BadLines())"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # also of UTF-32, little endian
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
LFS_MAGIC = b"version https://git-lfs"


@dataclass
class BadLines:
    """Lines that were left out, for readers that are told to go on.

    Attributes:
        count: How many.
        first: What was wrong with the first of them, as ``FILE:LINE: what; what to do``.
    """

    count: int = 0
    first: str = ""

    def add(self, error: GraceError) -> None:
        """Count a line that a reader refused."""
        self.first = self.first or str(error)
        self.count += 1


def line_error(path: str | os.PathLike[str], line: int, what: str, todo: str) -> NoReturn:
    """Raise the error of one bad line.

    Args:
        path: File as the caller named it.
        line: Line number, from 1.
        what: What is wrong, with the offending text.
        todo: What the user can do.

    Raises:
        GraceError: always, as ``FILE:LINE: what; what to do``.
    """
    raise GraceError(f"{os.fspath(path)}:{line}: {what}; {todo}")


def refuse_line(
    path: str | os.PathLike[str], line: int, what: str, todo: str, bad_lines: BadLines | None
) -> None:
    """Raise the error of one bad line, or count it.

    Args:
        path: As for :func:`line_error`, as the next three.
        line: Line number, from 1.
        what: What is wrong.
        todo: What the user can do.
        bad_lines: Counts it. None: it is raised.

    Raises:
        GraceError: nobody counts; it says that lines may be left out.
    """
    try:
        line_error(path, line, what, todo)
    except GraceError as error:
        count_line(error, bad_lines)


def count_line(error: GraceError, bad_lines: BadLines | None) -> None:
    """Count the error of one bad line, or raise it.

    Raises:
        GraceError: nobody counts; it says that lines may be left out.
    """
    if bad_lines is None:
        raise GraceError(f"{error}; {SKIP_LINES}") from error
    bad_lines.add(error)


def file_error(
    path: str | os.PathLike[str], what: str, cause: BaseException | None = None
) -> NoReturn:
    """Raise the error of one file that has no lines.

    Args:
        path: File as the caller named it.
        what: What is wrong and what to do; line ends in it become spaces.
        cause: The error behind it.

    Raises:
        GraceError: always, as ``FILE: what``.
    """
    raise GraceError(f"{os.fspath(path)}: {' '.join(what.split())}") from cause


def check_bags(path: str | os.PathLike[str], num_bags: int) -> None:
    """Refuse a file without bags, of which nothing can be planned.

    Args:
        path: File as the caller named it.
        num_bags: Bags it holds; one without ids is a bag.

    Raises:
        GraceError: there are none.
    """
    if not num_bags:
        file_error(path, "holds no bags; give a file with some")


def open_source(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open ``path`` for reading bytes, unpacking gzip on the way.

    Raises:
        GraceError: there is no such file, it cannot be read, or it is a git-lfs pointer.
    """
    try:
        source = io.BufferedReader(io.FileIO(os.fspath(path)))
        head = source.peek(len(LFS_MAGIC))
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or error
        raise GraceError(
            f"{os.fspath(path)!s}: cannot be read ({reason}); give a readable file"
        ) from error
    if head.startswith(LFS_MAGIC):
        source.close()
        raise GraceError(
            f"{os.fspath(path)}: is a git-lfs pointer, not the data; run `git lfs pull` first"
        )
    if head.startswith(GZIP_MAGIC):
        return io.BufferedReader(gzip.GzipFile(fileobj=source))
    return source
