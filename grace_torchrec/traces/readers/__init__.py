"""Readers: one file a format, all with the same errors; :func:`read` chooses among them.

Flow: file -> *read* (whole) or *stream* (in pieces) -> Trace.

Read in this order:

- a file a format: npz, user_items, baskets, interactions, fbgemm, multi_hot, parquet; kjt (batches);
- logs of interactions: interaction_layout (which column is what), columns, interaction_bags;
- shared: line_errors, integer_lines, word_lines, first_seen (numbers for items that are named otherwise).
"""

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.readers.baskets import read_baskets, stream_baskets
from grace_torchrec.traces.readers.fbgemm import read_fbgemm, stream_fbgemm
from grace_torchrec.traces.readers.first_seen import ItemNames
from grace_torchrec.traces.readers.integer_lines import read_lines
from grace_torchrec.traces.readers.interaction_layout import looks_like_interactions
from grace_torchrec.traces.readers.interactions import read_interactions, stream_interactions
from grace_torchrec.traces.readers.kjt import from_kjts
from grace_torchrec.traces.readers.line_errors import (
    NAME_FORMAT,
    ZIP_MAGIC,
    BadLines,
    file_error,
    open_source,
)
from grace_torchrec.traces.readers.multi_hot import read_multi_hot, stream_multi_hot, table_names
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.readers.parquet import PARQUET_MAGIC, read_parquet, stream_parquet
from grace_torchrec.traces.readers.user_items import read_user_items, stream_user_items
from grace_torchrec.traces.trace import Trace

__all__ = [
    "FORMATS",
    "BadLines",
    "ItemNames",
    "from_kjts",
    "read",
    "read_baskets",
    "read_fbgemm",
    "read_interactions",
    "read_multi_hot",
    "read_npz",
    "read_parquet",
    "read_user_items",
    "stream",
]

FORMATS: dict[str, Callable[[str | os.PathLike[str]], Trace]] = {
    "npz": read_npz,
    "user_items": read_user_items,
    "baskets": read_baskets,
    "interactions": read_interactions,
    "fbgemm": read_fbgemm,
    "multi_hot": read_multi_hot,
    "parquet": read_parquet,
}
_PARTS: dict[str, Callable[[str | os.PathLike[str], str | None], Trace]] = {
    "fbgemm": read_fbgemm,
    "multi_hot": read_multi_hot,
    "parquet": read_parquet,
}
_LINE_STREAMS: dict[str, Callable[..., Iterator[Trace]]] = {  # (path, names=, bad_lines=)
    "user_items": stream_user_items,
    "baskets": stream_baskets,
    "interactions": stream_interactions,
}
_PART_STREAMS: dict[str, Callable[[str | os.PathLike[str], str | None], Iterator[Trace]]] = {
    "fbgemm": stream_fbgemm,
    "multi_hot": stream_multi_hot,
    "parquet": stream_parquet,
}
_BY_NAME = {
    **{".npz": "npz", ".dat": "baskets", ".basket": "baskets", ".baskets": "baskets"},
    **{".inter": "interactions", ".csv": "interactions", ".tsv": "interactions"},
    **{".pt": "fbgemm", ".pth": "fbgemm", ".parquet": "parquet"},
}
_LISTED = (
    "formats are npz (arrays indptr, indices), user_items (`user item item ...` a line), baskets "
    "(`item item ...` a line), interactions (`user item [rating] [time]` a line), fbgemm (.pt of "
    "indices and offsets), multi_hot (MLPerf npz) and parquet (a list column)"
)
_SAMPLED_LINES = 1000


def read(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    names: ItemNames | None = None,
) -> Trace:
    """Read a trace file.

    Args:
        path: The file; text may be gzip. Where a file holds several tables or list columns,
            ``FILE#PART`` names one: the number of a table (fbgemm, multi_hot) or the name of a
            column (parquet).
        format: A key of ``FORMATS``. None: told by the content (archives, parquet, ``::`` or a
            header with known column names), by the name (``.dat``, ``.basket``, ``.baskets``:
            baskets, ``.inter``, ``.csv``, ``.tsv``: interactions, ``.pt``: fbgemm, also before
            ``.gz``), or by users numbered one after the other (user_items). Other text is never
            guessed, as users read as items would look like a trace.
        columns: As for :func:`stream`.
        names: As for :func:`stream`.

    Raises:
        GraceError: the format is unknown or cannot be told (the message lists them all), or
            the reader refuses the file.
        NotSupported: the format needs a library that is not installed.
    """
    if columns is not None or names is not None:
        return concatenate(stream(path, format, columns=columns, names=names))
    path, part, format = _resolved(path, format, columns)
    return FORMATS[format](path) if part is None else _PARTS[format](path, part)


def stream(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    names: ItemNames | None = None,
    bad_lines: BadLines | None = None,
) -> Iterator[Trace]:
    """Yield the bags of a trace file in pieces, in order; together they are what ``read`` returns.

    Only ``npz`` is one piece: such a file must fit in memory, so large traces are kept as shards.

    Args:
        path: As for :func:`read`.
        format: As for :func:`read`.
        columns: Names of the columns of a log of interactions, from the left; see
            :func:`read_interactions`. None: told by its first line.
        names: Numbers the items by first appearance, or by a list of names; those of text
            files may then be any text. None: items keep their numbers.
        bad_lines: Counts bad lines of text, which are left out. None: the first is an error.

    Raises:
        GraceError: as :func:`read`, possibly after some pieces; ``bad_lines`` for a file that
            has no lines; an item that has no name.
        NotSupported: as :func:`read`.
    """
    path, part, format = _resolved(path, format, columns)
    if bad_lines is not None and format not in _LINE_STREAMS:
        raise GraceError(
            f"{os.fspath(path)}: a file of format {format} has no lines to skip; repair the file"
        )
    if format in _LINE_STREAMS:
        named = {} if columns is None else {"columns": columns}
        yield from _LINE_STREAMS[format](path, names=names, bad_lines=bad_lines, **named)
        return
    pieces = (
        _PART_STREAMS[format](path, part) if format in _PART_STREAMS else [FORMATS[format](path)]
    )
    for piece in pieces:
        yield piece if names is None else names.renumbered(piece, os.fspath(path))


def _resolved(
    path: str | os.PathLike[str], format: str | None, columns: Sequence[str] | None
) -> tuple[str | os.PathLike[str], str | None, str]:
    """Return (file, part or None, format); only logs of interactions have named columns."""
    if isinstance(columns, str):
        raise GraceError(f"columns is text; give names, as {tuple(columns.split(','))!r}")
    path, part = _split_part(path)
    if format is None:
        format = _told_by(path) if columns is None else "interactions"
    if format not in FORMATS:
        raise GraceError(f"{os.fspath(path)}: unknown format {format!r}; {_LISTED}")
    if columns is not None and format != "interactions":
        raise GraceError(
            f"{os.fspath(path)}: a file of format {format} has no columns to name; leave them out"
        )
    if part is not None and format not in _PARTS:
        raise GraceError(
            f"{os.fspath(path)}: a file of format {format} has no parts; leave out #{part}"
        )
    return path, part, format


def _split_part(
    path: str | os.PathLike[str],
) -> tuple[str | os.PathLike[str], str | None]:
    """Split ``FILE#PART``; a file that is really named so wins."""
    name = os.fspath(path)
    file, mark, part = name.rpartition("#")
    if not mark or not file or not part or "\0" in name or Path(name).exists():
        return path, None
    return file, part


def _told_by(path: str | os.PathLike[str]) -> str:
    """Return the format that the content or the name tells."""
    with open_source(path) as source:
        try:
            magic = source.read(len(ZIP_MAGIC))
        except (OSError, EOFError, zlib.error) as error:
            file_error(path, f"not readable ({error}); fetch the file again", error)
    if magic == ZIP_MAGIC:
        return _archive_kind(path)
    if magic == PARQUET_MAGIC:
        return "parquet"
    if looks_like_interactions(path):
        return "interactions"
    name = Path(os.fspath(path).removesuffix(".gz"))
    if name.suffix in _BY_NAME:
        return _BY_NAME[name.suffix]
    if _numbers_its_users(path):
        return "user_items"
    raise GraceError(f"{os.fspath(path)}: cannot tell the format; {NAME_FORMAT}; {_LISTED}")


def _archive_kind(path: str | os.PathLike[str]) -> str:
    """Return the format of a zip archive by the names of its members."""
    try:
        with open_source(path) as source, zipfile.ZipFile(source) as archive:
            names = archive.namelist()
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile):
        return "npz"  # whose reader says what is damaged
    if any(name.endswith("/data.pkl") for name in names):
        return "fbgemm"
    return "multi_hot" if table_names([name.removesuffix(".npy") for name in names]) else "npz"


def _numbers_its_users(path: str | os.PathLike[str]) -> bool:
    """Tell whether the first lines (at least three) start with n, n + 1, n + 2 and so on."""
    block = next(read_lines(path, form=f"{NAME_FORMAT}; {_LISTED}"))
    counts = block.counts_P[block.counts_P > 0]
    first = block.values_T[(np.cumsum(counts) - counts)[:_SAMPLED_LINES]]
    return bool(first.size >= 3 and (np.diff(first) == 1).all())
