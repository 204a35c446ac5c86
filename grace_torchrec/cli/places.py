"""Places on the command line: what a command reads, and where it may write.

Flow: text -> *InPath, OutPath* -> Path; refused before the work, so nothing is lost by it.  One rule
for every command: what stands at a place that the user did not name (a default) is never replaced;
at a place that was named, a result of the same kind is replaced, and nothing else; no place is both
read and written, nor inside of one that is.  Folders missing above a folder are made, a file goes
into a folder that is there: so does every ``save`` of the library (artifact).
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from grace_torchrec import artifact

HEAD_BYTES = 1 << 12  # of a file, in which its mark is
MOST_BYTES = 1 << 20  # of a JSON file that is parsed to know its kind
REPORT_MARK = b'<meta name="generator" content="grace-torchrec'
SEEN = "grace_torchrec.cli.places"  # places of this call, in the context of click


@dataclass(frozen=True)
class Kind:
    """What a command writes at a place.

    Attributes:
        name: For errors, such as ``plan folder``.
        in_the_way: Returns why what stands at a place may not be replaced, or None.
        is_file: A file, whose folder must be there; missing folders of a folder are made.
        replaces: What is there is replaced; False: it is added to, or read.
    """

    name: str
    in_the_way: Callable[[Path], str | None]
    is_file: bool = False
    replaces: bool = True


def folder_of(name: str) -> Kind:
    """Return the kind of a folder that :func:`artifact.new_folder` writes."""
    return Kind(f"{name} folder", lambda path: artifact.in_the_way(path, name))


def file_with(name: str, is_one: Callable[[bytes], bool]) -> Kind:
    """Return the kind of a file that is known by its first bytes; an empty one is fine too."""

    def in_the_way(path: Path) -> str | None:
        """Look at the head of a file."""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(MOST_BYTES).lstrip()
            if not head or is_one(head):
                return None
        return f"exists and is not a {name}"

    return Kind(name, in_the_way, is_file=True)


def _is_report(head: bytes) -> bool:
    """Tell a page that we wrote from any other."""
    return head.startswith(b"<!doctype html>") and REPORT_MARK in head[:HEAD_BYTES]


def _is_memory(head: bytes) -> bool:
    """Tell a memory model from other JSON, of whatever schema."""
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"schema", "machine", "tiers", "uvm"} <= document.keys()


def _is_costs(head: bytes) -> bool:
    """Tell a cost file by its first lines; it may be long."""
    return head.startswith(b'{\n "format":') and b'"fingerprint":' in head[:HEAD_BYTES]


def _is_picture(head: bytes) -> bool:
    """Tell a PNG, a PDF or an SVG, the types that are written."""
    is_svg = head.startswith((b"<svg", b"<?xml")) and b"<svg" in head[:HEAD_BYTES]
    return is_svg or head.startswith((b"\x89PNG", b"%PDF"))


def _no_board(path: Path) -> str | None:
    """Return why event files cannot go into a place; beside others they can."""
    return None if path.is_dir() else "exists and is not a folder"


def _no_names(path: Path) -> str | None:
    """Return why names cannot be read from what stands at a place."""
    return "exists and is not a file" if path.is_dir() else None


PROFILE, PLAN, SERVED, DEMO = map(folder_of, ("profile", "plan", "served", "demo"))
REPORT = file_with("report", _is_report)
MEMORY = file_with("memory model", _is_memory)
COSTS = file_with("cost file", _is_costs)
TIMELINE = file_with("trace for Perfetto", lambda head: head.startswith(b'{"traceEvents":'))
DRAWING = file_with("drawing in SVG", lambda head: head.startswith(b"<svg"))
PICTURE = file_with("picture", _is_picture)
NAMES = Kind("file of names", _no_names, is_file=True, replaces=False)
BOARD = Kind("TensorBoard folder", _no_board, replaces=False)


class InPath(click.Path):
    """A file or folder that the command reads."""

    def __init__(self) -> None:
        """Take any path."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: the command would write there, too.
        """
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not str(value):
            self.fail("it is empty.", param, ctx)
        _once(self, path, False, param, ctx)
        return path


class OutPath(click.Path):
    """A place that the command writes; refused before the work where it could or should not."""

    def __init__(self, kind: Kind) -> None:
        """Take what is written there."""
        super().__init__(path_type=Path)
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: no folder that is there could take it, the command reads or writes
                it already, or something stands there that is not to be replaced.
        """
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not str(value):
            self.fail("it is empty.", param, ctx)
        _once(self, path, True, param, ctx)
        if os.path.lexists(path):
            self._look(path, param, ctx)
            if not self.kind.replaces:
                return path
        folder = path.absolute().parent
        while not (self.kind.is_file or os.path.lexists(folder)):
            folder = folder.parent
        if not folder.is_dir():
            self.fail(f"{str(path)!r}: {str(folder)!r} is no folder.", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{str(path)!r}: folder {str(folder)!r} is not writable.", param, ctx)
        return path

    def _look(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> None:
        """Refuse what stands at a place, unless it may be replaced."""
        told, source = str(path), None
        if param is not None and ctx is not None:
            source = ctx.get_parameter_source(param.name or "")
        if self.kind.replaces and source in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            self.fail(
                f"{told!r} is there already and was not named: give -o {told} to replace "
                f"a {self.kind.name}, or -o another place.", param, ctx,
            )  # fmt: skip
        if self.kind.replaces and path.is_symlink():
            self.fail(f"{told!r} is a link: name the {self.kind.name} itself.", param, ctx)
        try:
            reason = self.kind.in_the_way(path)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        if reason is not None:
            self.fail(f"{told!r} {reason}: choose another place.", param, ctx)


def _once(
    kind: click.Path, path: Path, written: bool,
    param: click.Parameter | None, ctx: click.Context | None,
) -> None:  # fmt: skip
    """Refuse a place that this call writes, and reads or writes by another option; also inside of it."""
    if ctx is None or param is None:
        return
    seen: dict[Path, tuple[str | None, bool]] = ctx.meta.setdefault(SEEN, {})
    place = Path(os.path.realpath(path))
    for there, (other, was_written) in seen.items():
        if other == param.name or not (written or was_written):
            continue
        called = _called(other, ctx)
        if there == place:
            kind.fail(f"{str(path)!r} is also {called}: give another place.", param, ctx)
        if place.is_relative_to(there):
            kind.fail(f"{str(path)!r} is inside of {called}: give another place.", param, ctx)
        if there.is_relative_to(place):
            kind.fail(f"{str(path)!r} holds {called}: give another place.", param, ctx)
    seen.setdefault(place, (param.name, written))


def _called(name: str | None, ctx: click.Context) -> str:
    """Return what users call a parameter."""
    for param in ctx.command.params:
        if param.name == name:
            return param.get_error_hint(ctx)
    return str(name)
