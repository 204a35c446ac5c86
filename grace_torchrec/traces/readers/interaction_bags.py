"""Interactions grouped into one bag a user, in bounded memory.

Flow: blocks of (user, item, time) -> *bags_of_users* -> pieces of a Trace.  Users are numbered by
first appearance, and so many in a row make a piece; what waits for its piece to be complete lies in
files once it is long.
Shapes: T interactions of a block, B users of a piece.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.first_seen import FirstSeen
from grace_torchrec.traces.trace import Trace

PIECE_USERS = 1 << 16
HELD_LINES = 1 << 22  # 24 bytes each
_LINE = np.dtype([("user", np.int64), ("item", np.int64), ("time", np.float64)])
_Lines = npt.NDArray[np.void]


@dataclass(frozen=True, eq=False)
class Interactions:
    """The lines of one block.

    Attributes:
        users_T: uint64, a key for each user; see ``columns.keys``.
        items_T: int64.
        times_T: float64, or None in all blocks of a file.
    """

    users_T: npt.NDArray[np.uint64]
    items_T: npt.NDArray[np.int64]
    times_T: npt.NDArray[np.float64] | None


@dataclass
class _Spool:
    """Lines that wait for the end of the file, by piece: in memory first, then in files."""

    folder: Path
    held: dict[int, list[_Lines]] = field(default_factory=dict)
    num_held: int = 0

    def add(self, lines: _Lines) -> None:
        """Take the lines of a block."""
        piece_T = lines["user"] // PIECE_USERS
        order = np.argsort(piece_T, kind="stable")
        pieces, starts = np.unique(piece_T[order], return_index=True)
        for piece, part in zip(pieces.tolist(), np.split(lines[order], starts[1:]), strict=True):
            self.held.setdefault(piece, []).append(part)
        self.num_held += lines.size
        if self.num_held > HELD_LINES:
            self._write()

    def _write(self) -> None:
        """Append all that is held in memory to the files of its pieces."""
        try:
            for piece, parts in self.held.items():
                with (self.folder / str(piece)).open("ab") as file:
                    file.writelines(part.tobytes() for part in parts)
        except OSError as error:
            raise GraceError(
                f"interactions: {self.folder} cannot be written ({error.strerror}); make room, or "
                f"name another place in TMPDIR"
            ) from error
        self.held, self.num_held = {}, 0

    def take(self, piece: int) -> _Lines:
        """Return the lines of a piece, in the order of the file."""
        file, parts = self.folder / str(piece), self.held.pop(piece, [])
        if file.exists():
            parts = [np.fromfile(file, _LINE), *parts]
            file.unlink()
        return np.concatenate(parts)


def bags_of_users(blocks: Iterable[Interactions]) -> Iterator[Trace]:
    """Yield the bags of all users, in order of first appearance, in pieces.

    With times the ids of a bag stand in their order, equal times in that of the file, and
    ``time_B`` is the latest of the bag.
    """
    users, timed = FirstSeen(), False
    with tempfile.TemporaryDirectory(prefix="interactions.") as folder:
        spool = _Spool(Path(folder))
        for block in blocks:
            lines = np.zeros(block.items_T.size, _LINE)
            lines["user"], _ = users.numbers_of(block.users_T)
            lines["item"] = block.items_T
            if block.times_T is not None:
                lines["time"], timed = block.times_T, True
            spool.add(lines)
        for piece, first in enumerate(range(0, len(users), PIECE_USERS)):
            num_users = min(PIECE_USERS, len(users) - first)
            yield _bags(spool.take(piece), first, num_users, timed)


def _bags(lines: Any, first: int, num_users: int, timed: bool) -> Trace:
    """Return the bags of the users from ``first`` on."""
    bag_T, time_T = lines["user"] - first, lines["time"]
    order = np.lexsort((time_T, bag_T)) if timed else np.argsort(bag_T, kind="stable")
    offsets = np.zeros(num_users + 1, np.int64)
    np.cumsum(np.bincount(bag_T, minlength=num_users), out=offsets[1:])
    time_B = time_T[order][offsets[1:] - 1] if timed else None
    return Trace(offsets, lines["item"][order], time_B=time_B)
