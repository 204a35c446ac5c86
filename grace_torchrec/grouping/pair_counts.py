"""Pair counts: how often each pair of items is requested together, as a graph.

Flow: trace -> *PairCounts* -> greedy growth.  Source: GRACE, ASPLOS'23 (item
co-occurrence graph: nodes are items, an edge weighs how many bags hold both items; neither the
order of ids nor the number of bags changes its size).  Derived: a bag with repeats counts once
for each layer (see ``layers``), so a count is what one stored pair would save.
Shapes: N items, N1 = N + 1, E directed edges (every pair twice).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import _pair_core
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.grouping.threads import counting_threads
from grace_torchrec.traces.trace import Trace

DEFAULT_MEMORY_LIMIT = 4 << 30
BYTES_PER_EDGE = 8  # partner and count
BYTES_PER_ITEM = 24  # two row pointers, a counter, its mark


class TooManyPairs(GraceError):
    """The counts could pass the memory limit: count fewer bags, or of fewer items."""


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Symmetric pair counts in CSR form, without diagonal.

    Attributes:
        indptr_N1: int64 ``[N + 1]``: the edges of item ``i`` are ``indptr[i]:indptr[i + 1]``.
        partners_E: int32 ``[E]``, rising inside each row.
        counts_E: int32 ``[E]``, one or more.
    """

    indptr_N1: npt.NDArray[np.int64]
    partners_E: npt.NDArray[np.int32]
    counts_E: npt.NDArray[np.int32]

    @property
    def num_items(self) -> int:
        """Nodes N of the graph: rows of the table."""
        return int(self.indptr_N1.size - 1)

    @property
    def num_edges(self) -> int:
        """Pairs of items that were requested together at least once."""
        return int(self.partners_E.size // 2)

    def weight(self, item: int, other: int) -> int:
        """Return how often ``item`` and ``other`` were requested together (0: never)."""
        first, last = int(self.indptr_N1[item]), int(self.indptr_N1[item + 1])
        edge = first + int(np.searchsorted(self.partners_E[first:last], other))
        found = edge < last and int(self.partners_E[edge]) == other
        return int(self.counts_E[edge]) if found else 0

    def weighted_degrees(self) -> npt.NDArray[np.int64]:
        """Return the sum of the counts of each item's edges, int64 ``[N]``."""
        degrees: npt.NDArray[np.int64] = _pair_core.weighted_degrees(self.indptr_N1, self.counts_E)
        return degrees


def count_pairs(
    trace: Trace,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
    num_threads: int | None = None,
) -> PairCounts:
    """Count every pair of distinct items over all bags of ``trace``.

    The result is the same for any order of the bags and of the ids in them, and for any threads.

    Args:
        trace: Bags; repeated ids and weights are split into layers.
        memory_limit_bytes: Refuse to start when the counts could need more.
        num_threads: Threads; default: the processors of this process.

    Raises:
        TooManyPairs: the counts could pass ``memory_limit_bytes``; nothing was allocated.

    >>> count_pairs(Trace.from_bags([[0, 1, 2], [2, 1]])).weight(1, 2)
    2
    """
    _check_memory(0, trace.num_items, memory_limit_bytes)
    layers = layered_bags(trace)
    most_N = _most_edges(layers)
    _check_memory(int(most_N.sum()), trace.num_items, memory_limit_bytes)
    return _count(layers, most_N, counting_threads(layers.num_ids, num_threads))


def _count(layers: Trace, most_N: npt.NDArray[np.int64], threads: int) -> PairCounts:
    """Count side by side; each thread has the items that may have its share of the edges."""
    ends_N1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(most_N)])
    first_T = np.searchsorted(ends_N1, np.linspace(0, ends_N1[-1], threads + 1)[:-1])
    first_T1 = np.append(first_T, most_N.size)
    partners, counts = np.empty(ends_N1[-1], np.int32), np.empty(ends_N1[-1], np.int32)
    degrees_N = np.zeros(most_N.size, np.int64)
    offsets, ids = layers.offsets_B1, layers.ids_L
    indptr_N1, bags_L = _pair_core.bags_of_items(offsets, ids, layers.num_items)

    def count(first: int, last: int) -> int:
        """Count the pairs of some items, at the place where the edges before could end at most."""
        room = slice(ends_N1[first], ends_N1[last])
        used: int = _pair_core.count_pairs(
            offsets,
            ids,
            indptr_N1,
            bags_L,
            first,
            last,
            degrees_N,
            partners[room],
            counts[room],
        )
        return used

    with ThreadPoolExecutor(threads) as pool:  # the core holds no lock of the interpreter
        used_T = list(pool.map(count, first_T1[:-1].tolist(), first_T1[1:].tolist()))
    end = 0
    for first, used in zip(first_T1[:-1], used_T, strict=True):
        start = ends_N1[first]
        if start > end:  # what lies behind a gap moves down
            partners[end : end + used] = partners[start : start + used]
            counts[end : end + used] = counts[start : start + used]
        end += used
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees_N)])
    return PairCounts(indptr, partners[:end], counts[:end])


def _check_memory(edges: int, num_items: int, memory_limit_bytes: int) -> None:
    """Refuse counts that could pass the limit."""
    need = BYTES_PER_EDGE * edges + BYTES_PER_ITEM * num_items
    if need > memory_limit_bytes:
        raise TooManyPairs(
            f"pair counts: {num_items:,} items with up to {edges // 2:,} pairs need {need:,} B, the "
            f"limit is {memory_limit_bytes:,} B; count fewer bags (trace.take), leave out items "
            f"that are rarely requested, or raise memory_limit_bytes"
        )


def _most_edges(layers: Trace) -> npt.NDArray[np.int64]:
    """Return how many edges each item has at most: the ids of its bags, and every other item once."""
    lengths = np.diff(layers.offsets_B1)
    events = np.bincount(
        layers.ids_L, weights=np.repeat(lengths - 1, lengths), minlength=layers.num_items
    )
    others = max(int((events > 0).sum()) - 1, 0)
    return np.minimum(events, others).astype(np.int64)
