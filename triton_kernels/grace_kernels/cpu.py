"""CPU twins of the ops, in numba: rewriting, gather + sum, and both in one pass.

Flow: ops.py registers these for the CPU; meaning in reference.py; numba cores in _lookup.py
and _pool_rows.py.
Shapes: L ids, B bags, B1 = B + 1, N items, R stored rows, D embedding dimension.
"""

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.np.ufunc.parallel import threading_layer

from grace_kernels._lookup import first_misfit, lookup_parallel, lookup_range, rewrite_all
from grace_kernels._pool_rows import pool_rows_parallel, pool_rows_range
from grace_kernels.reference import RAISE

__all__ = [
    "BadId",
    "BadRow",
    "TableRows",
    "first_misfit",
    "pooled_lookup",
    "pooled_rows",
    "rewrite_clusters",
    "rewrite_counted",
    "warm_up",
]

# Below so many values waking another thread costs more than it brings (derived here, 2 cores).
LEAST_VALUES_TO_SHARE = 1 << 19
Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
EMPTY_I32 = np.zeros(0, np.int32)
EMPTY_F32 = np.zeros(0, np.float32)
EMPTY_I64 = np.zeros(0, np.int64)


def rewrite_clusters(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    item_code_N: Ids,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Numba twin of :func:`grace_kernels.reference.rewrite_clusters_reference`.

    Args:
        ids_L: int32 or int64 ``[L]``, raw ids in any order; -1 is padding.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        item_code_N: Packed cluster codes, -1 where the item is in no cluster.

    Returns:
        rows int64, offsets int64 ``[B + 1]``, weights float32 or None; equal to the reference
        row by row.

    Raises:
        BadId: an id is outside ``0 .. N - 1``.
    """
    _, rows, offsets, weights = rewrite_counted(
        ids_L, offsets_B1, weights_L, item_code_N, item_code_N.size, RAISE
    )
    return rows, offsets, weights


def rewrite_counted(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    item_code_N: Ids,
    num_rows: int,
    policy: int,
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Rewrite as :func:`rewrite_clusters` does, under any policy; count the ids asked for.

    Args:
        ids_L: int32 or int64; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        item_code_N: Packed codes, or an empty array where the table has no sums.
        num_rows: Rows N of the table.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        ids asked for (padding and dropped ids left out), then as :func:`rewrite_clusters`.

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    num_ids = int(offsets_B1[-1] - offsets_B1[0])
    weighted = weights_L is not None
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    rows = np.empty(num_ids + 1, np.int64)
    origin = np.empty(num_ids + 1, np.int64) if weighted else EMPTY_I64
    offsets, asked, bad = rewrite_all(
        ids_L, offsets_B1, bits, item_code_N, num_rows, policy, rows, origin
    )
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]))
    end = int(offsets[-1])
    weights = None if weights_L is None else weights_L[origin[:end]]
    return int(asked), rows[:end], offsets, weights


_forked: list[bool] = []  # not empty in a child process
_parallel_lock = threading.Lock()


def _one_at_a_time() -> contextlib.AbstractContextManager[Any]:
    """Serialise parallel lookups where numba's threads serve one caller at a time.

    Without OpenMP or TBB numba falls back to a pool that ends the process when two threads of
    the caller use it at once.
    """
    try:
        safe = threading_layer() != "workqueue"
    except ValueError:  # not started yet: the first parallel call decides, alone
        safe = False
    return contextlib.nullcontext() if safe else _parallel_lock


# GNU OpenMP ends a forked child that uses threads its parent had started: children use one.
os.register_at_fork(after_in_child=lambda: _forked.append(True))


class BadId(ValueError):
    """An id is outside its table: ``position`` in the ids, ``id`` itself."""

    def __init__(self, position: int, id_: int) -> None:
        super().__init__(f"id {id_} at position {position} is outside the table")
        self.position = position
        self.id = id_


class BadRow(ValueError):
    """A rewritten bag holds a row that its table has not: ``position`` in the rows, ``row`` itself."""

    def __init__(self, position: int, row: int) -> None:
        super().__init__(f"row {row} at position {position} is outside the table and its sums")
        self.position = position
        self.row = row


@dataclass(frozen=True)
class TableRows:
    """Where the rows of one table lie, as numpy arrays over the tensors' own memory.

    Attributes:
        rows_ND: Original rows, float32 or float16.
        hbm_RD: Stored rows of the fast tier: sums first, then hot rows.
        host_RD: Stored rows of the host tier: the sums that follow.
        item_code_N: Packed cluster codes, or empty.
        hot_row_N: int32 row of ``hbm_RD`` that holds a copy of the item, -1 if none; or empty.
        num_hbm_sums: Sums in ``hbm_RD``.
    """

    rows_ND: npt.NDArray[Any]
    hbm_RD: npt.NDArray[Any]
    host_RD: npt.NDArray[Any]
    item_code_N: Ids
    hot_row_N: npt.NDArray[np.int32]
    num_hbm_sums: int

    @property
    def layout(self) -> tuple[int, int, int, int, int]:
        """Addresses of the three, sums in the first tier, bytes of a row: ``Layout`` of _merge.py."""
        row_bytes = self.rows_ND.shape[1] * self.rows_ND.itemsize
        starts = (part.ctypes.data for part in (self.rows_ND, self.hbm_RD, self.host_RD))
        return (*starts, self.num_hbm_sums, row_bytes)

    @property
    def num_sums(self) -> int:
        """Stored sums in both tiers (hot rows are no sums)."""
        return self.num_hbm_sums + int(self.host_RD.shape[0])


def pooled_lookup(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    table: TableRows,
    out_BD: npt.NDArray[np.float32],
    *,
    mean: bool,
    policy: int,
    num_threads: int,
) -> tuple[int, int]:
    """Rewrite, gather and sum the bags of one feature into ``out_BD``.

    Args:
        ids_L: int32 or int64; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        table: The rows.
        out_BD: float32 ``[B, D]``, rows contiguous in D; overwritten.
        mean: Divide by the length of the bag as given.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        num_threads: Threads the bags are divided over.

    Returns:
        (ids asked for, rows read): ids without padding and dropped ones.

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    weights = weights_L if weights_L is not None else EMPTY_F32
    num_rows, dim = table.rows_ND.shape
    assert out_BD.dtype == np.float32  # the kernel writes through an address
    assert out_BD.size == 0 or out_BD.strides[1] == 4
    args = (
        ids_L, offsets_B1, bits, weights, table.item_code_N, table.hot_row_N, num_rows,
        table.layout, dim, table.rows_ND.itemsize == 2, mean, policy, out_BD.ctypes.data,
        out_BD.strides[0],
    )  # fmt: skip
    bags = offsets_B1.size - 1
    if _alone(offsets_B1, dim, num_threads):
        asked, read, bad = lookup_range(0, bags, *args)
    else:
        with _one_at_a_time():
            asked, read, bad = lookup_parallel(num_threads, *args)
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]))
    return int(asked), int(read)


def warm_up(num_threads: int) -> None:
    """Compile the lookup now, or read it from the disk cache, and not in the first request.

    The first time on a machine this takes some ten seconds.

    Args:
        num_threads: Threads that lookups will use.
    """
    bags, dim = 2 * num_threads, LEAST_VALUES_TO_SHARE
    rows = np.zeros((1, dim), np.float32)
    table = TableRows(rows, rows[:0], rows[:0], EMPTY_I32, EMPTY_I32, 0)
    ids, offsets = np.zeros(bags, np.int64), np.arange(bags + 1)
    out = np.empty((bags, dim), np.float32)
    for threads in {1, num_threads}:
        pooled_lookup(ids, offsets, None, table, out, mean=False, policy=RAISE, num_threads=threads)


def pooled_rows(
    row_ids_P: npt.NDArray[np.int64],
    offsets_B1: npt.NDArray[np.int64],
    weights_P: npt.NDArray[np.float32] | None,
    given_lengths_B: npt.NDArray[np.int64],
    table: TableRows,
    out_BD: npt.NDArray[np.float32],
    *,
    mean: bool,
    num_threads: int,
) -> None:
    """Gather and sum the rewritten bags of one feature into ``out_BD``.

    Args:
        row_ids_P: int64: below N a plain row (or its hot copy), ``N + j`` stored row ``j``.
        offsets_B1: int64 ``[B + 1]``, never falling and inside ``row_ids_P``; may start above 0.
        weights_P: float32 parallel to ``row_ids_P``, or None.
        given_lengths_B: int64, lengths of the bags before they were rewritten.
        table: The rows.
        out_BD: float32 ``[B, D]``, rows contiguous in D; overwritten.
        mean: Divide by the length of the bag as given.
        num_threads: Threads the bags are divided over.

    Raises:
        BadRow: a row is outside ``0 .. N + R - 1``; it was not read.
    """
    num_rows, dim = table.rows_ND.shape
    assert out_BD.dtype == np.float32  # the kernel writes through an address
    assert out_BD.size == 0 or out_BD.strides[1] == 4
    given_B1 = np.zeros(offsets_B1.size, np.int64)
    np.cumsum(given_lengths_B, out=given_B1[1:])
    args = (
        row_ids_P, offsets_B1, given_B1, weights_P if weights_P is not None else EMPTY_F32,
        table.hot_row_N, num_rows, table.num_sums, table.layout, dim, table.rows_ND.itemsize == 2,
        mean, out_BD.ctypes.data, out_BD.strides[0],
    )  # fmt: skip
    if _alone(offsets_B1, dim, num_threads):
        bad = pool_rows_range(0, offsets_B1.size - 1, *args)
    else:
        with _one_at_a_time():
            bad = pool_rows_parallel(num_threads, *args)
    if bad >= 0:
        raise BadRow(int(bad), int(row_ids_P[bad]))


def _alone(offsets_B1: npt.NDArray[np.int64], dim: int, num_threads: int) -> bool:
    """Tell whether one thread serves all bags: threads cost more than they bring to small ones."""
    small = int(offsets_B1[-1] - offsets_B1[0]) * dim < LEAST_VALUES_TO_SHARE
    return num_threads == 1 or offsets_B1.size - 1 < 2 * num_threads or small or bool(_forked)
