"""Parquet with a list column: one row a bag, as feature stores and Spark write histories.

Flow: file -> *read_parquet* -> Trace.  Needs pyarrow, an optional dependency that is imported
on demand.  A column of lists of integers holds the ids; ``weights`` (lists of numbers as long)
and ``time`` (a number a row, or a timestamp, which becomes microseconds since 1970) are taken along where
they exist.
"""

import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.traces.readers.line_errors import check_bags, file_error, open_source
from grace_torchrec.traces.trace import Trace

PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 1 << 16
ID_NAMES = ("ids", "items", "item_ids", "indices", "history")
WEIGHTS, TIME = "weights", "time"
_Vector = npt.NDArray[Any]


def read_parquet(path: str | os.PathLike[str], part: str | None = None) -> Trace:
    """Read one bag a row.

    Args:
        path: The parquet file.
        part: Name of the list column. None: the only one of integers, or the one that is named
            ids, items, item_ids, indices or history.

    Raises:
        GraceError: the file is no parquet, the column cannot be told, or a row holds ids that
            are missing or negative.
        NotSupported: pyarrow is not installed.
    """
    from grace_torchrec.traces.merge import concatenate

    return concatenate(stream_parquet(path, part))


def stream_parquet(path: str | os.PathLike[str], part: str | None = None) -> Iterator[Trace]:
    """Yield the bags of a file in batches of 65,536 rows; see :func:`read_parquet`.

    Raises:
        GraceError: as the reader.
        NotSupported: as the reader.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise NotSupported(
            f"{os.fspath(path)}: reading parquet needs pyarrow; pip install pyarrow"
        ) from error
    open_source(path).close()  # names a missing file or a git-lfs pointer as every reader does
    try:
        with parquet.ParquetFile(os.fspath(path)) as file:
            names = _columns(path, arrow, file.schema_arrow, part)
            check_bags(path, file.metadata.num_rows)
            first = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=[n for n in names if n]):
                yield _bags(path, arrow, batch, names, first)
                first += batch.num_rows
    except GraceError:
        raise
    except (arrow.ArrowException, OSError, MemoryError) as error:
        what = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        file_error(path, f"not readable as parquet ({what}); write it again", error)


def _columns(
    path: str | os.PathLike[str], arrow: Any, schema: Any, part: str | None
) -> tuple[str, str, str]:
    """Return the names of the columns of ids, weights and time; "" where there is none."""
    lists = [field.name for field in schema if _is_list(arrow, field.type, arrow.types.is_integer)]
    if part is None:
        known = [name for name in ID_NAMES if name in lists]
        part = lists[0] if len(lists) == 1 else known[0] if known else None
    if part is None or part not in lists:
        shown = ", ".join(f"{field.name} ({field.type})" for field in schema)
        asked = "which column holds the ids" if part is None else f"a list column {part!r}"
        file_error(
            path,
            f"cannot tell {asked}; lists of integers are {lists}, it holds {shown[:200]}; name "
            f"one as {os.fspath(path)}#COLUMN",
        )
    weights = WEIGHTS if WEIGHTS in schema.names and part != WEIGHTS else ""
    if weights and not _is_list(arrow, schema.field(WEIGHTS).type, _is_number(arrow)):
        weights = ""
    time = TIME if TIME in schema.names and part != TIME else ""
    if time and not (
        _is_number(arrow)(schema.field(TIME).type)
        or arrow.types.is_timestamp(schema.field(TIME).type)
    ):
        time = ""
    return part, weights, time


def _is_list(arrow: Any, kind: Any, of: Any) -> bool:
    """Tell whether a type is a list of what ``of`` accepts."""
    types = arrow.types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and of(kind.value_type))


def _is_number(arrow: Any) -> Any:
    """Return the test for integers and floats."""
    return lambda kind: arrow.types.is_integer(kind) or arrow.types.is_floating(kind)


def _bags(
    path: str | os.PathLike[str], arrow: Any, batch: Any, names: tuple[str, str, str], first: int
) -> Trace:
    """Return the bags of one batch; ``first`` is the number of its first row."""
    lengths, ids = _lists(path, arrow, batch.column(names[0]), names[0], first)
    weights = None
    if names[1]:
        others, weights = _lists(path, arrow, batch.column(names[1]), names[1], first)
        wrong = np.flatnonzero(lengths != others)
        if wrong.size:
            row = int(wrong[0])
            file_error(path, f"row {first + row}: {int(others[row])} weights for "
                    f"{int(lengths[row])} ids; give one for each")  # fmt: skip
    time = None
    if names[2]:
        column = batch.column(names[2])
        if column.null_count:
            file_error(path, f"column {names[2]}: {column.null_count} times are missing; fill them")
        if arrow.types.is_timestamp(column.type):
            column = column.cast(arrow.timestamp("us", column.type.tz)).cast(arrow.int64())
        time = column.to_numpy(zero_copy_only=False)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    try:
        return Trace(offsets, ids, 0, weights, time)
    except GraceError as error:
        what = str(error).removeprefix("trace: ")
        file_error(path, f"behind row {first}: {what}", error)


def _lists(
    path: str | os.PathLike[str], arrow: Any, column: Any, name: str, first: int
) -> tuple[npt.NDArray[np.int64], _Vector]:
    """Return (length of each row, values of all rows); a missing list is an empty bag."""
    if arrow.types.is_fixed_size_list(column.type):
        column = column.cast(arrow.list_(column.type.value_type))
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.flatten()
    if values.null_count:
        missing = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        row = int(np.searchsorted(np.cumsum(lengths), missing, side="right"))
        file_error(path, f"row {first + row}: column {name} holds a missing value; drop it before")
    return lengths, values.to_numpy(zero_copy_only=False)
