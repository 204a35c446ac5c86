"""LRU row cache: rows are kept in the fast memory while they were requested not long ago.

The stock alternative to stored sums at equal bytes (FBGEMM's UVM cache): it cuts no row reads
but serves some of them from the fast memory. Exact: one recency list over all rows, each id of
each bag is one request, in the order of the trace.
Shapes: N items, L ids.
"""

import numpy as np
import numpy.typing as npt

from bench.rivals import _lru_core
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace


def lru_found(trace: Trace, capacity_rows: int, warm: Trace | None = None) -> npt.NDArray[np.bool_]:
    """Return for each request whether it finds its row in the cache, bool ``[L]``.

    Args:
        trace: The bags that are asked for, in the order of their requests.
        capacity_rows: Rows that the cache holds, 0 or more.
        warm: Bags that were served before and are not told of; None starts with an empty cache.

    Raises:
        GraceError: the capacity is below 0, or ``warm`` is over more items than ``trace``.

    >>> lru_found(Trace.from_bags([[0, 1, 0], [2], [1, 0]]), 2).tolist()
    [False, False, True, False, False, False]
    """
    cache = _warm_cache(trace, capacity_rows, warm)
    found = np.zeros(trace.num_ids, np.bool_)
    _lru_core.find(trace.ids_L, capacity_rows, cache, found)
    return found


def _warm_cache(trace: Trace, capacity_rows: int, warm: Trace | None) -> npt.NDArray[np.int64]:
    """Return the cache after ``warm``; check what is given."""
    if capacity_rows < 0:
        raise GraceError(f"lru: capacity {capacity_rows}, give the rows of the cache, 0 or more")
    if warm is not None and warm.num_items > trace.num_items:
        raise GraceError(
            f"lru: warm bags are over {warm.num_items} items, the trace over {trace.num_items}; "
            f"give both the rows of one table"
        )
    cache = _lru_core.empty_cache(trace.num_items)
    if warm is not None:
        _lru_core.find(warm.ids_L, capacity_rows, cache, np.zeros(warm.num_ids, np.bool_))
    return cache
