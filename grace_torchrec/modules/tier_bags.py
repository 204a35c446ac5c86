"""Tier bags: rewritten rows as bags of the tables that hold them, the one checked way there.

Flow: RewrittenRows -> *tier_bags* -> a bag of plain rows, of stored rows in HBM and of stored rows
in host memory for each feature -> sharded collections, table batches, scripted models: none of
these checks a row.  *rows_in_line* makes such rows of plain bags: those of tables planned ``ahead``
stay plain.
Shapes: F features, B bags of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels.ops_rows import check_parts, rewrite_features
from grace_kernels.rewrite_bags_cpu import split_by_tier
from grace_torchrec.errors import OutsideTable
from grace_torchrec.modules.lookup import Bags
from grace_torchrec.modules.rewriter import PART_SUFFIX, Rewriter
from grace_torchrec.modules.rewritten_batch import RewrittenRows

Place = tuple[RewrittenRows, int]


def tier_bags(
    rewriter: Rewriter, places: Sequence[Place], num_sums: Sequence[int]
) -> KeyedJaggedTensor:
    """Return rewritten rows as bags of the three tables of each feature.

    Args:
        rewriter: Knows tables, hot rows and names.
        places: For each of its features, in order, rows and where the feature stands in them.
        num_sums: Sums stored for each table.

    Returns:
        Three bags for each feature (:func:`tier_keys`); a batch of no bags is given as one empty
        bag of each, for stock collections fail on none.

    Raises:
        GraceError: the arrays do not belong together, or a row is outside its table and its sums.
    """
    for rows in {id(rows): rows for rows, _ in places}.values():
        held = [place for other, place in places if other is rows]
        check_parts(rows.rows, rows.offsets, rows.weights, rows.given_lengths, held)
    parts = [
        part
        for feature, (rows, place) in enumerate(places)
        for part in _parts(rewriter, feature, rows, place, num_sums)
    ]
    lengths = np.concatenate([part[1] for part in parts])
    if not lengths.size:
        lengths = np.zeros(len(parts), np.int64)
    weights = None
    if all(rows.weights is not None for rows, _ in places):
        weights = torch.from_numpy(np.concatenate([part[2] for part in parts]))
    return KeyedJaggedTensor(
        keys=tier_keys(rewriter.names),
        values=torch.from_numpy(np.concatenate([part[0] for part in parts])),
        lengths=torch.from_numpy(lengths),
        weights=weights,
    )


def tier_keys(names: Sequence[str]) -> list[str]:
    """Return the keys of rewritten bags: of each feature plain rows, then stored ones by tier."""
    return [name + suffix for name in names for suffix in PART_SUFFIX.values()]


def rows_in_line(
    rewriter: Rewriter, bags: Bags, chosen: Sequence[int], ahead: Sequence[bool]
) -> RewrittenRows:
    """Rewrite some features of plain bags; those of tables planned ``ahead`` become plain rows.

    Args:
        rewriter: Of the tables.
        bags: Checked.
        chosen: Which features.
        ahead: Whether each table is planned ``ahead``.

    Raises:
        OutsideTable: an id is outside its table under RAISE.
    """
    ids, offsets, weights, stride, positions = bags

    def in_line(arrays: list[Tensor]) -> list[Tensor]:
        """Take the arrays of tables planned ahead away."""
        return [a[:0] if skip else a for a, skip in zip(arrays, ahead, strict=True)]

    subset_parts, subset_marks = (part and in_line(part) for part in rewriter.subsets())
    parts = rewrite_features(
        ids, offsets, weights, stride, [positions[f] for f in chosen],
        [rewriter.table_of[f] for f in chosen], rewriter.num_rows,
        in_line(rewriter.item_codes()), rewriter.policy, [rewriter.labels[f] for f in chosen],
        subset_parts, subset_marks,
    )  # fmt: skip
    return RewrittenRows(*parts, rewriter.stamp)


def _parts(
    rewriter: Rewriter, feature: int, given: RewrittenRows, place: int, num_sums: Sequence[int]
) -> list[tuple[Any, Any, Any]]:
    """Return (row ids inside their table, lengths, weights) of the three tables of a feature.

    Raises:
        OutsideTable: a row is outside its table and its sums.
    """
    table = rewriter.table_of[feature]
    num_rows, sums = rewriter.num_rows[table], num_sums[table]
    stride = given.given_lengths.shape[1]
    ends = given.offsets[place * stride : (place + 1) * stride + 1].numpy()
    mine = slice(int(ends[0]), int(ends[-1]))
    rows = given.rows[mine].numpy()
    if rows.size and not 0 <= rows.min() <= rows.max() < num_rows + sums:
        worst = rows.max() if rows.min() >= 0 else rows.min()
        raise OutsideTable(
            f"{rewriter.labels[feature]}: the batch reads row {worst}, there are {num_rows} rows "
            f"and {sums} sums; rewrite the batch again"
        )
    weights = None if given.weights is None else given.weights[mine].numpy()
    hot = rewriter.hot_rows()[table].numpy()
    parts: list[tuple[Any, Any, Any]] = split_by_tier(
        rows, ends - ends[0], weights, num_rows, rewriter.num_hbm_sums[table], hot
    )
    return parts
