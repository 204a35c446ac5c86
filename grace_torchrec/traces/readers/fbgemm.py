"""FBGEMM request files (``.pt``): indices and offsets of many tables, as in dlrm_datasets.

Flow: file -> *read_fbgemm* -> Trace of one table.  Format: ``torch.load`` gives ``(indices,
offsets)`` or ``(indices, offsets, lengths)``, table by table: table t of T with B bags each owns
``offsets[t * B : (t + 1) * B + 1]``.  Loaded with ``weights_only``: nothing is unpickled but
tensors.  Such files keep how often a table reads a row; that ids of one bag were requested
together is not promised.
"""

import gzip
import os
import pickle
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.readers.line_errors import (
    ZIP_MAGIC,
    check_bags,
    file_error,
    open_source,
)
from grace_torchrec.traces.trace import Trace

PIECE_IDS = 1 << 22
_TABLES_IN_NAME = re.compile(r"t(\d+)_bs\d+")
# what torch.load raises on damaged or foreign files
_DAMAGE = (
    *(RuntimeError, ValueError, OSError, EOFError, KeyError, TypeError, AttributeError),
    *(pickle.UnpicklingError, ImportError, IndexError, AssertionError, struct.error, MemoryError),
)
_Vector = npt.NDArray[Any]


def read_fbgemm(
    path: str | os.PathLike[str],
    part: str | None = None,
    *,
    num_tables: int | None = None,
    offsets: str | os.PathLike[str] | None = None,
) -> Trace:
    """Read the bags of one table.

    Args:
        path: The file, plain or gzip; with ``offsets``, the file of the indices alone.
        part: Number of the table, from 0; needed where the file holds several.
        num_tables: Tables T of the file. None: told by the shape of lengths ``[T, B]`` or by a
            name as ``fbgemm_t856_bs65536.pt``, else 1.
        offsets: A second file with the offsets (FBGEMM's ``--offsets-file``).

    Raises:
        GraceError: the file is no such file, is a git-lfs pointer, or its arrays do not fit
            together; the table is not named or is not there.
    """
    return concatenate(stream_fbgemm(path, part, num_tables=num_tables, offsets=offsets))


def stream_fbgemm(
    path: str | os.PathLike[str],
    part: str | None = None,
    *,
    num_tables: int | None = None,
    offsets: str | os.PathLike[str] | None = None,
) -> Iterator[Trace]:
    """Yield the bags of one table in pieces of about four million ids; see :func:`read_fbgemm`.

    Files that torch wrote as zip archives are mapped: memory holds the offsets of the table and
    one piece.

    Raises:
        GraceError: as the reader.
    """
    parts = _tensors(path) if offsets is None else [*_tensors(path, 1), *_tensors(offsets, 1)]
    if not 2 <= len(parts) <= 3:
        file_error(path, f"holds {len(parts)} tensors; (indices, offsets[, lengths]) are expected")
    indices, ends = _vector(path, "indices", parts[0]), _vector(path, "offsets", parts[1])
    tables = _num_tables(path, num_tables, parts[2] if len(parts) == 3 else None, ends.size)
    table = _table(path, part, tables)
    num_bags = (ends.size - 1) // tables
    check_bags(path, num_bags)
    own = np.asarray(ends[table * num_bags : (table + 1) * num_bags + 1], np.int64)
    first, last = int(own[0]), int(own[-1])
    if not 0 <= first <= last <= indices.size:
        file_error(path, f"offsets of table {table} run from {first} to {last}, there are "
                f"{indices.size} indices; write the file again")  # fmt: skip
    bag = 0
    while bag < num_bags:
        until = int(np.searchsorted(own, own[bag] + PIECE_IDS, side="right")) - 1
        until = min(max(until, bag + 1), num_bags)
        try:
            yield Trace(own[bag : until + 1] - own[bag], np.array(indices[own[bag] : own[until]]))
        except GraceError as error:
            what = str(error).removeprefix("trace: ")
            where = f"table {table}" + (f", behind bag {bag}" if bag else "")
            raise GraceError(f"{os.fspath(path)}: {where}: {what}") from error
        bag = until


def _tensors(path: str | os.PathLike[str], expected: int = 0) -> list[Any]:
    """Load the tensors of a file; a packed one is unpacked on disk first."""
    with open_source(path) as source, tempfile.TemporaryFile() as unpacked:
        try:
            if isinstance(getattr(source, "raw", None), gzip.GzipFile):
                shutil.copyfileobj(source, unpacked, 1 << 20)
                unpacked.seek(0)
                loaded = _load(unpacked, mapped=False)
            else:
                loaded = _load(os.fspath(path), mapped=source.read(len(ZIP_MAGIC)) == ZIP_MAGIC)
        except _DAMAGE as error:
            what = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            if isinstance(error, pickle.UnpicklingError):  # its text is long, and advises pickle
                what = "it holds objects that are not loaded, or is damaged"
            file_error(
                path,
                f"is no file of tensors ({what}); save a tuple of tensors with torch.save",
                error,
            )
    if isinstance(loaded, dict):
        loaded = [loaded[name] for name in ("indices", "offsets", "lengths") if name in loaded]
    parts = list(loaded) if isinstance(loaded, (tuple, list)) else [loaded]
    if expected and len(parts) != expected:
        file_error(path, f"holds {len(parts)} tensors, {expected} expected")
    return parts


def _load(source: str | IO[bytes], mapped: bool) -> Any:
    """Load with weights_only; a mapped file costs the memory of what is read of it."""
    import torch  # on demand: the other readers need no torch

    return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped or None)


def _vector(path: str | os.PathLike[str], name: str, tensor: Any) -> _Vector:
    """Return a tensor as a flat array of integers."""
    try:
        array = tensor.detach().numpy()
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        file_error(path, f"{name}: is a {type(tensor).__name__}, a plain tensor is expected", error)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        file_error(path, f"{name}: must be a vector of integers, got {array.dtype} {array.shape}")
    vector: _Vector = array
    return vector


def _num_tables(
    path: str | os.PathLike[str], given: int | None, lengths: Any, num_offsets: int
) -> int:
    """Return the number of tables; it must divide the bags."""
    shape = tuple(getattr(lengths, "shape", ()))
    named = _TABLES_IN_NAME.search(Path(os.fspath(path)).name)
    tables = given
    if tables is None and len(shape) == 2:
        tables = int(shape[0])  # lengths [T, B]
    if tables is None:
        tables = int(named.group(1)) if named else 1
    if num_offsets < 1 or tables < 1 or (num_offsets - 1) % tables:
        file_error(
            path,
            f"{num_offsets} offsets do not fit {tables} tables; tables * bags + 1 are expected, "
            f"give num_tables",
        )
    return tables


def _table(path: str | os.PathLike[str], part: str | None, tables: int) -> int:
    """Return the table that is asked for."""
    if part is None and tables == 1:
        return 0
    listed = f"tables {os.fspath(path)}#0 to {os.fspath(path)}#{tables - 1}"
    if part is None:
        file_error(path, f"holds {tables} tables; name one of {listed}")
    if not (part.isascii() and part.isdigit() and int(part) < tables):
        file_error(path, f"has no table {part[:40]!a}; it holds {listed}")
    return int(part)
