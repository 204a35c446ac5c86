"""Numbers by first appearance: keys of users and items become 0, 1, 2 ... as a file is read.

Flow: keys of a block -> *FirstSeen* -> users or rows.  *ItemNames* keeps the name behind each row
too, so that items may have any numbers or text in the file.
Shapes: T keys of a block, U keys known so far.
"""

import os
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers.columns import Columns, cut_columns, keys, trimmed, unquoted
from grace_torchrec.traces.readers.integer_lines import BYTE_ORDER_MARK
from grace_torchrec.traces.readers.line_errors import file_error, line_error, open_source
from grace_torchrec.traces.trace import Trace

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


class FirstSeen:
    """Keys and their numbers, in the order in which they came."""

    def __init__(self) -> None:
        """Know no key."""
        self._keys_U = np.zeros(0, np.uint64)  # sorted
        self._numbers_U = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Keys known so far."""
        return self._keys_U.size

    def numbers_of(self, keys_T: UInt64s, grow: bool = True) -> tuple[Int64s, Int64s]:
        """Return the number of each key; new keys are numbered on.

        Args:
            keys_T: Keys, in the order of the file.
            grow: Number new keys; False: they stay unknown and get -1.

        Returns:
            (numbers ``[T]``, where each new key first stands, in that order).
        """
        distinct, first, inverse = np.unique(keys_T, return_index=True, return_inverse=True)
        place = np.searchsorted(self._keys_U, distinct)
        known = place < len(self)
        known[known] = self._keys_U[place[known]] == distinct[known]
        numbers = np.full(distinct.size, -1, np.int64)
        numbers[known] = self._numbers_U[place[known]]
        new = np.flatnonzero(~known)
        if not grow:
            return numbers[inverse], first[new]
        new_by_place = new[np.argsort(first[new])]
        numbers[new_by_place] = len(self) + np.arange(new.size)
        self._keys_U = np.insert(self._keys_U, place[new], distinct[new])
        self._numbers_U = np.insert(self._numbers_U, place[new], numbers[new])
        return numbers[inverse], first[new_by_place]


class ItemNames:
    """The name of each row: items may have any numbers or text, rows are 0, 1, 2 ..."""

    def __init__(self) -> None:
        """Know no item: rows are given by first appearance."""
        self.names: list[str] = []
        self._seen = FirstSeen()
        self._grow = True

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ItemNames":
        """Read a file of names, that of row 0 first; other items are then unknown.

        Names are read as the item column of a log is: a byte order mark, blanks around a name and
        one pair of double quotes are no part of it.

        Raises:
            GraceError: the file cannot be read, a line is blank, or a name stands there twice.
        """
        with open_source(path) as source:
            try:
                text = source.read()
            except (OSError, EOFError, zlib.error) as error:
                file_error(path, f"not readable ({error}); give the names as plain text", error)
        block = text.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\n") + b"\n"
        columns = _one_column(block)
        starts, ends = unquoted(columns.text_W, columns.starts_P, columns.ends_P)
        starts, ends = trimmed(columns.text_W, starts, ends)  # as the item column of a log
        lines = np.arange(1, block.count(b"\n") + 1)
        filled = columns.line_P[starts < ends]
        if filled.size < lines.size:
            blank = int(np.setdiff1d(lines, filled)[0])
            line_error(path, blank, "the line is blank", "give the name of one item a line")
        given = cls()
        rows = given.rows_of(
            keys(columns, starts, ends),
            lambda place: columns.token(place, starts, ends, "surrogateescape"),
        )
        twice = np.flatnonzero(rows != np.arange(rows.size))
        if twice.size:
            name = columns.token(int(twice[0]), starts, ends)
            line_error(path, int(twice[0]) + 1, f"item {name[:40]!a} stands there twice",
                       "give each item one row")  # fmt: skip
        given._grow = False
        return given

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the names, that of row 0 first, one a line; all of them or none.

        Raises:
            GraceError: the file cannot be written.
        """
        text = "".join(f"{_as_told(name)}\n" for name in self.names)
        try:
            artifact.write_file(path, text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise GraceError(
                f"{os.fspath(path)}: cannot be written ({error.strerror}); give another file"
            ) from error

    def rows_of(self, keys_T: UInt64s, name_of: Callable[[int], str]) -> Int64s:
        """Return the row of each item, -1 where names were given and it has none.

        Args:
            keys_T: See ``columns.keys``.
            name_of: Returns the name behind a key by its place; called once an item.
        """
        rows_T, new = self._seen.numbers_of(keys_T, self._grow)
        if self._grow:
            self.names += [name_of(place) for place in new.tolist()]
        return rows_T

    def renumbered(self, trace: Trace, where: str) -> Trace:
        """Return the trace with rows instead of the numbers that its items have.

        Args:
            trace: Bags of items.
            where: The file it is from, for messages.

        Raises:
            GraceError: names were given and an item has none.
        """
        distinct, first, inverse = np.unique(trace.ids_L, return_index=True, return_inverse=True)
        order = np.argsort(first)
        names = list(map(str, distinct[order].tolist()))
        rows = np.empty(distinct.size, np.int64)
        rows[order] = self.rows_of(_keys_of(names), names.__getitem__)
        if rows.min(initial=0) < 0:
            place = int(first[rows < 0].min())
            raise GraceError(
                f"{where}: item {int(trace.ids_L[place])} has no row; add it to the names, or "
                f"leave its bags out"
            )
        return Trace(
            trace.offsets_B1, rows[inverse], len(self.names), trace.weights_L, trace.time_B,
            trace.split_L, trace.note,
        )  # fmt: skip


def _keys_of(names: Sequence[str]) -> UInt64s:
    """Return the keys of names, as those of a column of text."""
    text = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
    block = _one_column(text)
    return keys(block, block.starts_P, block.ends_P)


def _one_column(block: bytes) -> Columns:
    """Cut a block into lines of one column each: no name holds a NUL."""
    return cut_columns(block, 1, b"\0")


def _as_told(name: str) -> str:
    """Return a name as :meth:`ItemNames.load` reads it: in quotes where it might lose a part."""
    loses = name.startswith("\ufeff") or (len(name) >= 2 and name[0] == name[-1] == '"')
    return f'"{name}"' if loses else name
