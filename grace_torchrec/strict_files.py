"""Strict files: JSON and arrays of a folder that may come from anybody.

Flow: plan, profile and other folders are read through these functions, by :mod:`artifact`.
A file is taken only if it is a plain file: no link leads out of the folder, no pipe or device is
waited for.  JSON with a key twice, with NaN, or longer than any plan is refused.  The header of an
array file must account for every byte of it before any array is made, so that what is allocated is
bounded by what is on disk, never by what a file claims.
"""

import json
import math
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from grace_torchrec.errors import GraceError

MOST_JSON_BYTES = 64 << 20  # a plan of 10,000 tables takes 20 MB
MOST_HEADER_BYTES = 16 << 20
LENGTH_BYTES = 8
MOST_DIMENSIONS = 8
KINDS = ("profile", "plan", "served", "demo")  # of folders; KIND.json tells it
MOST_QUOTED = 300  # letters of an error of a library that are passed on
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


def read_json(file: Path, what: str, todo: str = "") -> dict[str, Any]:
    """Read a JSON object.

    Args:
        file: The file.
        what: What it belongs to (``plan``, ``profile``), for errors.
        todo: What the user can do where it holds something else; empty: write it again.

    Raises:
        GraceError: it is no plain file, too long, no JSON object, or not unambiguous.
    """
    size, todo = plain_file(file, what), todo or f"write the {what} again"
    if size > MOST_JSON_BYTES:
        raise GraceError(f"{file}: has {size:,} bytes, a {what} has {MOST_JSON_BYTES:,} at most")
    try:
        document = json.loads(
            file.read_text(encoding="utf-8"),
            object_pairs_hook=_each_key_once,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except OSError as error:
        raise GraceError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GraceError(f"{file}: not valid JSON ({_said(error)}); {todo}") from error
    if not isinstance(document, dict):
        raise GraceError(f"{file}: holds no JSON object; {todo}")
    return document


def read_arrays(file: Path, what: str) -> dict[str, npt.NDArray[Any]]:
    """Read a safetensors file whose header accounts for all of its bytes.

    Args:
        file: The file.
        what: What it belongs to, for errors.

    Raises:
        GraceError: it is no plain file, or no such file of safetensors.
    """
    size = plain_file(file, what)
    try:
        check_header(file, size)
        return load_file(file)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise GraceError(
            f"{file}: not readable ({_said(error)}); write the {what} again"
        ) from error


def plain_file(file: Path, what: str) -> int:
    """Return the bytes of a file that is a plain one.

    Raises:
        GraceError: it is missing, a link, a pipe or a device.
    """
    try:
        found = file.lstat()
    except OSError as error:
        raise GraceError(f"{file}: no such file; {_stands_there(file.parent, what)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise GraceError(f"{file}: is no plain file; copy the {what} folder with its files")
    return found.st_size


def kind_of(folder: Path) -> str | None:
    """Return what kind of folder of ours one is, by the file that tells it; None for any other."""
    return next((kind for kind in KINDS if (folder / f"{kind}.json").is_file()), None)


def _stands_there(folder: Path, what: str) -> str:
    """Tell the kind of a folder that lacks a file, and where in it the wanted folder is."""
    if folder.is_file():
        where = f", as {folder.parent}" if folder.name == f"{what}.json" else ""
        return f"{folder} is a file: give a {what} folder{where}"
    kind = kind_of(folder)
    if kind is None or what.startswith(kind):
        return f"is {folder} a {what} folder?"
    inside = folder / what
    todo = f"its {what} is {inside}" if inside.is_dir() else f"give a {what} folder"
    return f"{folder} is a {kind} folder: {todo}"


def _said(error: Exception) -> str:
    """What an error says, on one line, without the rest of what it quotes."""
    return " ".join(str(error).split())[:MOST_QUOTED]


def check_header(file: Path, size: int, item_bytes: Mapping[str, int] = ITEM_BYTES) -> None:
    """Refuse a header of a safetensors file that claims other bytes than there are.

    Args:
        file: The file.
        size: Its bytes.
        item_bytes: Types that its arrays may have -> bytes of a value.

    Raises:
        ValueError: the header does not account for the file.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if length > min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
            raise ValueError("its header is longer than it may be")
        header = json.loads(stream.read(length), object_pairs_hook=_each_key_once)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    spans = sorted(
        _span(name, entry, item_bytes) for name, entry in header.items() if name != "__metadata__"
    )
    ends = [0, *(end for _, end in spans)]
    if [begin for begin, _ in spans] != ends[:-1] or ends[-1] != size - LENGTH_BYTES - length:
        raise ValueError("its header does not account for its bytes")


def _span(name: str, entry: Any, item_bytes: Mapping[str, int]) -> tuple[int, int]:
    """Return where the bytes of one array begin and end, which its shape must agree with."""
    kind = entry.get("dtype") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in item_bytes:
        raise ValueError(f"array {name!r} is not described, or has a type that is not used")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"array {name!r} has no shape or offsets")
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"array {name!r} has {len(shape)} dimensions")
    begin, end = offsets
    if end - begin != math.prod(shape) * item_bytes[kind]:
        raise ValueError(f"array {name!r} does not fill its bytes")
    return begin, end


def _counts(values: Any) -> TypeGuard[list[int]]:
    """Tell a list of integers >= 0."""
    return isinstance(values, list) and all(type(x) is int and 0 <= x < 2**63 for x in values)


def _each_key_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; which of two values a reader takes must not depend on the reader."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _no_constant(text: str) -> NoReturn:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    """Refuse numbers that no float holds."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value
