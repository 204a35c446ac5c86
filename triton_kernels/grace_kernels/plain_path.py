"""Plain path: what CPUs without AVX2 do, because the fast code of _sum_rows.py would be slower.

Flow: cpu.py asks *is_taken* and hands whole batches to *look_up* or *pool* instead of the numba
cores of _lookup.py and _pool_rows.py.  Ids are rewritten by the scalar loop of _split_ids.py,
rows are summed by torch's ``embedding_bag``: plain rows, stored rows of each memory, added.
Derived: measured with AVX2 switched off, our sums reach 0.6 to 0.7 of the speed of
``embedding_bag``; half rows would need conversions that such CPUs lack.
Shapes: B bags of each feature (the stride), P rows read, N items, D dimension, F features.
"""

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from grace_kernels._llvm import target_has
from grace_kernels._places import table_of_row_ids
from grace_kernels._rewrite import rare_or_none, rewrite_all
from grace_kernels._split_ids import GROUP

if TYPE_CHECKING:
    from grace_kernels.table_rows import FeatureRows, TableRows

logger = logging.getLogger(__name__)
HAS_AVX2 = target_has("avx2")
NO_WEIGHTS = np.zeros(0, np.int32)
NO_BAD_ID = -1, 0


def is_taken() -> bool:
    """Tell whether this machine takes the plain path; say so once."""
    if not HAS_AVX2:
        _say_so()
    return not HAS_AVX2


@functools.cache
def _say_so() -> None:
    """Warn of the slower path."""
    logger.warning(
        "this CPU has no AVX2: rows are summed by torch.nn.functional.embedding_bag, "
        "equal and slower; serve on a machine with AVX2"
    )


def look_up(
    features: "FeatureRows",
    ids_L: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    stride: int,
    out_BD: npt.NDArray[np.float32],
    policy: int,
    reads: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Do what ``look_up_features`` of cpu.py does.

    Args:
        features: The features and where their rows lie.
        ids_L: int32 or int64, of all features.
        offsets: int64, ``position * B + b`` is bag ``b`` of the feature at that position.
        weights_L: float32 parallel to ``ids_L``, or None.
        stride: Bags B of each feature.
        out_BD: float32 ``[B, sum of D]``; overwritten.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        reads: int64 ``[F, 2]``, ids asked for and rows read are added.

    Returns:
        (-1 or the position of a bad id, its feature).
    """
    column = 0
    for feature, (table, position) in enumerate(
        zip(features.tables, features.positions, strict=True)
    ):
        given = offsets[position * stride : (position + 1) * stride + 1]
        num_ids = int(given[-1] - given[0])
        rows = np.empty(num_ids + GROUP, np.int64)
        origin = np.empty(0 if weights_L is None else num_ids + GROUP, np.int64)
        bits = NO_WEIGHTS if weights_L is None else weights_L.view(np.int32)
        places = table_of_row_ids(table.rows_ND.shape[0], table.packed, table.subsets)
        rare = rare_or_none(weights_L is not None, [places])
        ends, asked, bad = rewrite_all(ids_L, given, bits, places, policy, rows, origin, rare)
        if bad >= 0:
            return int(bad), feature
        rows = rows[: ends[-1]]
        row_weights = None if weights_L is None else weights_L[origin[: ends[-1]]]
        out = out_BD[:, column : column + table.dim]
        out[:] = sum_rows(table, rows, ends, row_weights)
        if features.mean[feature]:
            out /= np.maximum(np.diff(given), 1)[:, None].astype(np.float32)
        reads[feature] += int(asked), rows.size
        column += table.dim
    return NO_BAD_ID


def pool(
    features: "FeatureRows",
    row_ids_P: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    weights_P: npt.NDArray[np.float32] | None,
    given_lengths_FB: npt.NDArray[np.int64],
    out_BD: npt.NDArray[np.float32],
) -> tuple[int, int]:
    """Do what ``pool_features`` of cpu.py does, with its arguments.

    Returns:
        (-1 or the position of a row that its table has not, its feature).
    """
    stride, column = given_lengths_FB.shape[1], 0
    for feature, (table, position) in enumerate(
        zip(features.tables, features.positions, strict=True)
    ):
        bounds = offsets[position * stride : (position + 1) * stride + 1]
        part = slice(bounds[0], bounds[-1])
        rows = row_ids_P[part]
        outside = (rows < 0) | (rows >= table.rows_ND.shape[0] + table.num_sums)
        if outside.any():
            return int(bounds[0] + np.argmax(outside)), feature
        weights = None if weights_P is None else weights_P[part]
        out = out_BD[:, column : column + table.dim]
        out[:] = sum_rows(table, rows, bounds - bounds[0], weights)
        if features.mean[feature]:
            lengths = np.maximum(given_lengths_FB[position], 1)
            out /= lengths[:, None].astype(np.float32)
        column += table.dim
    return NO_BAD_ID


def sum_rows(
    table: "TableRows",
    rows_P: npt.NDArray[np.int64],
    offsets_B1: npt.NDArray[np.int64],
    weights_P: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.float32]:
    """Sum rows of a table bag by bag, each memory by one ``embedding_bag``.

    Args:
        table: Where they lie.
        rows_P: Below N a plain row (or its hot copy), ``N + j`` stored row ``j``.
        offsets_B1: Bags of rows.
        weights_P: float32, or None.

    Returns:
        float32 ``[B, D]``.
    """
    num_rows, num_hbm_sums = table.rows_ND.shape[0], table.num_hbm_sums
    plain = rows_P < num_rows
    local = np.where(plain, rows_P, rows_P - num_rows)
    tier = np.where(plain, 0, np.where(local < num_hbm_sums, 1, 2))
    local[tier == 2] -= num_hbm_sums
    if table.hot_row_N.size:
        hot = np.full(rows_P.size, -1, np.int64)
        hot[plain] = table.hot_row_N[rows_P[plain]]
        local, tier = np.where(hot >= 0, hot, local), np.where(hot >= 0, 1, tier)
    total = torch.zeros(offsets_B1.size - 1, table.dim, dtype=torch.float32, device="cpu")
    for number, memory in enumerate((table.rows_ND, table.hbm_RD, table.host_RD)):
        here = tier == number
        if here.any():
            before = np.concatenate([[0], np.cumsum(here)])[offsets_B1[:-1]]
            weights = None if weights_P is None else torch.from_numpy(weights_P[here])
            total += _sum_memory(memory, local[here], before, weights)
    summed: npt.NDArray[np.float32] = total.numpy()
    return summed


@torch.no_grad()
def _sum_memory(
    memory_MW: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    begins_B: npt.NDArray[np.int64],
    weights: Tensor | None,
) -> Tensor:
    """Return the sums float32 ``[B, D]`` of rows of one array; half and int8 rows as float32."""
    ids = torch.from_numpy(rows)
    if memory_MW.dtype != np.float32:
        memory_MW = _as_float(memory_MW[rows])
        ids = torch.arange(rows.size, device="cpu")
    values, begins = torch.from_numpy(memory_MW), torch.from_numpy(begins_B)
    return embedding_bag(ids, values, begins, mode="sum", per_sample_weights=weights)


def _as_float(rows_PW: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return rows as float32; uint8 rows are fbgemm's: fp16 scale, fp16 bias, then values."""
    if rows_PW.dtype != np.uint8:
        return rows_PW.astype(np.float32)
    head = rows_PW[:, :4].copy().view(np.float16).astype(np.float32)
    rows: npt.NDArray[np.float32] = rows_PW[:, 4:] * head[:, :1] + head[:, 1:]
    return rows
