"""Shards: one trace in many files, read by plain processes, held on disk where it must be.

Flow: files -> *read_shards* -> Trace -> profile.  Each file is streamed in pieces; long bags
can be capped and whole bags sampled on the way, and what that drops is counted. The result is
the same for any cut into shards and any number of processes. A bag must not span two files
(logs of interactions: all lines of a user in one shard).
Shapes: B bags, B1 = B + 1, L ids.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.interrupts import end_silently, starting_processes
from grace_torchrec.traces.array_files import join_on_disk, load_arrays, save_arrays
from grace_torchrec.traces.merge import cap_bags, concatenate, sample_bags
from grace_torchrec.traces.readers import BadLines, ItemNames, stream
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True)
class Thinning:
    """What may be left out of a large trace.

    Attributes:
        most_ids: Most ids of a bag; longer ones are sampled. None: no limit.
        share: Share of the bags that is kept, above 0 and up to 1.
        seed: Of both samples.

    Raises:
        GraceError: a value is out of range.
    """

    most_ids: int | None = None
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges once, before any file is opened."""
        if self.most_ids is not None and self.most_ids < 1:
            raise GraceError(f"shards: most_ids is {self.most_ids}; give 1 or more, or None")
        if not 0 < self.share <= 1:
            raise GraceError(f"shards: share is {self.share}; give a number above 0, up to 1")


@dataclass(frozen=True, eq=False)
class ShardedTrace:
    """A trace of several files, and what is not in it.

    Attributes:
        trace: The bags that are kept, in the order of the files.
        bags_read: Bags of all files.
        ids_read: Ids of all files.
        bags_capped: Bags that lost ids to ``most_ids``, before bags were sampled.
        ids_dropped: Ids they lost.
        pairs_dropped: Pairs of ids that are not seen together any more for it.
        lines_skipped: Bad lines of text that were left out.
        first_skipped: What was wrong with the first of them.
    """

    trace: Trace
    bags_read: int
    ids_read: int
    bags_capped: int
    ids_dropped: int
    pairs_dropped: int
    lines_skipped: int = 0
    first_skipped: str = ""


class _Reading(NamedTuple):
    """How every file is read; the arguments of :func:`read_shards`."""

    format: str | None
    thinning: Thinning
    columns: Sequence[str] | None
    names: ItemNames | None
    skip_bad_lines: bool


class _Piece(NamedTuple):
    """Some bags of one file after capping, in memory or in a folder of arrays.

    Attributes:
        trace: The bags, or None where they are in ``folder``.
        folder: See ``save_arrays``.
        counts: Bags and ids read, bags capped, ids and pairs dropped, lines skipped.
        skipped: What was wrong with the first line skipped in its file.
    """

    trace: Trace | None
    folder: str
    counts: tuple[int, int, int, int, int, int]
    skipped: str

    def load(self) -> Trace:
        """Return the bags; a folder is removed."""
        return load_arrays(self.folder) if self.trace is None else self.trace


def shard_paths(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Replace each folder by its files, sorted by name; hidden files are left out.

    Raises:
        GraceError: there are no paths, or a folder has no files.
    """
    if isinstance(paths, str | os.PathLike):
        raise GraceError(f"shards: {os.fspath(paths)!r} is one path; give a list of paths")
    found: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            found.append(os.fspath(path))
            continue
        files = sorted(f for f in Path(path).iterdir() if f.is_file() and f.name[0] not in "._")
        if not files:
            raise GraceError(f"{os.fspath(path)}: the folder has no files; give the shards")
        found += map(str, files)
    if not found:
        raise GraceError("shards: there are no files; give at least one")
    return found


def read_shards(
    paths: Sequence[str | os.PathLike[str]],
    format: str | None = None,
    *,
    thinning: Thinning | None = None,
    processes: int = 1,
    folder: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    names: ItemNames | None = None,
    skip_bad_lines: bool = False,
) -> ShardedTrace:
    """Read the files of one trace, in their order.

    Args:
        paths: Files and folders of files; see :func:`shard_paths`.
        format: As for :func:`grace_torchrec.traces.readers.read`; the same for all files.
        thinning: What may be left out; None: nothing.
        processes: How many plain processes read files at the same time. More than one are
            spawned, so a script that calls this needs a ``__main__`` guard.
        folder: Where the arrays of the result are kept, for traces larger than memory: they
            are mapped, and the folder, one for each trace, must outlive it. None: in memory.
        columns: As for :func:`grace_torchrec.traces.readers.stream`.
        names: Numbers the items, of all files in their order, in one process; see
            :func:`grace_torchrec.traces.readers.stream`. None: they keep their numbers.
        skip_bad_lines: Leave bad lines of text out and count them.

    Raises:
        GraceError: a file is refused, files do not fit together, a process died, or an
            argument is out of range.
        NotSupported: a format needs a library that is not installed.
    """
    files, thinning = shard_paths(paths), thinning or Thinning()
    if processes < 1:
        raise GraceError(f"shards: processes is {processes}; give 1 or more")
    if names is not None and processes > 1:
        raise GraceError(
            f"shards: items are numbered by one process, processes is {processes}; give 1"
        )
    totals, skipped = np.zeros(6, np.int64), list[str]()
    reading = _Reading(format, thinning, columns, names, skip_bad_lines)
    try:
        with tempfile.TemporaryDirectory(prefix="shards.", dir=folder) as spool:
            pieces = _pieces(files, reading, processes, spool)
            kept = _kept(pieces, thinning, totals, skipped)
            trace = concatenate(kept) if folder is None else join_on_disk(kept, Path(folder), spool)
    except OSError as error:
        place = folder or tempfile.gettempdir()
        raise GraceError(
            f"shards: {os.fspath(place)} cannot be written ({error.strerror}); give another folder"
        ) from error
    bags, ids, capped, dropped, pairs, lines = totals.tolist()
    first = skipped[0] if skipped else ""
    return ShardedTrace(trace, bags, ids, capped, dropped, pairs, lines, first)


def _kept(
    pieces: Iterator[_Piece],
    thinning: Thinning,
    totals: npt.NDArray[np.int64],
    skipped: list[str],
) -> Iterator[Trace]:
    """Yield the sampled bags of each piece, add up its counts and keep what it skipped."""
    for piece in pieces:
        yield sample_bags(piece.load(), thinning.share, thinning.seed, int(totals[0]))
        totals += piece.counts
        skipped += [piece.skipped] * bool(piece.skipped)


def _pieces(files: list[str], reading: _Reading, processes: int, spool: str) -> Iterator[_Piece]:
    """Yield the pieces of all files in order; with processes, through files in ``spool``."""
    if processes == 1 or len(files) == 1:
        for file in files:
            yield from _capped(file, reading)
        return
    count, spawn = min(processes, len(files)), get_context("spawn")
    with ProcessPoolExecutor(count, spawn, end_silently) as pool:
        with starting_processes():
            jobs = [
                pool.submit(_spool, file, reading, f"{spool}/{number}")
                for number, file in enumerate(files)
            ]
        try:
            for job in jobs:
                yield from job.result()
        except BrokenProcessPool as error:
            raise GraceError(
                "shards: a process that read files ended (out of memory?); use fewer processes"
            ) from error
        finally:
            for job in jobs:
                job.cancel()


def _capped(file: str, reading: _Reading) -> Iterator[_Piece]:
    """Yield the pieces of one file, long bags cut."""
    bad_lines = BadLines() if reading.skip_bad_lines else None
    told, thinning = 0, reading.thinning
    pieces = stream(
        file, reading.format, columns=reading.columns, names=reading.names, bad_lines=bad_lines
    )
    for trace in pieces:
        whole, dropped = trace, (0, 0, 0)
        if thinning.most_ids is not None:
            capped = cap_bags(whole, thinning.most_ids, thinning.seed)
            trace = capped.trace
            dropped = (capped.bags_capped, capped.ids_dropped, capped.pairs_dropped)
        bad = bad_lines or BadLines()
        counts = (whole.num_bags, whole.num_ids, *dropped, bad.count - told)
        yield _Piece(trace, "", counts, bad.first)
        told = bad.count


def _spool(file: str, reading: _Reading, place: str) -> list[_Piece]:
    """Save the pieces of one file below ``place``, in a process of its own."""
    return [
        piece._replace(trace=None, folder=save_arrays(piece.load(), f"{place}.{number}"))
        for number, piece in enumerate(_capped(file, reading))
    ]
