"""Read counts: how often each row is read, before and after rewriting, on held-out bags.

Flow: (held-out trace, StoredSums) -> rewriting -> *RowReads* -> choice of method, placement.
Shapes: N items, R stored rows, P rows read.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.sums.rewrite import RewrittenBags, rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

MOST_READS = 0.95  # the share of reads at which the useful stored rows are counted


@dataclass(frozen=True, eq=False)
class RowReads:
    """Reads of every row over some bags.

    Attributes:
        plain_reads_N: int64 ``[N]``, reads of the original rows after rewriting.
        stored_reads_R: int64 ``[R]``, reads of the stored rows.
        rows_before: Rows that the bags read without sums: their ids.
    """

    plain_reads_N: npt.NDArray[np.int64]
    stored_reads_R: npt.NDArray[np.int64]
    rows_before: int

    @property
    def rows_after(self) -> int:
        """Rows that the rewritten bags read."""
        return int(self.plain_reads_N.sum() + self.stored_reads_R.sum())

    @property
    def cut(self) -> float:
        """Share of the reads that the sums save (0 where nothing was requested)."""
        return 1.0 - self.rows_after / self.rows_before if self.rows_before else 0.0

    @property
    def sums_for_95pct(self) -> int:
        """How few stored rows take 95 % of the reads of all stored rows."""
        return few_take_most(self.stored_reads_R)


def few_take_most(reads_R: npt.NDArray[np.int64], share: float = MOST_READS) -> int:
    """Return how few rows take a share of all reads.

    >>> few_take_most(np.array([1, 90, 0, 9]))
    2
    """
    running = np.cumsum(np.sort(reads_R)[::-1])
    if not running.size or running[-1] == 0:
        return 0
    return int(np.searchsorted(running, share * running[-1])) + 1


def count_reads(trace: Trace, sums: StoredSums) -> RowReads:
    """Rewrite ``trace`` with ``sums`` and count the reads of each row.

    Raises:
        PlanMismatch: the trace holds items that the table of ``sums`` has not.
    """
    return reads_of(rewrite(trace, sums), sums.num_items, sums.num_sums, trace.num_ids)


def sum_reads(trace: Trace, sums: StoredSums | None) -> npt.NDArray[np.int64]:
    """Return how often ``trace`` reads each stored row, int64 ``[R]``; none without sums."""
    if sums is None or not sums.num_sums:
        return np.zeros(0, np.int64)
    rows = rewrite(trace, sums).rows
    return np.bincount(rows[rows >= sums.num_items] - sums.num_items, minlength=sums.num_sums)


def reads_of(bags: RewrittenBags, num_items: int, num_sums: int, rows_before: int) -> RowReads:
    """Count the reads of each row of bags that are rewritten already.

    Args:
        bags: Rewritten bags; rows below ``num_items + num_sums``.
        num_items: Plain rows N.
        num_sums: Stored rows R.
        rows_before: Ids of the bags before rewriting.
    """
    reads = np.bincount(bags.rows, minlength=num_items + num_sums)
    return RowReads(reads[:num_items], reads[num_items:], rows_before)
