"""Members: which stored rows hold an item.

Flow: sets of stored rows -> *Members* -> a delta finds the sums that it touches.
Shapes: R stored rows, S items of all sets, N largest item + 1, K items asked for, T rows found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Members:
    """The sets of a table of stored rows, and the rows of every item.

    Attributes:
        indptr_R1: int64, sets.
        items_S: Their items.
        row_indptr_N1: int64: the rows that hold item ``i`` are
            ``rows_S[row_indptr_N1[i]:row_indptr_N1[i + 1]]``.
        rows_S: int64.
    """

    indptr_R1: Tensor
    items_S: Tensor
    row_indptr_N1: Tensor
    rows_S: Tensor

    @classmethod
    def of(cls, indptr_R1: Tensor, items_S: Tensor) -> "Members":
        """Turn sets round."""
        items = items_S.long()
        row_of = torch.repeat_interleave(torch.arange(indptr_R1.numel() - 1), indptr_R1.diff())
        counts = torch.bincount(items)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(indptr_R1, items_S, ends, row_of[torch.argsort(items, stable=True)])

    def touched(self, items_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows that hold one of ``items_K``, rising, and their sets.

        Returns:
            int64 rows ``[T]``, int64 indptr ``[T + 1]``, int64 items.
        """
        known = items_K[items_K < self.row_indptr_N1.numel() - 1]
        rows = torch.unique(_joined(self.rows_S, self.row_indptr_N1, known))
        lengths = self.indptr_R1[rows + 1] - self.indptr_R1[rows]
        indptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return rows, indptr, _joined(self.items_S, self.indptr_R1, rows).long()


def _joined(values: Tensor, indptr: Tensor, places_K: Tensor) -> Tensor:
    """Return the values of several places of a CSR, one after the other."""
    begin, end = indptr[places_K], indptr[places_K + 1]
    lengths = end - begin
    first = torch.repeat_interleave(begin - (lengths.cumsum(0) - lengths), lengths)
    return values[first + torch.arange(int(lengths.sum()))]
