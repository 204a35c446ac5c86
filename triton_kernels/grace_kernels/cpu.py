"""CPU twins of the ops, in numba: rewriting, gather + sum, and both in one pass.

Flow: ops.py and ops_rows.py register these for the CPU; meaning in reference.py; numba cores in
_rewrite.py, _lookup.py and _pool_rows.py; CPUs without AVX2 take plain_path.py.  One file, though a long
one: all three choose alike between that path, one thread and several, and raise alike.
Shapes: L ids, B bags of each feature (the stride), B1 = B + 1, F features, N items, R stored
rows, D embedding dimension.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from grace_kernels import plain_path, threads
from grace_kernels._lookup import first_misfit, lookup_parallel, lookup_span
from grace_kernels._places import table_of_row_ids
from grace_kernels._pool_rows import pool_parallel, pool_span
from grace_kernels._rewrite import rare_or_none, rewrite_all
from grace_kernels._split_ids import GROUP
from grace_kernels.bad_rows import BadId, BadRow
from grace_kernels.packed_codes import Codes, Ids, PackedCodes, pack_codes
from grace_kernels.reference import RAISE
from grace_kernels.subset_tables import SubsetTables, check_subsets
from grace_kernels.table_rows import FeatureRows, TableRows

__all__ = [
    "BadId",
    "BadRow",
    "FeatureRows",
    "TableRows",
    "first_misfit",
    "look_up_features",
    "pool_features",
    "pooled_lookup",
    "pooled_rows",
    "rewrite_clusters",
    "rewrite_counted",
    "warm_up",
]

EMPTY_I32 = np.zeros(0, np.int32)
EMPTY_F32 = np.zeros(0, np.float32)
EMPTY_I64 = np.zeros(0, np.int64)


def rewrite_clusters(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    codes: Codes,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Numba twin of :func:`grace_kernels.reference.rewrite_clusters_reference`.

    Args:
        ids_L: int32 or int64 ``[L]``, raw ids in any order; -1 is padding.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        codes: Cluster codes, one per item (-1 in no cluster), or packed: an array is packed in
            every call.

    Returns:
        rows int64, offsets int64 ``[B + 1]``, weights float32 or None; equal to the reference
        row by row.

    Raises:
        BadId: an id is outside ``0 .. N - 1``.
    """
    num_items = codes.num_items if isinstance(codes, PackedCodes) else codes.size
    _, rows, offsets, weights = rewrite_counted(
        ids_L, offsets_B1, weights_L, codes, num_items, RAISE
    )
    return rows, offsets, weights


def rewrite_counted(
    ids_L: Ids,
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    codes: Codes,
    num_rows: int,
    policy: int,
    subsets: SubsetTables | None = None,
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Rewrite as :func:`rewrite_clusters` does, under any policy; count the ids asked for.

    Args:
        ids_L: int32 or int64; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        codes: As above; an empty array where the table has no sums.
        num_rows: Rows N of the table.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        subsets: Where clusters store some of their subsets, what splits their masks
            (meaning: :func:`grace_kernels.reference_subsets.rewrite_subsets_reference`).

    Returns:
        ids asked for (padding and dropped ids left out), then as :func:`rewrite_clusters`.

    Raises:
        BadId: an id is outside the table under RAISE.
        ValueError: the codes are of a table of another size.
    """
    ids_L = cast(Ids, np.ascontiguousarray(ids_L))
    offsets_B1 = np.ascontiguousarray(offsets_B1)
    packed = codes if isinstance(codes, PackedCodes) else pack_codes(codes)
    if packed.words_W.size and packed.num_items != num_rows:
        raise ValueError(f"codes are for {packed.num_items} items, the table has {num_rows} rows")
    if subsets is not None:
        check_subsets(packed, subsets, subsets.num_stored)
    num_ids = int(offsets_B1[-1] - offsets_B1[0])
    weighted = weights_L is not None
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    rows = np.empty(num_ids + GROUP, np.int64)
    origin = np.empty(num_ids + GROUP if weighted else 0, np.int64)
    table = table_of_row_ids(num_rows, packed, subsets)
    rare = rare_or_none(weighted, [table])
    offsets, asked, bad = rewrite_all(ids_L, offsets_B1, bits, table, policy, rows, origin, rare)
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]), offsets_B1, num_rows)
    end = int(offsets[-1])
    weights = None if weights_L is None else weights_L[origin[:end]]
    return int(asked), rows[:end], offsets, weights


def look_up_features(
    features: FeatureRows,
    ids_L: Ids,
    offsets: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    stride: int,
    out_BD: npt.NDArray[np.float32],
    *,
    policy: int,
    num_threads: int,
) -> npt.NDArray[np.int64]:
    """Rewrite, gather and sum the bags of all features, side by side in ``out_BD``.

    Args:
        features: The features and where their rows lie.
        ids_L: int32 or int64, of all features.
        offsets: int64, ``position * B + b`` is bag ``b`` of the feature at that position.
        weights_L: float32 parallel to ``ids_L``, or None.
        stride: Bags B of each feature.
        out_BD: float32 ``[B, sum of D]``, rows contiguous; overwritten.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        num_threads: Threads the bags are divided over.

    Returns:
        int64 ``[F, 2]``: ids asked for (padding and dropped ones left out), rows read.

    Raises:
        BadId: an id is outside its table under RAISE.
    """
    _check_out(out_BD)
    ids_L, offsets = cast(Ids, np.ascontiguousarray(ids_L)), np.ascontiguousarray(offsets)
    weights_L = None if weights_L is None else np.ascontiguousarray(weights_L)
    reads = np.zeros((len(features.tables), 2), np.int64)
    if plain_path.is_taken():
        bad, feature = plain_path.look_up(
            features, ids_L, offsets, weights_L, stride, out_BD, policy, reads
        )
    else:
        args = (
            ids_L, offsets, EMPTY_F32 if weights_L is None else weights_L,
            features.columns(weights_L is not None), stride, policy, out_BD.ctypes.data,
            out_BD.strides[0], reads, features.rare(weights_L is not None),
        )  # fmt: skip
        if _is_shared(features, offsets, stride, num_threads):
            with threads.one_at_a_time():
                bad, feature = lookup_parallel(num_threads, *args)
        else:
            bad, feature = lookup_span(0, len(features.tables) * stride, *args)
    if bad >= 0:
        first = features.positions[feature] * stride
        num_rows = features.tables[feature].rows_ND.shape[0]
        bag_offsets = offsets[first : first + stride + 1]
        raise BadId(int(bad), int(ids_L[bad]), bag_offsets, num_rows, int(feature))
    return reads


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
    """Look up one feature; arguments as in :func:`look_up_features`, ``mean`` for MEAN pooling.

    Returns:
        (ids asked for, rows read).

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    asked, read = look_up_features(
        FeatureRows([table], [0], [mean]), ids_L, offsets_B1, weights_L, offsets_B1.size - 1,
        out_BD, policy=policy, num_threads=num_threads,
    )[0].tolist()  # fmt: skip
    return asked, read


def pool_features(
    features: FeatureRows,
    row_ids_P: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    weights_P: npt.NDArray[np.float32] | None,
    given_lengths_FB: npt.NDArray[np.int64],
    out_BD: npt.NDArray[np.float32],
    *,
    num_threads: int,
) -> None:
    """Gather and sum rewritten bags of all features, side by side in ``out_BD``.

    Args:
        features: The features and where their rows lie.
        row_ids_P: int64: below N a plain row (or its hot copy), ``N + j`` stored row ``j``.
        offsets: int64, ``position * B + b`` is bag ``b`` of the feature at that position; never
            falling and inside ``row_ids_P``.
        weights_P: float32 parallel to ``row_ids_P``, or None.
        given_lengths_FB: int64, lengths of the bags before they were rewritten, by position.
        out_BD: float32 ``[B, sum of D]``, rows contiguous; overwritten.
        num_threads: Threads the bags are divided over.

    Raises:
        BadRow: a row is outside ``0 .. N + R - 1``; it was not read.
    """
    _check_out(out_BD)
    if plain_path.is_taken():
        bad, feature = plain_path.pool(
            features, row_ids_P, offsets, weights_P, given_lengths_FB, out_BD
        )
    else:
        stride = given_lengths_FB.shape[1]
        given = np.zeros(given_lengths_FB.size + 1, np.int64)
        np.cumsum(given_lengths_FB.ravel(), out=given[1:])
        args = (
            np.ascontiguousarray(row_ids_P), np.ascontiguousarray(offsets), given,
        EMPTY_F32 if weights_P is None else np.ascontiguousarray(weights_P),
            features.pooling_columns(weights_P is not None), features.num_sums_F, stride,
            out_BD.ctypes.data, out_BD.strides[0],
        )  # fmt: skip
        if _is_shared(features, offsets, stride, num_threads):
            with threads.one_at_a_time():
                bad, feature = pool_parallel(num_threads, *args)
        else:
            bad, feature = pool_span(0, len(features.tables) * stride, *args)
    if bad >= 0:
        raise BadRow(int(bad), int(row_ids_P[bad]), int(feature))


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
    """Sum the rewritten bags of one feature; arguments as in :func:`pool_features`."""
    pool_features(
        FeatureRows([table], [0], [mean]), row_ids_P, offsets_B1, weights_P,
        given_lengths_B[None], out_BD, num_threads=num_threads,
    )  # fmt: skip


def warm_up(
    num_threads: int,
    features: Sequence[FeatureRows] = (),
    weighted: bool = False,
    ahead: bool = False,
) -> None:
    """Compile lookups of int64 ids now, or read them from the disk cache, not in the first request.

    Args:
        num_threads: Threads that lookups will use.
        features: What will be looked up: the sums of their dimensions and types are compiled.
        weighted: Bags carry weights.
        ahead: Rewriting by itself, and lookups of rewritten bags, too.
    """
    if plain_path.is_taken():
        return
    row = np.zeros((1, 1), np.float32)
    table = TableRows(row, row[:0], row[:0], EMPTY_I32, EMPTY_I32, 0)
    one = FeatureRows([table], [0], [False])
    ids, offsets, out = EMPTY_I64, np.zeros(2, np.int64), np.empty((1, 1), np.float32)
    args = (ids, offsets, EMPTY_F32, one.columns(False), 1, RAISE, out.ctypes.data, 4)
    rare = rare_or_none(weighted, [t.columns for rows in features for t in rows.tables])
    lookup_span(0, 1, *args, np.zeros((1, 2), np.int64), rare)
    one.warm_up(num_threads, ahead)
    for rows in features:
        if ahead:
            rows.pooling_columns(weighted)
        else:
            rows.columns(weighted)
    if ahead:
        rewrite_counted(ids, offsets, None, EMPTY_I32, 1, RAISE)
        pool_features(one, ids, offsets, None, np.zeros((1, 1), np.int64), out, num_threads=1)


def _check_out(out_BD: npt.NDArray[np.float32]) -> None:
    """The kernels write through an address."""
    assert out_BD.dtype == np.float32
    assert out_BD.size == 0 or out_BD.strides[1] == 4


def _is_shared(
    features: FeatureRows, offsets: npt.NDArray[np.int64], stride: int, num_threads: int
) -> bool:
    """Tell whether several threads serve all bags."""
    num_bags, num_bytes = stride * len(features.tables), features.bytes_asked(offsets, stride)
    return threads.is_shared(num_threads, num_bags, num_bytes)
