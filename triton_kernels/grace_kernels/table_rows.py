"""Where the rows of tables lie, for the CPU kernels: addresses over the tensors' own memory.

Flow: ops, or a module once, make *TableRows* and *FeatureRows*; cpu.py hands their columns to the
numba cores.
Shapes: N items, R stored rows, D embedding dimension, F features.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels import plain_path, threads
from grace_kernels._entry import (
    pool,
    pool_shared,
    serve_i32,
    serve_i64,
    serve_shared_i32,
    serve_shared_i64,
)
from grace_kernels._lookup import (
    IS_MEAN,
    NUM_COLUMNS,
    OUT_BYTES,
    POSITION,
    ROW_BYTES,
    SUM_AT,
    SUMS_PREFETCH,
    TABLE_COLUMNS,
)
from grace_kernels._places import NO_SUBSETS
from grace_kernels._prefetch import MIXES
from grace_kernels._rewrite import RARE, rare_or_none
from grace_kernels._sum_rows import FLOAT16, FLOAT32, HEAD_BYTES, INT8, sum_function
from grace_kernels.packed_codes import Codes, PackedCodes, pack_codes
from grace_kernels.reference import RAISE
from grace_kernels.row_layout import check_layout
from grace_kernels.subset_tables import SubsetTables, check_subsets

# Doors by (several threads, bytes of an id).
SERVE = {
    (False, 8): serve_i64, (False, 4): serve_i32,
    (True, 8): serve_shared_i64, (True, 4): serve_shared_i32,
}  # fmt: skip
POOL = {False: pool, True: pool_shared}
ALONE = contextlib.nullcontext()
KINDS = {"float32": FLOAT32, "float16": FLOAT16, "uint8": INT8}


@dataclass(frozen=True, eq=False)
class TableRows:
    """Where the rows of one table lie, as numpy arrays over the tensors' own memory.

    Attributes:
        rows_ND: Original rows: float32, float16, or uint8 ``[N, D + 4]`` (fbgemm's int8 rows:
            fp16 scale, fp16 bias, D values).
        hbm_RD: Stored rows in HBM: sums first, then hot rows; of the same type.
        host_RD: Stored rows in host memory: the sums that follow.
        codes: Cluster codes, one per item or packed; or empty.
        hot_row_N: int32 row of ``hbm_RD`` that holds a copy of the item, -1 if none; or empty.
        num_hbm_sums: Sums in ``hbm_RD``.
        subsets: What splits the masks of clusters that store some of their subsets; None where
            they store every one.
    """

    rows_ND: npt.NDArray[Any]
    hbm_RD: npt.NDArray[Any]
    host_RD: npt.NDArray[Any]
    codes: Codes
    hot_row_N: npt.NDArray[np.int32]
    num_hbm_sums: int
    subsets: SubsetTables | None = None

    @cached_property
    def packed(self) -> PackedCodes:
        """The codes, packed.

        Raises:
            ValueError: they are codes of another table.
        """
        packed = self.codes if isinstance(self.codes, PackedCodes) else pack_codes(self.codes)
        if packed.words_W.size and packed.num_items != self.rows_ND.shape[0]:
            raise ValueError(
                f"codes are for {packed.num_items} items, the table has {self.rows_ND.shape[0]} rows"
            )
        return packed

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The twelve numbers of ``Table`` in _places.py.

        Raises:
            ValueError: the codes or the subset tables are of another table, or rows lie otherwise.
        """
        check_layout(self.rows_ND, self.hbm_RD, self.host_RD, self.hot_row_N)
        row_bytes = self.rows_ND.shape[1] * self.rows_ND.itemsize
        starts = (part.ctypes.data for part in (self.rows_ND, self.hbm_RD, self.host_RD))
        hot_at = self.hot_row_N.ctypes.data if self.hot_row_N.size else 0
        num_rows = self.rows_ND.shape[0]
        tables = NO_SUBSETS
        if self.subsets is not None:
            check_subsets(self.packed, self.subsets, self.num_sums)
            tables = self.subsets.addresses
        sums = (self.num_hbm_sums, row_bytes, num_rows)
        return (*starts, *sums, *self.packed.addresses, hot_at, *tables)

    @property
    def kind(self) -> int:
        """Type of the rows: FLOAT32, FLOAT16 or INT8."""
        return KINDS[self.rows_ND.dtype.name]

    @property
    def dim(self) -> int:
        """Embedding dimension D."""
        return int(self.rows_ND.shape[1]) - HEAD_BYTES[self.kind]

    @property
    def num_sums(self) -> int:
        """Stored sums in both tiers (hot rows are no sums)."""
        return self.num_hbm_sums + int(self.host_RD.shape[0])


class FeatureRows:
    """Features that are looked up together; made once, it serves every batch.

    Args:
        tables: Table of each feature.
        positions: Which feature of the batch each is.
        mean: MEAN pooling, per feature.
        mixes: Prefetch rows while ids are rewritten; by default where that is faster
            (_prefetch.py). The results are the same.

    Attributes:
        tables: As given; keeps the arrays alive.
        positions: As given.
        mean: As given.
        mixes: As given.
        dims: Dimension of each.
        width: Their sum.
        num_sums_F: int64, stored sums of each table.
    """

    def __init__(
        self,
        tables: Sequence[TableRows],
        positions: Sequence[int],
        mean: Sequence[bool],
        mixes: bool = MIXES,
    ) -> None:
        self.tables = list(tables)
        self.positions = list(positions)
        self.mean = list(mean)
        self.mixes = mixes
        self.dims = [table.dim for table in tables]
        self.width = sum(self.dims)
        self.num_sums_F = np.array([table.num_sums for table in tables], np.int64)
        self._plain = np.zeros((len(self.tables), NUM_COLUMNS), np.int64)
        out_bytes = 0
        for row, table, position, is_mean in zip(self._plain, tables, positions, mean, strict=True):
            row[:TABLE_COLUMNS] = table.columns
            row[POSITION], row[IS_MEAN], row[OUT_BYTES] = position, is_mean, out_bytes
            out_bytes += 4 * table.dim
        self._row_bytes = int(self._plain[:, ROW_BYTES].max(initial=0))
        self._rare = rare_or_none(False, [table.columns for table in self.tables])
        self._by_use: dict[tuple[bool, bool], npt.NDArray[np.int64]] = {}

    def columns(self, weighted: bool) -> npt.NDArray[np.int64]:
        """Return int64 ``[F, NUM_COLUMNS]`` for a lookup of raw ids."""
        return self._columns(weighted, False)

    def rare(self, weighted: bool) -> int | None:
        """Return what _rewrite.py must know beside merging clusters: RARE, or None for nothing."""
        return RARE if weighted else self._rare

    def pooling_columns(self, weighted: bool) -> npt.NDArray[np.int64]:
        """Return int64 ``[F, NUM_COLUMNS]`` for rewritten bags."""
        return self._columns(weighted, True)

    def serve(
        self,
        ids_at: int,
        id_bytes: int,
        num_ids: int,
        offsets_at: int,
        num_offsets: int,
        lengths_at: int,
        length_bytes: int,
        stride: int,
        policy: int,
        out_at: int,
        num_threads: int = 1,
    ) -> npt.NDArray[np.int64] | None:
        """Check and look up unweighted bags, all by address.

        Args:
            ids_at: Address of the ids of all features.
            id_bytes: 4 or 8.
            num_ids: How many ids.
            offsets_at: Address of int64 offsets, or 0: the lengths say where bags end.
            num_offsets: How many offsets.
            lengths_at: Address of lengths that the offsets must agree with, or 0.
            length_bytes: 4 or 8.
            stride: Bags of each feature.
            policy: RAISE, DROP or ZERO_ROW of reference.py.
            out_at: Address of ``[stride, width]`` float32, contiguous; overwritten.
            num_threads: Threads that may be used.

        Returns:
            int64 ``[F, 2]`` (ids asked for, rows read), or None: something is wrong with the bags,
            whose output does not count, or this CPU takes the plain path.
        """
        if plain_path.is_taken():
            return None
        reads = np.zeros((len(self.tables), 2), np.int64)
        share = self._is_shared(num_threads, num_ids, stride)
        with threads.one_at_a_time() if share else ALONE:
            served = SERVE[share, id_bytes](
                num_threads, ids_at, num_ids, offsets_at, num_offsets, lengths_at, length_bytes,
                self.columns(False), stride, policy, out_at, 4 * self.width, reads,
                self._rare,
            )  # fmt: skip
        return reads if served else None

    def pool(
        self,
        rows_at: int,
        num_rows: int,
        offsets_at: int,
        given_at: int,
        num_bags: int,
        stride: int,
        out_at: int,
        num_threads: int = 1,
    ) -> bool:
        """Check and sum rewritten bags without weights, all by address.

        Args:
            rows_at: Address of the int64 rows of all rewritten features.
            num_rows: How many rows.
            offsets_at: Address of int64 offsets, one more than bags.
            given_at: Address of the int64 lengths of the bags before they were rewritten.
            num_bags: Bags of all rewritten features.
            stride: Bags of each feature.
            out_at: Address of ``[stride, width]`` float32, contiguous; overwritten.
            num_threads: Threads that may be used.

        Returns:
            False: something is wrong with the bags, whose output does not count, or this CPU
            takes the plain path.
        """
        if plain_path.is_taken():
            return False
        share = self._is_shared(num_threads, num_rows, stride)
        with threads.one_at_a_time() if share else ALONE:
            return bool(
                POOL[share](
                    num_threads, rows_at, num_rows, offsets_at, given_at, num_bags,
                    self.pooling_columns(False), self.num_sums_F, stride, out_at, 4 * self.width,
                )
            )  # fmt: skip

    def warm_up(self, num_threads: int, rewritten: bool) -> None:
        """Compile the doors for int64 ids that batches will go through, by a batch of no ids.

        Args:
            num_threads: Threads that batches will use.
            rewritten: Batches arrive rewritten, too.
        """
        ends = np.zeros(len(self.tables) + 1, np.int64)
        out = np.empty((1, self.width), np.float32)
        reads = np.zeros((len(self.tables), 2), np.int64)
        at, out_at, size = ends.ctypes.data, out.ctypes.data, len(self.tables)
        for share in (False, True) if threads.may_share(num_threads) else (False,):
            count = num_threads if share else 1
            with threads.one_at_a_time() if share else ALONE:
                SERVE[share, 8](
                    count, at, 0, at, size + 1, 0, 8, self.columns(False), 1, RAISE, out_at,
                    4 * self.width, reads, self._rare,
                )  # fmt: skip
                if rewritten:
                    POOL[share](
                        count, at, 0, at, at, size, self.pooling_columns(False), self.num_sums_F, 1,
                        out_at, 4 * self.width,
                    )  # fmt: skip

    def _is_shared(self, num_threads: int, num_ids: int, stride: int) -> bool:
        """Tell whether several threads serve a batch, by the bytes of its ids if all were ours."""
        return threads.is_shared(num_threads, stride * len(self.tables), num_ids * self._row_bytes)

    def bytes_asked(self, offsets: npt.NDArray[np.int64], stride: int) -> int:
        """Return the bytes of all rows that a batch asks for."""
        starts = self._plain[:, POSITION] * stride
        return int(((offsets[starts + stride] - offsets[starts]) * self._plain[:, ROW_BYTES]).sum())

    def _columns(self, weighted: bool, rewritten: bool) -> npt.NDArray[np.int64]:
        """Return the columns with the summing functions that a use needs, compiled when first used."""
        found = self._by_use.get((weighted, rewritten))
        if found is None:
            found = self._plain.copy()
            for row, table in zip(found, self.tables, strict=True):
                # Rows of a table without sums are known as soon as its ids are.
                prefetches = rewritten or not table.packed.words_W.size or not self.mixes
                row[SUM_AT] = sum_function(table.dim, table.kind, weighted, prefetches)
                row[SUMS_PREFETCH] = prefetches
            self._by_use[weighted, rewritten] = found
        return found
