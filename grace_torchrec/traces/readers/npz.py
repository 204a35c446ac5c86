"""Numpy archives: a trace as named arrays, the form in which traces travel between tools.

Flow: file -> *read_npz* -> Trace.  Arrays: ``indptr`` ``[B + 1]`` and ``indices`` ``[L]``
(CSR of bags -> item ids), optional ``weights`` ``[L]``, ``time`` ``[B]``, ``split`` ``[L]`` and
``num_rows`` (one number); others are ignored.  Nothing is ever unpickled.
"""

import os
import struct
import tokenize
import zipfile
import zlib
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.line_errors import (
    ZIP_MAGIC,
    check_bags,
    file_error,
    open_source,
)
from grace_torchrec.traces.trace import Trace

SAVE = "write it with numpy.savez(indptr=, indices=) of integers"
_NEEDED, _OPTIONAL = ("indptr", "indices"), ("weights", "time", "split", "num_rows")
# what numpy and zipfile raise on damaged archives and headers
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, RuntimeError),
)
_Arrays = dict[str, npt.NDArray[Any]]


def read_npz(path: str | os.PathLike[str]) -> Trace:
    """Read an archive of arrays ``indptr`` and ``indices`` (names of CSR matrices).

    Raises:
        GraceError: the file is no such archive, or holds no bags; names the file, and the array
            where it is one.
    """
    with open_source(path) as source:
        arrays = _load(path, source)
    num_rows = _num_rows(path, arrays.pop("num_rows", None))
    try:
        trace = _trace(arrays, num_rows)
    except GraceError as error:
        what = str(error).removeprefix("trace: ").replace("num_items", "num_rows")
        what = what if ";" in what else f"{what}; {SAVE}"
        file_error(path, f"array {_culprit(arrays, num_rows)}: {what}", error)
    check_bags(path, trace.num_bags)
    return trace


def _load(path: str | os.PathLike[str], source: IO[bytes]) -> _Arrays:
    """Read the arrays that a trace knows; names the array that is missing or damaged."""
    arrays: _Arrays = {}
    name = ""
    try:
        if source.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            file_error(path, f"is no npz archive; {SAVE}")
        source.seek(0)
        with zipfile.ZipFile(source) as archive:
            members = {entry.removesuffix(".npy") for entry in archive.namelist()}
        source.seek(0)
        with np.load(source, allow_pickle=False) as archive:
            for name in (*_NEEDED, *_OPTIONAL):
                if name in members:
                    arrays[name] = _checked(path, name, archive[name])
                elif name in _NEEDED:
                    file_error(
                        path, f"array {name} is missing; it holds {sorted(members)[:8]}; {SAVE}"
                    )
            name = "format"  # scipy.sparse.save_npz: other layouts use the same array names
            if name in members and str(archive[name].astype(str)) in ("csc", "bsr"):
                file_error(path, "is a sparse matrix that is not CSR; save matrix.tocsr()")
    except GraceError:
        raise
    except _DAMAGE as error:
        file_error(path, f"{name and f'array {name}: '}not readable ({error}); {SAVE}", error)
    return arrays


def _checked(path: str | os.PathLike[str], name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Refuse arrays that are no numbers, before Trace converts them."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        file_error(
            path, f"array {name}: has type {getattr(array, 'dtype', '?')}, numbers expected; {SAVE}"
        )
    return array


def _num_rows(path: str | os.PathLike[str], array: npt.NDArray[Any] | None) -> int:
    """Return ``num_rows``, or 0 (largest id + 1) where the archive has none."""
    if array is None:
        return 0
    if array.size != 1 or array.dtype.kind not in "iu" or not 0 < int(array.item()) < 2**62:
        file_error(path, f"array num_rows: must be one positive integer, got {array!s:.40}")
    return int(array.item())


def _trace(arrays: _Arrays, num_rows: int) -> Trace:
    """Build the trace; Trace checks every array."""
    return Trace(
        arrays["indptr"],
        arrays["indices"],
        num_rows,
        arrays.get("weights"),
        arrays.get("time"),
        arrays.get("split"),
    )


def _culprit(arrays: _Arrays, num_rows: int) -> str:
    """Return which array a trace refuses: the first that fails beside arrays that pass."""
    num_ids = arrays["indices"].size
    stub = {"indptr": np.array([0, num_ids]), "indices": np.zeros(num_ids, np.int32)}
    if _refused({**stub, "indptr": arrays["indptr"]}, 0):
        return "indptr"
    if _refused({**stub, "indices": arrays["indices"]}, num_rows):
        return "indices"
    base = {name: arrays[name] for name in _NEEDED}
    others = [name for name in arrays if name not in base]
    return next(
        (name for name in others if _refused({**base, name: arrays[name]}, num_rows)), "indices"
    )


def _refused(arrays: _Arrays, num_rows: int) -> bool:
    """Tell whether these arrays make no trace."""
    try:
        _trace(arrays, num_rows)
    except GraceError:
        return True
    return False
