"""Prefetching: rows known from the last chunk are fetched while the next chunk is rewritten.

Flow: _rewrite.py keeps a queue; _split_ids.py and _merge.py take a few rows from it every few
ids.  Derived: reading rows and rewriting ids take turns otherwise, and memory idles while ids
are rewritten. One after the other costs their sum, mixed instruction by instruction it costs
little more than the slower of the two - on some cores. On Zen 5 both took 1.0 to 1.5 times as long
mixed as one after the other (``python -m bench lookup``, ``fused_other``; why is not known). So
``MIXING_CORES`` names the core on which mixing was measured to be faster, and its elder sister;
anywhere else rows are prefetched by who sums them.

A queue is int64 ``[5]``: address of the list of row addresses, next entry, end, entries taken
between two groups of ids, bytes of a row.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._llvm import CACHE_LINE, load_i64, prefetch, target_cpu

LIST_AT, NEXT, END, PACE, ROW_BYTES = 0, 1, 2, 3, 4
QUEUE_SIZE = 5
# LLVM's names. Measured: Emerald Rapids, which older LLVMs call by the name of its elder sister.
MIXING_CORES = ("sapphirerapids", "emeraldrapids")
MIXES = target_cpu() in MIXING_CORES


@jit
def prefetch_row(address: Any, row_bytes: Any) -> Any:
    """Ask for every cache line of a row."""
    for line in range(address & -CACHE_LINE, address + row_bytes, CACHE_LINE):
        prefetch(line)


@jit
def prefetch_rows(queue: Any) -> Any:
    """Take up to ``queue[PACE]`` rows."""
    first = queue[NEXT]
    last = min(queue[END], first + queue[PACE])
    for entry in range(first, last):
        prefetch_row(load_i64(queue[LIST_AT] + 8 * entry), queue[ROW_BYTES])
    queue[NEXT] = max(first, last)


@jit
def prefetch_rest(queue: Any) -> Any:
    """Take all rows that are left."""
    for entry in range(queue[NEXT], queue[END]):
        prefetch_row(load_i64(queue[LIST_AT] + 8 * entry), queue[ROW_BYTES])
    queue[NEXT] = queue[END]


@jit
def refill(
    queue: Any, list_at: Any, num_rows: Any, row_bytes: Any, num_ids: Any, num_clustered: Any
) -> Any:
    """Queue the rows of a chunk, at a pace that empties it while ``num_ids`` ids are rewritten.

    Args:
        queue: The queue, empty.
        list_at: Address of the int64 row addresses.
        num_rows: How many.
        row_bytes: Bytes of a row.
        num_ids: Ids that are rewritten meanwhile.
        num_clustered: How many of them are expected in clusters: each takes a row when it merges.
    """
    queue[LIST_AT], queue[NEXT], queue[END], queue[ROW_BYTES] = list_at, 0, num_rows, row_bytes
    groups = max(np.int64(1), num_ids >> 3)
    queue[PACE] = max(np.int64(1), -((num_clustered - num_rows) // groups))
