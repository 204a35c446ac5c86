"""CSR: lists of lists as two arrays, which the compiled loops read.

Flow: what each operator needs, reads or waits for -> *pointers, values* -> _list_core, _issue_core,
_simulator_core.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def csr(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return where each row begins, one more than there are rows, and all values one by one.

    >>> [part.tolist() for part in csr([[3, 4], [], [5]])]
    [[0, 2, 2, 3], [3, 4, 5]]
    """
    pointers = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return pointers, np.array([value for row in rows for value in row], np.int64)
