"""Numba core of the freshness sample: does a stored row still equal the sum of its rows?

Flow: modules/freshness.py calls it for a few rows each forward and for all rows in verify.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit

RELATIVE = 1e-5  # of the sum of absolute values: far above rounding, far below a real change


@jit
def first_stale_row(rows: Any, stored: Any, indptr: Any, items: Any, first: int, last: int) -> Any:
    """Return the first stored row in ``first .. last - 1`` that differs from its set, or -1.

    Args:
        rows: float32 ``[N, D]`` original rows.
        stored: float32 ``[R, D]``.
        indptr: int64 ``[R + 1]``.
        items: int32 ``[S]``.
        first: First stored row to check.
        last: One past the last.
    """
    dim = stored.shape[1]
    total = np.empty(dim, np.float64)
    size = np.empty(dim, np.float64)
    for row in range(first, last):
        total[:] = 0.0
        size[:] = 0.0
        for place in range(indptr[row], indptr[row + 1]):
            item = np.uintp(items[place])
            for d in range(dim):
                value = np.float64(rows[item, np.uintp(d)])
                total[d] += value
                size[d] += abs(value)
        for d in range(dim):
            have, want = stored[row, d], np.float32(total[d])  # a sum may overflow float32
            same = have == want or (np.isnan(have) and np.isnan(want))
            near = size[d] < np.inf and abs(have - total[d]) <= RELATIVE * size[d]
            if not (same or near):
                return row
    return -1
