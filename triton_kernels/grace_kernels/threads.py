"""Threads: when the bags of a lookup are divided over several, and who may use them at once.

Flow: cpu.py and table_rows.py ask here before they call a parallel core.
"""

import contextlib
import os
import threading
from typing import Any

from numba.np.ufunc.parallel import get_num_threads, threading_layer

# Below so many bytes of rows waking another thread costs more than it brings (derived, 2 cores:
# at 1 MB two threads take two thirds of the time of one).
LEAST_BYTES_TO_SHARE = 1 << 18

_forked: list[bool] = []  # not empty in a child process
_parallel_lock = threading.Lock()
_safe: list[
    contextlib.AbstractContextManager[None]
] = []  # filled once numba's threads have started
# GNU OpenMP ends a forked child that uses threads its parent had started: children use one.
os.register_at_fork(after_in_child=lambda: _forked.append(True))


def is_shared(num_threads: int, num_bags: int, num_bytes: int) -> bool:
    """Tell whether several threads serve a lookup: they cost more than they bring to small ones.

    Args:
        num_threads: Threads that may be used.
        num_bags: Bags of all features.
        num_bytes: Bytes of the rows that they ask for.
    """
    if not may_share(num_threads) or num_bags < 2 * num_threads:
        return False
    return num_bytes >= LEAST_BYTES_TO_SHARE


def may_share(num_threads: int) -> bool:
    """Tell whether there is more than one thread to use."""
    return num_threads > 1 and not _forked


def one_at_a_time() -> contextlib.AbstractContextManager[Any]:
    """Start numba's threads, and serialise parallel lookups where they serve one caller at a time.

    Parallel code is called inside only, and loaded from the disk cache inside only: numba starts its
    threads when it loads a parallel function, but forgets to for a function that calls one and was
    compiled while that one came from the cache. Such code would jump to address 0.

    Without OpenMP or TBB numba falls back to a pool that ends the process when two threads of
    the caller use it at once.
    """
    if not _safe:
        get_num_threads()  # type: ignore[no-untyped-call]  # starts them
        if threading_layer() == "workqueue":  # type: ignore[no-untyped-call]
            return _parallel_lock
        _safe.append(contextlib.nullcontext())
    return _safe[0]
