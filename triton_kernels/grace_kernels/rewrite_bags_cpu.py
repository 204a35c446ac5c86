"""The op ``grace::rewrite_bags`` on the CPU: bags over plain rows and stored rows of each memory.

Flow: ops.py registers this -> cpu.py.  Meaning: reference.py, reference_subsets.py.
Shapes: F features, T tables, B bags of each feature (the stride), L ids.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_kernels import cpu
from grace_kernels.op_inputs import bad_id, check_bags, numpy_or_none, packed_codes, subset_tables

PARTS = ("plain", "hbm", "host")  # where a rewritten row lies: one output feature for each


def rewrite_bags_cpu(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    num_rows: Sequence[int],
    item_codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    num_others: int,
    guard: Tensor,
    subset_parts: Sequence[Tensor] | None = None,
    subset_marks: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rewrite every feature into three: plain rows, stored rows in HBM, stored rows in host.

    Arguments and errors as in ``pooled_lookup`` of ops.py; ``num_others`` features without ids follow.
    Stock collections fail on a batch of no bags: it is given as one empty bag of each feature.

    Returns:
        values int64, lengths int64 ``[3 * (F + num_others) * max(B, 1)]`` (feature-major: plain,
        hbm, host of feature 0, then feature 1, ..), weights float32 (empty without weights), bag_lengths int64
        ``[F, B]`` as given, reads int64 ``[F, 2]`` (ids asked for, rows read).
    """
    check_bags(values, offsets, weights, stride, positions)
    subsets = subset_tables(subset_parts, subset_marks, len(item_codes))
    ids, bounds, id_weights = values.numpy(), offsets.numpy(), numpy_or_none(weights)
    parts: list[tuple[Any, Any, Any]] = []
    bag_lengths = np.zeros((len(positions), stride), np.int64)
    reads = np.zeros((len(positions), 2), np.int64)
    for feature, (position, t) in enumerate(zip(positions, table_of, strict=True)):
        bag_offsets = bounds[position * stride : (position + 1) * stride + 1]
        try:
            asked, row_ids, new_offsets, row_weights = cpu.rewrite_counted(
                ids, bag_offsets, id_weights, packed_codes(item_codes[t]), num_rows[t], policy,
                subsets[t],
            )  # fmt: skip
        except cpu.BadId as bad:
            raise bad_id(bad, labels[feature]) from None
        parts += split_by_tier(
            row_ids, new_offsets, row_weights, num_rows[t], num_hbm_sums[t], hot_rows[t].numpy()
        )
        bag_lengths[feature] = np.diff(bag_offsets)
        reads[feature] = asked, row_ids.size
    none = [np.zeros(0, np.int64)]
    lengths = np.zeros(len(PARTS) * (len(positions) + num_others) * max(stride, 1), np.int64)
    given = np.concatenate([part[1] for part in parts] or none)
    lengths[: given.size] = given
    return (
        torch.from_numpy(np.concatenate([part[0] for part in parts] or none)),
        torch.from_numpy(lengths),
        torch.from_numpy(
            np.concatenate([part[2] for part in parts] or [np.zeros(0, np.float32)])
            if weights is not None
            else np.zeros(0, np.float32)
        ),
        torch.from_numpy(bag_lengths),
        torch.from_numpy(reads),
    )


def split_by_tier(
    row_ids: Any, offsets: Any, weights: Any, num_rows: int, num_hbm_sums: int, hot_row: Any
) -> list[tuple[Any, Any, Any]]:
    """Return (row ids inside their own table, lengths, weights) of the three parts."""
    bag_of = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    plain = row_ids < num_rows
    local = np.where(plain, row_ids, row_ids - num_rows)
    tier = np.where(plain, 0, np.where(local < num_hbm_sums, 1, 2))
    local[tier == 2] -= num_hbm_sums
    if hot_row.size:
        hot = np.zeros(plain.size, np.bool_)
        hot[plain] = hot_row[row_ids[plain]] >= 0
        local[hot] = hot_row[row_ids[hot]]
        tier[hot] = 1
    return [
        (
            local[tier == part],
            np.bincount(bag_of[tier == part], minlength=offsets.size - 1),
            None if weights is None else weights[tier == part],
        )
        for part in range(len(PARTS))
    ]
