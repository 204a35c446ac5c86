"""Masters: the float rows of grouped items, which deltas form sums from.

Flow: convert keeps them -> a delta changes some -> sums that hold those are formed anew.
A packed row is not the row it was packed from, and a sum must be formed from float rows; so those
of the items that are in a sum are kept, in files that are mapped into memory. Those have no name:
nothing is left of them, however the process ends.
Shapes: N rows of a table, G grouped items, D dimension, K rows at hand.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.table_spec import TableSpec

COPIED_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class MasterRows:
    """The float rows of one table's grouped items.

    Attributes:
        items_G: int64, rising.
        rows_GD: float32 or float16, over mapped memory.
    """

    items_G: Tensor
    rows_GD: Tensor

    def places(self, items_K: Tensor) -> tuple[Tensor, Tensor]:
        """Return where items stand among the grouped ones, and which of them are grouped at all."""
        if not self.items_G.numel():
            return torch.zeros_like(items_K), torch.zeros_like(items_K, dtype=torch.bool)
        places = torch.searchsorted(self.items_G, items_K).clamp(max=self.items_G.numel() - 1)
        return places, self.items_G[places] == items_K


class Masters:
    """The float rows of every table's grouped items.

    Args:
        tables: Table key -> its rows.
    """

    def __init__(self, tables: Mapping[str, MasterRows]) -> None:
        self.tables = dict(tables)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows and of the numbers of their items."""
        return sum(t.items_G.nbytes + t.rows_GD.nbytes for t in self.tables.values())

    @classmethod
    def of(cls, grouped: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> "Masters":
        """Copy the rows of grouped items into files of their own.

        Args:
            grouped: Table key -> int64 items in a sum, rising.
            weights: Table key -> ``[N, D]`` float rows.

        Raises:
            GraceError: there is no room for the files.
        """
        try:
            return cls(
                {
                    key: MasterRows(items, _copied(items, weights[key]))
                    for key, items in grouped.items()
                }
            )
        except OSError as error:
            raise GraceError(
                f"convert: float rows of grouped items cannot be kept: {error}; make room in the "
                "folder for temporary files (TMPDIR), or convert with deltas=False"
            ) from error


def grouped_items(sets: Mapping[str, tuple[int, Tensor, Tensor]], table: int) -> Tensor:
    """Return the items of a table that are in a sum, int64, rising.

    Args:
        sets: Name of a table of stored rows -> number of its table, indptr and items of its sets.
        table: Number of the table.
    """
    found = [np.zeros(0, np.int64)]
    for of_table, indptr, items in sets.values():
        if of_table == table:
            in_sum = np.repeat(np.diff(indptr.numpy()) > 1, np.diff(indptr.numpy()))
            found.append(items.numpy()[in_sum].astype(np.int64))
    return torch.from_numpy(np.unique(np.concatenate(found)))


def fits_table(items_G: Tensor, rows_GD: Tensor, spec: TableSpec) -> bool:
    """Tell whether these can be rows of a table's grouped items: rising items inside it."""
    kind = torch.float16 if spec.dtype == "fp16" else torch.float32
    return (
        items_G.dtype == torch.int64
        and items_G.dim() == 1
        and rows_GD.dtype == kind
        and tuple(rows_GD.shape) == (items_G.numel(), spec.dim)
        and bool((items_G.diff() > 0).all())
        and (not items_G.numel() or bool(items_G[0] >= 0 and items_G[-1] < spec.num_rows))
    )


def _copied(items_G: Tensor, rows_ND: Tensor) -> Tensor:
    """Copy rows into a file of no name, and return it mapped into memory."""
    shape = (items_G.numel(), rows_ND.shape[1])
    if not items_G.numel():
        return rows_ND.new_empty(shape)
    dtype = np.float16 if rows_ND.dtype == torch.float16 else np.float32
    with tempfile.TemporaryFile(prefix="grace-masters-") as file:
        # a full disk is an error here and a dead process once mapped
        os.posix_fallocate(file.fileno(), 0, shape[0] * shape[1] * np.dtype(dtype).itemsize)
        mapped = torch.from_numpy(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
    for first in range(0, shape[0], COPIED_ROWS):
        some = slice(first, first + COPIED_ROWS)
        mapped[some] = rows_ND.detach()[items_G[some]]
    return mapped
