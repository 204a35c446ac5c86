"""Held bytes: what a host order keeps in memory, and the budget that the search stays within.

Flow: OpGraph + OpStats -> *HeldBytes* -> search (orders that hold too much count as longer), issue
order (few switches within the budget).  What is held is what an allocator counts as allocated: it
follows the host's order, so streams may still overlap fully.  Derived: the paper pools tensors
online only.  The exact lifetimes of a lowered schedule are in :mod:`lifetimes`; here a value that
another stream reads is taken to go with its last reader.
Shapes: n operators, g groups of operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.schedule import _issue_core
from grace_torchrec.schedule.csr import csr
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats

Ints = npt.NDArray[np.int64]
MOST_OVER_ONE_STREAM = 1.1  # bytes held, over those of the model's own order on one stream


@dataclass(frozen=True, eq=False)
class HeldBytes:
    """What each operator allocates and reads, and how much may be held.

    Attributes:
        bytes_n: Bytes that each allocates; none where it writes in place.
        read_ptr: Where the values that each reads begin in ``read``; n + 1 of them.
        read: Owners of the memory of those values.
        readers_n: Operators that read each value; one more where it is a result.
        one_stream: Bytes held at most by the model's own order.
    """

    bytes_n: Ints
    read_ptr: Ints
    read: Ints
    readers_n: Ints
    one_stream: int

    @property
    def budget(self) -> int:
        """Bytes that an order may hold; 0 where no sizes are known."""
        return int(self.one_stream * MOST_OVER_ONE_STREAM)

    def peak(self, order_n: Sequence[int]) -> int:
        """Return the most bytes that a host order holds."""
        return int(
            _issue_core.held_peak(
                np.array(order_n, np.int64), self.read_ptr, self.read, self.readers_n,
                self.bytes_n, self.bytes_n,
            )
        )  # fmt: skip

    def over_budget(self, order_n: Sequence[int]) -> float:
        """Return the share by which a host order holds more than the budget."""
        return max(0.0, self.peak(order_n) / self.budget - 1) if self.budget else 0.0

    def regrouped(
        self,
        order_n: Sequence[int],
        stream_n: Sequence[int],
        waits_n: Sequence[Sequence[int]],
        streams: int,
    ) -> list[int]:
        """Return an order with fewer switches that holds no more than the budget, or the order.

        Args:
            order_n: Operators; each stream keeps its own order.
            stream_n: Stream of each operator.
            waits_n: What each waits for: issued before it.
            streams: Streams.
        """
        wait_ptr, waits = csr(waits_n)
        found: Ints = _issue_core.regrouped(
            np.array(order_n, np.int64), np.array(stream_n, np.int64), streams, wait_ptr, waits,
            self.read_ptr, self.read, self.readers_n, self.bytes_n,
            max(self.budget, self.peak(order_n)),
        )  # fmt: skip
        return [int(op) for op in found]

    def of_groups(self, group_n: Ints) -> tuple[Ints, Ints]:
        """Return what each group takes while it is launched and what it leaves behind.

        A group is one operator, or a chain: each member alone reads what the one before it made.

        Args:
            group_n: Group of each operator.
        """
        groups = int(group_n.max(initial=-1)) + 1
        most_g, kept_g = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
        for group, size in zip(group_n, self.bytes_n, strict=True):
            most_g[group] = max(most_g[group], kept_g[group] + size)
            kept_g[group] = size
        return most_g, kept_g


def held_bytes(graph: OpGraph, stats: OpStats) -> HeldBytes:
    """Return what the operators of a graph hold.

    Args:
        graph: Operators.
        stats: Their costs; bytes of their outputs are 0 where they are not known.
    """
    owner = graph.owners()
    reads = [sorted({owner[need] for need in op.needs}) for op in graph.ops]
    read_ptr, read = csr(reads)
    readers_n = np.bincount(read, minlength=len(owner)).astype(np.int64)
    readers_n[graph.results()] += 1
    bytes_n = np.array([stat.bytes_out for stat in stats.stats], np.int64)
    bytes_n[[place for place, base in enumerate(owner) if base != place]] = 0
    order = np.arange(len(owner))
    one = _issue_core.held_peak(order, read_ptr, read, readers_n, bytes_n, bytes_n)
    return HeldBytes(bytes_n, read_ptr, read, readers_n, int(one))
