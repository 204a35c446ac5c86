"""MLPerf DLRMv2 multi-hot days: one matrix of ids a table, each row one bag of fixed length.

Flow: file -> *read_multi_hot* -> Trace of one table.  Format: an npz with members ``0`` to
``25``, integers ``[rows, hot]``, usually stored without compression; a table is read in pieces
and the others are never touched.  The data are an artefact for stored sums: every one-hot id
was expanded by a fixed table, so equal first ids have equal bags, and sums of whole bags save
what no real traffic saves. Each trace carries that note, and reading warns.
"""

import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.line_errors import check_bags, file_error, open_source
from grace_torchrec.traces.trace import Trace

PIECE_IDS = 1 << 22
ARTEFACT = (
    "MLPerf multi-hot ids come from a fixed table of each one-hot id: what stored sums save here "
    "is an artefact of the data and says nothing about real traffic"
)
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, RuntimeError),
)


def read_multi_hot(path: str | os.PathLike[str], part: str | None = None) -> Trace:
    """Read the bags of one table.

    Args:
        path: The npz file.
        part: Name of the table, ``0`` to ``25``; needed where the file holds several.

    Raises:
        GraceError: the file is no such archive, or the table is not named or damaged.
    """
    from grace_torchrec.traces.merge import concatenate

    return concatenate(stream_multi_hot(path, part))


def stream_multi_hot(path: str | os.PathLike[str], part: str | None = None) -> Iterator[Trace]:
    """Yield the bags of one table in pieces of about four million ids; see the reader.

    Raises:
        GraceError: as :func:`read_multi_hot`.
    """
    with open_source(path) as source:
        try:
            with zipfile.ZipFile(source) as archive:
                name = _table(path, part, [n.removesuffix(".npy") for n in archive.namelist()])
                warnings.warn(f"{os.fspath(path)}: {ARTEFACT}", UserWarning, stacklevel=2)
                with archive.open(f"{name}.npy") as member:
                    yield from _bags(path, name, member)
        except GraceError:
            raise
        except _DAMAGE as error:
            file_error(path, f"not readable ({error}); fetch the file again", error)


def table_names(names: list[str]) -> list[str]:
    """Return the members that are tables, in order; empty where the archive is another kind.

    >>> table_names(["10", "2", "0"])
    ['0', '2', '10']
    """
    if not names or not all(re.fullmatch("[0-9]{1,3}", name) for name in names):
        return []
    return sorted(names, key=int)


def _table(path: str | os.PathLike[str], part: str | None, names: list[str]) -> str:
    """Return the member that is asked for."""
    tables = table_names(names)
    if not tables:
        file_error(path, f"is no multi-hot archive; it holds {sorted(names)[:8]}")
    if part is None and len(tables) == 1:
        return tables[0]
    listed = f"name one as {os.fspath(path)}#{tables[0]} to #{tables[-1]}"
    if part is None:
        file_error(path, f"holds {len(tables)} tables; {listed}")
    if part not in tables:
        file_error(path, f"has no table {part[:40]!a}; {listed}")
    return part


def _bags(path: str | os.PathLike[str], name: str, member: IO[bytes]) -> Iterator[Trace]:
    """Yield the rows of one member."""
    shape, dtype = _header(path, name, member)
    rows, hot = shape
    check_bags(path, rows)
    step = max(PIECE_IDS // max(hot, 1), 1)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        raw = member.read(count * hot * dtype.itemsize)
        if len(raw) != count * hot * dtype.itemsize:
            file_error(path, f"table {name}: ends in row {first + len(raw) // max(hot, 1)} of {rows}; "
                    f"fetch the file again")  # fmt: skip
        offsets = np.arange(0, count * hot + 1, hot) if hot else np.zeros(count + 1, np.int64)
        try:
            yield Trace(offsets, np.frombuffer(raw, dtype), note=ARTEFACT)
        except GraceError as error:
            what = str(error).removeprefix("trace: ")
            file_error(path, f"table {name}: behind row {first}: {what}", error)


def _header(
    path: str | os.PathLike[str], name: str, member: IO[bytes]
) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return shape and type of the matrix; only row-major integers are read."""
    version = np.lib.format.read_magic(member)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        file_error(
            path, f"table {name}: npy version {version} is not known; save it with numpy.savez"
        )
    shape, by_column, dtype = read(member)
    if len(shape) != 2 or dtype.kind not in "iu" or (by_column and min(shape) > 1):
        file_error(
            path,
            f"table {name}: a matrix of integers by row is expected, got {dtype} {shape}"
            f"{' by column' if by_column else ''}",
        )
    return (int(shape[0]), int(shape[1])), dtype
