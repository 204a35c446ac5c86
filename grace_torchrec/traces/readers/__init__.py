"""Readers: one file a format, all with the same errors; :func:`read` chooses among them.

Flow: file -> *read* -> Trace.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.baskets import read_baskets
from grace_torchrec.traces.readers.integer_lines import read_lines
from grace_torchrec.traces.readers.kjt import from_kjts
from grace_torchrec.traces.readers.line_errors import open_source
from grace_torchrec.traces.readers.npz import ZIP_MAGIC, read_npz
from grace_torchrec.traces.readers.user_items import read_user_items
from grace_torchrec.traces.trace import Trace

__all__ = ["FORMATS", "from_kjts", "read", "read_baskets", "read_npz", "read_user_items"]

FORMATS: dict[str, Callable[[str | os.PathLike[str]], Trace]] = {
    "npz": read_npz,
    "user_items": read_user_items,
    "baskets": read_baskets,
}
_BY_NAME = {".npz": "npz", ".dat": "baskets", ".basket": "baskets", ".baskets": "baskets"}
_LISTED = "formats are npz (arrays indptr, indices), user_items (`user item item ...` a line) and baskets (`item item ...` a line)"
_SAMPLED_LINES = 1000


def read(path: str | os.PathLike[str], format: str | None = None) -> Trace:
    """Read a trace file.

    Args:
        path: The file; text may be gzip.
        format: A key of ``FORMATS``. None: told by the first bytes (npz), by the name
            (``.dat``, ``.basket``, ``.baskets``: baskets, also before ``.gz``), or by users
            numbered one after the other (user_items). Text is never guessed further, as users
            read as items would look like a trace.

    Raises:
        GraceError: the format is unknown or cannot be told (the message lists them all), or
            the reader refuses the file.
    """
    if format is None:
        format = _told_by(path)
    if format not in FORMATS:
        raise GraceError(f"{os.fspath(path)}: unknown format {format!r}; {_LISTED}")
    return FORMATS[format](path)


def _told_by(path: str | os.PathLike[str]) -> str:
    """Return the format that the content or the name tells."""
    with open_source(path) as source:
        if source.read(len(ZIP_MAGIC)) == ZIP_MAGIC:
            return "npz"
    name = Path(os.fspath(path).removesuffix(".gz"))
    if name.suffix in _BY_NAME:
        return _BY_NAME[name.suffix]
    if _numbers_its_users(path):
        return "user_items"
    raise GraceError(f"{os.fspath(path)}: cannot tell the format; name it: {_LISTED}")


def _numbers_its_users(path: str | os.PathLike[str]) -> bool:
    """Tell whether the first lines (at least three) start with n, n + 1, n + 2 and so on."""
    try:
        block = next(read_lines(path))
    except GraceError as error:
        raise GraceError(f"{error}; {_LISTED}") from error
    counts = block.counts_P[block.counts_P > 0]
    first = block.values_T[(np.cumsum(counts) - counts)[:_SAMPLED_LINES]]
    return bool(first.size >= 3 and (np.diff(first) == 1).all())
