"""User lines of the LightGCN family (Gowalla, Yelp2018, Amazon-Book): ``user item item ...``.

Flow: file -> *read_user_items* -> Trace.  Format: LightGCN-PyTorch, data/*/train.txt.
"""

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.readers.first_seen import ItemNames
from grace_torchrec.traces.readers.integer_lines import IntegerLines, read_lines
from grace_torchrec.traces.readers.line_errors import BadLines, line_error
from grace_torchrec.traces.readers.word_lines import read_words
from grace_torchrec.traces.trace import Trace


def read_user_items(path: str | os.PathLike[str], *, one_indexed: bool = False) -> Trace:
    """Read ``user item item ...`` lines; each line is one bag, its first number is dropped.

    Blank lines are skipped; a user without items is an empty bag; a user on two lines is two
    bags. Repeated items are kept, in the order of the file.

    Args:
        path: Text file, plain or gzip; see :mod:`grace_torchrec.traces.readers.integer_lines`.
        one_indexed: Items count from 1 in the file; id ``i`` becomes ``i - 1``.

    Raises:
        GraceError: the file cannot be read or is empty, or ``FILE:LINE:`` of a bad line.
    """
    return concatenate(stream_user_items(path, one_indexed=one_indexed))


def stream_user_items(
    path: str | os.PathLike[str],
    *,
    one_indexed: bool = False,
    names: ItemNames | None = None,
    bad_lines: BadLines | None = None,
) -> Iterator[Trace]:
    """Yield the bags of a file block by block; see :func:`read_user_items`.

    Args:
        path: As for the reader, as the next.
        one_indexed: Items count from 1 in the file.
        names: Numbers the items, which may then be any text, as may users; in place of
            ``one_indexed``. None: they keep their numbers.
        bad_lines: Counts bad lines, which make no bag. None: the first is an error.

    Raises:
        GraceError: as the reader, or an item that has no row where names were given.
    """
    if names is not None:
        yield from read_words(path, names, users=True, bad_lines=bad_lines)
        return
    for block in read_lines(path, bad_lines):
        items = _items(block)
        if one_indexed:
            _refuse_zero(path, block, items)
            items = items - 1
        lengths = block.counts_P[block.counts_P > 0] - 1
        yield Trace(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), items)


def _items(block: IntegerLines) -> npt.NDArray[np.int64]:
    """Return the numbers of a block without the first of each line."""
    return np.delete(block.values_T, _user_positions(block))


def _user_positions(block: IntegerLines) -> npt.NDArray[np.int64]:
    """Return where the first number of each line that is not blank stands."""
    counts = block.counts_P[block.counts_P > 0]
    return np.cumsum(counts) - counts


def _refuse_zero(
    path: str | os.PathLike[str], block: IntegerLines, items: npt.NDArray[np.int64]
) -> None:
    """Name the line of the first item 0: the file does not count from 1."""
    if items.size and not items.min():
        is_item = np.ones(block.values_T.size, bool)
        is_item[_user_positions(block)] = False
        position = int(np.flatnonzero(is_item & (block.values_T == 0))[0])
        line_error(
            path,
            block.line_of(position),
            "item 0 in a file read with one_indexed",
            "read it without one_indexed",
        )
