"""Folders and files on disk, written whole or not at all: one JSON document, one safetensors file.

Flow: profiles and plans are saved and loaded through these two functions.
A folder is written beside its place, fsynced and renamed; every load verifies the checksum of
the arrays. Nothing is ever unpickled.  Folders that are missing above a folder are made; a file goes
into a folder that is there: a name mistyped would only scatter files.  A process that is killed at any time leaves the old folder
or the new one, and at most one unfinished folder beside it, which :func:`recover` removes, and so does
the next writer: those that write hold a lock on theirs.  Such folders are named ``.NAME.grace-part-`` and ``.NAME.grace-old-`` with eight characters.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from grace_torchrec.errors import GraceError
from grace_torchrec.strict_files import plain_file, read_arrays, read_json

Arrays = Mapping[str, npt.NDArray[Any]]
ARRAYS_FILE = "arrays.safetensors"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2(2)
FILE = "file"
BESIDE = {  # what folders of a kind hold beside the document and the arrays: files, folders of a kind
    "served": {"plan": "plan", "model.ts": FILE},
    "demo": {"plan": "plan", "profile": "profile", "report.html": FILE, "tensorboard": "board"},
}
BOARD_FILES = "events.out.tfevents.*"  # all that a folder for TensorBoard holds
# Files that tell the kind where <kind>.json is missing: demos of earlier releases had none.
TOLD_BY = {"demo": "plan/plan.json"}
YOUNG_S = 60.0  # an unfinished folder that is younger may be about to be locked
PART, OLD = "grace-part-", "grace-old-"  # folders written aside; no name that a user would give


def write_folder(
    path: str | os.PathLike[str], name: str, document: dict[str, Any], arrays: Arrays
) -> None:
    """Write ``path/<name>.json`` and ``path/arrays.safetensors`` atomically.

    Args:
        path: The folder; what may be replaced there: :func:`in_the_way`.
        name: Stem of the JSON file (``plan``, ``profile``).
        document: JSON values; the checksum of the arrays is added under ``arrays_sha256``.
        arrays: Named numpy arrays.

    Raises:
        GraceError: ``path`` is something else or holds more, or cannot be written.
    """
    with new_folder(path, name) as aside:
        save_file(
            {key: np.ascontiguousarray(value) for key, value in arrays.items()}, aside / ARRAYS_FILE
        )
        checked = {**document, "arrays_sha256": _sha256(aside / ARRAYS_FILE)}
        write_document(aside / f"{name}.json", checked)


def recover(path: str | os.PathLike[str]) -> int:
    """Clear up after a writer of ``path`` that was killed; only while nobody writes there.

    Where the system cannot exchange two folders in one step, such a writer may leave the old folder
    beside its place and nothing in it: it is put back.

    Returns:
        How many unfinished folders were removed.
    """
    put_back(path)
    left = [*_left_beside(Path(path), PART), *_left_beside(Path(path), OLD)]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def put_back(path: str | os.PathLike[str]) -> None:
    """Put the old folder back where nothing stands in its place; a reader may do so: nothing is removed."""
    target = Path(path)
    for folder in _left_beside(target, OLD):
        if not target.exists() and any(folder.iterdir()):
            folder.rename(target)


@contextmanager
def new_folder(path: str | os.PathLike[str], name: str) -> Iterator[Path]:
    """Give an empty folder to write into; it stands at ``path`` once the block has ended well.

    Args:
        path: The folder; what may be replaced there: :func:`in_the_way`.  Missing ones above it are made.
        name: Stem of the JSON file that tells its kind.

    Raises:
        GraceError: ``path`` is something else or holds more, or cannot be written.
    """
    target = Path(path)
    expect_place(target, name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.{PART}", dir=target.parent))
    except OSError as error:
        raise GraceError(f"{target}: cannot be written: {error.strerror}") from error
    lock = _locked(aside)
    try:
        yield aside
        _as_any_new_folder(aside)
        for file in (*sorted(aside.rglob("*")), aside):
            _fsync(file)
        _swap_in(aside, target)
    except (OSError, SafetensorError) as error:  # of a full disk comes the one or the other
        told = getattr(error, "strerror", None) or error
        raise GraceError(f"{target}: cannot be written: {told}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # gone already when all went well
        if lock is not None:
            os.close(lock)


def _as_any_new_folder(folder: Path) -> None:
    """Give a folder and what is in it the permissions that this user's new files have.

    Those of ``mkdtemp``, and of safetensors, let nobody else read.
    """
    probe = folder / f".{PART}"
    probe.touch(exist_ok=False)
    mode = probe.stat().st_mode & 0o666
    probe.unlink()
    for each in (*folder.rglob("*"), folder):
        group = each.stat().st_mode & stat.S_ISGID  # of a shared folder: what is in it inherits
        each.chmod(group | mode | (mode & 0o444) >> 2 if each.is_dir() else mode)


def expect_place(path: str | os.PathLike[str], name: str) -> None:
    """Refuse a place where, as far as can be known now, no folder of a kind can be written.

    Args:
        path: The folder; what may be replaced there: :func:`in_the_way`.
        name: Stem of the JSON file that tells its kind.

    Raises:
        GraceError: ``path`` is something else, a link, or inside of what is no folder to write into.
    """
    target = Path(path)
    try:
        if target.is_symlink():
            raise GraceError(f"{target}: is a link; name the {name} folder itself")
        reason = in_the_way(target, name)
        above = next(folder for folder in target.absolute().parents if folder.exists())
    except OSError as error:
        raise GraceError(f"{target}: cannot be written: {error.strerror}") from error
    if reason is not None:
        raise GraceError(f"{target}: {reason}; choose another place")
    if not above.is_dir():
        raise GraceError(f"{target}: cannot be written: {above} is no folder; choose another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise GraceError(f"{target}: cannot be written: {above} lets nobody write; let this user")


def in_the_way(path: str | os.PathLike[str], name: str) -> str | None:
    """Return why a folder of a kind may not take this place; None where it may.

    It replaces a folder of its kind and an empty one, and no file that somebody has put there, nor
    into a folder inside.
    """
    target = Path(path)
    if not target.exists():
        return None
    is_empty = target.is_dir() and not any(target.iterdir())
    tells = {f"{name}.json", TOLD_BY.get(name, f"{name}.json")}
    if not is_empty and not any((target / file).is_file() for file in tells):
        return f"exists and is not a {name} folder"
    other = _not_ours(target, name)
    return f"holds {other.as_posix()!r}, which is not of a {name} folder" if other else None


def _not_ours(folder: Path, kind: str) -> Path | None:
    """Return the first thing, relative to a folder, that no writer of its kind has put there."""
    ours = {f"{kind}.json": FILE, ARRAYS_FILE: FILE, **BESIDE.get(kind, {})}
    for found in sorted(folder.iterdir()):
        inside = ours.get(found.name)
        if kind == "board":
            inside = FILE if found.match(BOARD_FILES) else None
        is_kind = found.is_file() if inside == FILE else found.is_dir()
        if inside is None or found.is_symlink() or not is_kind:
            return Path(found.name)
        if inside != FILE and (other := _not_ours(found, inside)):
            return found.name / other
    return None


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write one file; what is there is replaced once the new content is on disk.

    Raises:
        OSError: it cannot be written, as where its folder is missing; what is there is whole, the old content or the new.
    """
    target = Path(path)
    # A name of its own, so that two writers do not write into one file; unlike mkstemp's, its
    # permissions are those of any new file.
    aside = target.with_name(f".{target.name}.{PART}{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as stream:
            stream.write(content)
        _fsync(aside)
        aside.replace(target)
        _fsync(target.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def write_document(file: Path, document: Mapping[str, Any]) -> None:
    """Write JSON values, sorted, one a line."""
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def read_folder(
    path: str | os.PathLike[str], name: str
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read a folder that :func:`write_folder` wrote; verify the checksum.

    Raises:
        GraceError: a file is missing, truncated, not valid, or was changed after writing.
    """
    document_file, arrays_file = Path(path) / f"{name}.json", Path(path) / ARRAYS_FILE
    document = read_json(document_file, name)
    plain_file(arrays_file, name)
    if document.get("arrays_sha256") != _sha256(arrays_file):
        raise GraceError(
            f"{arrays_file}: does not match its checksum in {document_file.name}; write the {name} again"
        )
    return document, read_arrays(arrays_file, name)


def fingerprint(*parts: npt.NDArray[Any] | str | int | None) -> str:
    """Return a short sha256 over the types, shapes and contents of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


def _left_beside(target: Path, kind: str) -> list[Path]:
    """Return the folders of one kind, PART or OLD, that writers of ``target`` left beside it."""
    name = re.compile(re.escape(f".{target.name}.{kind}") + "[a-z0-9_]{8}")
    if not target.parent.is_dir():
        return []
    beside = sorted(target.parent.iterdir())
    return [found for found in beside if name.fullmatch(found.name) and found.is_dir()]


def _locked(folder: Path) -> int | None:
    """Lock a folder for as long as this process lives; None where another holds it, or none can."""
    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle


def _sweep(target: Path) -> None:
    """Remove what writers of ``target`` left that were killed; those that live hold their lock."""
    for folder in _left_beside(target, PART):
        with suppress(OSError):  # gone meanwhile
            is_young = time.time() - folder.stat().st_mtime < YOUNG_S
            lock = None if is_young else _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _swap_in(aside: Path, target: Path) -> None:
    """Put ``aside`` at ``target``; the old folder is only removed once the new one stands."""
    if not target.exists():
        aside.rename(target)
    elif not _exchange(aside, target):
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.{OLD}", dir=target.parent))
        target.rename(old)  # rename onto an empty folder replaces it
        try:
            aside.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _fsync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    failed = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return not failed


def _fsync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
