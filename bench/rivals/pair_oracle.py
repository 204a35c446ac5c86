"""Pair oracle: every sum of two items is stored, for free.

A bound on what pairs can save and no method: a bag of n ids reads ceil(n / 2) rows.
"""

import numpy as np

from grace_torchrec.traces.trace import Trace


def rows_read(trace: Trace) -> int:
    """Return the rows that the bags of ``trace`` read.

    >>> rows_read(Trace.from_bags([[5, 1, 2], [], [7]]))
    3
    """
    return int(((np.diff(trace.offsets_B1) + 1) // 2).sum())
