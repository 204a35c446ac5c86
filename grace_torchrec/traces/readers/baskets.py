"""FIMI baskets (retail, kosarak): one basket a line, the ids of its items.

Flow: file -> *read_baskets* -> Trace.  Format: the Frequent Itemset Mining repository.
"""

import os
from collections.abc import Iterator

import numpy as np

from grace_torchrec.traces.merge import concatenate
from grace_torchrec.traces.readers.first_seen import ItemNames
from grace_torchrec.traces.readers.integer_lines import read_lines
from grace_torchrec.traces.readers.line_errors import BadLines
from grace_torchrec.traces.readers.word_lines import read_words
from grace_torchrec.traces.trace import Trace


def read_baskets(path: str | os.PathLike[str]) -> Trace:
    """Read ``item item ...`` lines; each line is one bag.

    Blank lines are skipped: they make no bag. Repeated items are kept, in the order of the file.

    Args:
        path: Text file, plain or gzip; see :mod:`grace_torchrec.traces.readers.integer_lines`.

    Raises:
        GraceError: the file cannot be read or is empty, or ``FILE:LINE:`` of a bad line.
    """
    return concatenate(stream_baskets(path))


def stream_baskets(
    path: str | os.PathLike[str],
    *,
    names: ItemNames | None = None,
    bad_lines: BadLines | None = None,
) -> Iterator[Trace]:
    """Yield the bags of a file block by block; see :func:`read_baskets`.

    Args:
        path: As for the reader.
        names: Numbers the items, which may then be any text. None: they keep their numbers.
        bad_lines: Counts bad lines, which make no bag. None: the first is an error.

    Raises:
        GraceError: as the reader, or an item that has no row where names were given.
    """
    if names is not None:
        yield from read_words(path, names, bad_lines=bad_lines)
        return
    for block in read_lines(path, bad_lines):
        counts = block.counts_P[block.counts_P > 0]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        yield Trace(offsets, block.values_T)
