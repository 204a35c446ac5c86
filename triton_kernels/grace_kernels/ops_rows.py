"""``grace::pooled_rows``: bags that were rewritten ahead of time -> pooled embeddings.

Flow: *rewrite_features* runs in a loader, ahead of time; the module then calls
``torch.ops.grace.pooled_rows``.  Meaning in reference.py; the CPU implementation in cpu.py.
What arrives was made elsewhere, so every size, offset and row is checked before it is used.
Shapes: F features, T tables, B bags of each feature (the stride), L ids, P rows, D_f dimension.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_kernels import cpu
from grace_kernels.cpu_codes import rewrite_sets
from grace_kernels.errors import OutsideTable, WrongBatch, refusal
from grace_kernels.op_inputs import (
    bad_id,
    check_bags,
    keep_nothing,
    numpy_or_none,
    packed_codes,
    refuse_backward,
    subset_tables,
)
from grace_kernels.table_rows import FeatureRows, TableRows

_LIBRARY = torch.library.Library("grace", "FRAGMENT")
_LIBRARY.define(
    "pooled_rows(Tensor row_ids, Tensor offsets, Tensor? weights, Tensor given_lengths, "
    "int[] positions, int[] table_of, Tensor[] rows, Tensor[] hbm_rows, Tensor[] host_rows, "
    "bool[] mean, Tensor[] hot_rows, int[] num_hbm_sums, str[] labels, Tensor guard) -> Tensor"
)


def rewrite_features(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    num_rows: Sequence[int],
    item_codes: Sequence[Tensor],
    policy: int,
    labels: Sequence[str],
    subset_parts: Sequence[Tensor] | None = None,
    subset_marks: Sequence[Tensor] | None = None,
    set_codes: Sequence[Sequence[Tensor]] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Rewrite every feature; arguments and errors as in ``pooled_lookup`` of ops.py, and more codes.

    Args:
        values: As there, and so the rest.
        offsets: int64.
        weights: float32 ``[L]`` or None.
        stride: Bags B of each feature.
        positions: Which feature of the input each output feature is.
        table_of: Table of each output feature.
        num_rows: Per table: rows N.
        item_codes: Per table the code of each item, or empty.
        policy: RAISE, DROP or ZERO_ROW.
        labels: Per output feature, for messages.
        subset_parts: Per table, or None.
        subset_marks: Per table, or None.
        set_codes: Per table the four arrays of a set code (``cpu_codes.rewrite_sets``), or none of
            them; such a code is only rewritten ahead.

    Returns:
        row_ids int64 ``[P]`` (below N plain, ``N + j`` stored row ``j`` of the feature's table),
        offsets int64 ``[F * B + 1]``, weights float32 ``[P]`` or None, given_lengths int64
        ``[F, B]``, reads int64 ``[F, 2]`` (ids asked for, rows read).
    """
    check_bags(values, offsets, weights, stride, positions)
    subsets = subset_tables(subset_parts, subset_marks, len(item_codes))
    ids, bounds, id_weights = values.numpy(), offsets.numpy(), numpy_or_none(weights)
    num = len(positions)
    row_ids: list[Any] = []
    row_weights: list[Any] = []
    ends = np.zeros(num * stride + 1, np.int64)
    given = np.zeros((num, stride), np.int64)
    reads = np.zeros((num, 2), np.int64)
    for feature, (position, t) in enumerate(zip(positions, table_of, strict=True)):
        bag_offsets = bounds[position * stride : (position + 1) * stride + 1]
        try:
            if set_codes is not None and len(set_codes[t]):
                asked, rows, new_offsets, new_weights = _rewrite_sets(
                    ids, bag_offsets, id_weights, set_codes[t], num_rows[t], policy
                )
            else:
                asked, rows, new_offsets, new_weights = cpu.rewrite_counted(
                    ids, bag_offsets, id_weights, packed_codes(item_codes[t]), num_rows[t], policy,
                    subsets[t],
                )  # fmt: skip
        except cpu.BadId as bad:
            raise bad_id(bad, labels[feature]) from None
        first = feature * stride
        ends[first + 1 : first + stride + 1] = ends[first] + new_offsets[1:]
        given[feature] = np.diff(bag_offsets)
        reads[feature] = asked, rows.size
        row_ids.append(rows)
        if new_weights is not None:
            row_weights.append(new_weights)
    return (
        torch.from_numpy(_joined(row_ids, np.int64)),
        torch.from_numpy(ends),
        None if weights is None else torch.from_numpy(_joined(row_weights, np.float32)),
        torch.from_numpy(given),
        torch.from_numpy(reads),
    )


def _rewrite_sets(
    ids: Any, offsets: Any, weights: Any, code: Sequence[Tensor], num_rows: int, policy: int
) -> Any:
    """Rewrite with a set code, which must be that of the table."""
    num_items = code[0].numel() - 1
    if num_items != num_rows:
        raise ValueError(f"codes are for {num_items} items, the table has {num_rows} rows")
    homes, rows, others_at, others = (part.numpy() for part in code)
    return rewrite_sets(ids, offsets, weights, homes, rows, others_at, others, policy)


def _joined(parts: list[Any], dtype: Any) -> Any:
    """Return the parts in one array; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _pooled_rows_cpu(
    row_ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    given_lengths: Tensor,
    positions: Sequence[int],
    table_of: Sequence[int],
    rows: Sequence[Tensor],
    hbm_rows: Sequence[Tensor],
    host_rows: Sequence[Tensor],
    mean: Sequence[bool],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    labels: Sequence[str],
    guard: Tensor,
) -> Tensor:
    """Gather and sum every feature's rewritten bags.

    Args:
        row_ids: int64 ``[P]`` of all features.
        offsets: int64 ``[F * B + 1]``.
        weights: float32 ``[P]`` or None.
        given_lengths: int64 ``[F, B]``, lengths of the bags before they were rewritten.
        positions: Which rewritten feature each output feature is.
        table_of: Table of each output feature.
        rows: Per table ``[N, D]`` float32 or float16.
        hbm_rows: Per table stored rows in HBM (sums, then hot rows).
        host_rows: Per table stored rows in host memory.
        mean: Per table: MEAN pooling.
        hot_rows: Per table int32 row of ``hbm_rows`` that copies the item, or empty.
        num_hbm_sums: Per table: sums in ``hbm_rows``.
        labels: Per output feature, "table 't', feature 'f'" for messages.
        guard: Result of the freshness check; makes that check run first.

    Returns:
        pooled float32 ``[B, sum of D_f]``.

    Raises:
        ValueError: parts do not fit together, or a row is outside its table and its sums: names
            table, feature, sample, row and number of rows.
    """
    check_parts(row_ids, offsets, weights, given_lengths, positions)
    tables = [
        TableRows(
            rows[t].detach().numpy(), hbm_rows[t].numpy(), host_rows[t].numpy(),
            cpu.EMPTY_I32, hot_rows[t].numpy(), num_hbm_sums[t],
        )
        for t in range(len(rows))
    ]  # fmt: skip
    features = FeatureRows([tables[t] for t in table_of], positions, [mean[t] for t in table_of])
    return pool_checked(features, row_ids, offsets, weights, given_lengths, labels)


def pool_checked(
    features: FeatureRows,
    row_ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    given_lengths: Tensor,
    labels: Sequence[str],
) -> Tensor:
    """Gather and sum rewritten bags that passed ``check_parts``; returns and raises as the op."""
    # Type and device are said: a process may have other defaults.
    pooled = torch.empty(
        given_lengths.shape[1], sum(features.dims), dtype=torch.float32, device=row_ids.device
    )
    try:
        cpu.pool_features(
            features, row_ids.numpy(), offsets.numpy(), numpy_or_none(weights),
            given_lengths.numpy(), pooled.numpy(), num_threads=torch.get_num_threads(),
        )  # fmt: skip
    except cpu.BadRow as bad:
        stride, table = given_lengths.shape[1], features.tables[bad.feature]
        first = features.positions[bad.feature] * stride
        ends = offsets[first : first + stride + 1].numpy()
        sample = int(np.searchsorted(ends, bad.position, side="right")) - 1
        raise refusal(
            OutsideTable,
            f"{labels[bad.feature]}: sample {sample} reads row {bad.row}, there are "
            f"{table.rows_ND.shape[0]} rows and {table.num_sums} sums; rewrite the batch again",
        ) from None
    return pooled


def check_parts(
    row_ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    given_lengths: Tensor,
    positions: Sequence[int],
) -> None:
    """Refuse a rewritten batch that would make the kernel read outside its arrays.

    Raises:
        WrongBatch: types, sizes or offsets do not belong together, or a feature is not there.
    """
    wanted = ((row_ids, torch.int64, 1), (offsets, torch.int64, 1), (given_lengths, torch.int64, 2))
    fits = all(part.dtype == kind and part.dim() == dims for part, kind, dims in wanted)
    fits = fits and offsets.numel() == given_lengths.numel() + 1
    fits = fits and all(0 <= position < given_lengths.shape[0] for position in positions)
    if fits and weights is not None:
        fits = weights.dtype == torch.float32 and weights.shape == row_ids.shape
    parts = [row_ids, offsets, given_lengths, *([] if weights is None else [weights])]
    if not fits or not all(part.is_contiguous() for part in parts):
        raise refusal(
            WrongBatch,
            "rewritten batch: rows, offsets, weights and lengths are not vectors that belong "
            "together; rewrite the batch again",
        )
    bounds = offsets.numpy()
    falls = cpu.first_misfit(bounds, bounds[:0]) >= 0
    if falls or bounds[0] != 0 or bounds[-1] != row_ids.numel():
        raise refusal(
            WrongBatch,
            f"rewritten batch: offsets do not rise from 0 to its {row_ids.numel()} rows; "
            "rewrite the batch again",
        )


def _pooled_rows_fake(
    row_ids: Tensor, offsets: Tensor, weights: Tensor | None, given_lengths: Tensor,
    positions: Any, table_of: Any, rows: Sequence[Tensor], *rest: Any,
) -> Tensor:  # fmt: skip
    """Shape and type of ``pooled_rows``."""
    width = sum(rows[t].shape[1] for t in table_of)
    return rows[0].new_empty(given_lengths.shape[1], width, dtype=torch.float32)


_LIBRARY.impl("pooled_rows", _pooled_rows_cpu, "CPU")
torch.library.register_fake("grace::pooled_rows", _pooled_rows_fake, lib=_LIBRARY)
torch.library.register_autograd(
    "grace::pooled_rows", refuse_backward, setup_context=keep_nothing, lib=_LIBRARY
)
