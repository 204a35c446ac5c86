"""Plain rows: tables that store nothing beside them, read as the stock collection reads them.

Flow: checked bags of a collection that was left stock -> *PlainRows* -> pooled columns by torch's own
``embedding_bag``, over the memory of fbgemm's table batches.
A call for each feature costs more than one call of our lookup, but each id costs less where rows are
in the caches, so it pays for long bags.  Derived: the limit was measured on one core of a server.
Shapes: F features, B bags of each, L ids, N rows, D dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from grace_kernels.table_rows import TableRows

LONG_BAGS = 64  # ids of a feature, all bags of the batch together, from which on it pays
SUM, MEAN = 0, 1


class PlainRows:
    """Serves float32 tables without sums and hot rows.

    Args:
        tables: Table of each feature.
        mean: MEAN pooling, per feature.
    """

    def __init__(self, tables: Sequence[TableRows], mean: Sequence[bool]) -> None:
        self._rows = [torch.from_numpy(table.rows_ND) for table in tables]
        self._modes = [MEAN if is_mean else SUM for is_mean in mean]

    @classmethod
    def of(cls, tables: Sequence[TableRows], mean: Sequence[bool]) -> "PlainRows | None":
        """Return what serves the tables; None if one of them stores more, or in another type."""
        for table in tables:
            if table.num_sums or table.hot_row_N.size or table.rows_ND.dtype != "float32":
                return None
        return cls(tables, mean)

    def __call__(
        self, ids_L: Tensor, offsets: Tensor, stride: int, positions: Sequence[int]
    ) -> Tensor | None:
        """Return float32 ``[B, sum of D]``.

        Args:
            ids_L: Of all features of the batch, unweighted.
            offsets: int64, bag ``b`` of the feature at position ``p`` is ``p * B + b``.
            stride: Bags B of each feature.
            positions: Of the features to look up, in output order.

        Returns:
            None where it does not pay, or an id is outside its table or padding: our lookup knows
            what to do with those.
        """
        if not stride or ids_L.numel() < LONG_BAGS * len(positions):
            return None
        pooled = []
        for rows_ND, mode, position in zip(self._rows, self._modes, positions, strict=True):
            bounds = offsets[position * stride : (position + 1) * stride + 1]
            first, last = int(bounds[0]), int(bounds[-1])
            ids = ids_L[first:last]
            if last > first:
                low, high = ids.aminmax()
                if int(low) < 0 or int(high) >= rows_ND.shape[0]:
                    return None
            bounds = bounds - first if first else bounds
            bounds = bounds.to(ids.dtype)
            found = torch.embedding_bag(rows_ND, ids, bounds, False, mode, include_last_offset=True)
            pooled.append(found[0])
        return torch.cat(pooled, dim=1)
