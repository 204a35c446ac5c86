"""FIMI baskets (retail, kosarak): one basket a line, the ids of its items.

Flow: file -> *read_baskets* -> Trace.  Format: the Frequent Itemset Mining repository.
"""

import os

import numpy as np

from grace_torchrec.traces.readers.integer_lines import read_lines
from grace_torchrec.traces.trace import Trace


def read_baskets(path: str | os.PathLike[str]) -> Trace:
    """Read ``item item ...`` lines; each line is one bag.

    Blank lines are skipped: they make no bag. Repeated items are kept, in the order of the file.

    Args:
        path: Text file, plain or gzip; see :mod:`grace_torchrec.traces.readers.integer_lines`.

    Raises:
        GraceError: the file cannot be read or is empty, or ``FILE:LINE:`` of a bad line.
    """
    blocks = list(read_lines(path))
    counts = np.concatenate([block.counts_P[block.counts_P > 0] for block in blocks])
    offsets = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return Trace(offsets, np.concatenate([block.values_T for block in blocks]))
