"""Sharded rewriter: bags, or rows of bags, become what the sharded collections of a module read.

Flow: features -> *ShardedRewriter* -> input distribution and lookup of both tiers.  Rewriting comes
before the rows are sent to their ranks: the whole bag is on this rank, and less is sent.  A
module of its own without parameters, so that pipelines run it while the batch before is looked up
(``pipeline_postproc=True``).
Shapes: F features, B bags of each.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels.ops_rows import check_parts, rewrite_features
from grace_kernels.rewrite_bags_cpu import split_by_tier
from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.lookup import Bags, tell_plain_batch
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows
from grace_torchrec.modules.sharded_rows import row_keys

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection


class ShardedRewriter(nn.Module):
    """Turns a batch into bags over plain and stored rows, for all features of its module.

    Args:
        owner: The swapped module; it is referred to, not held as a child.
    """

    def __init__(self, owner: "GraceEmbeddingBagCollection") -> None:
        super().__init__()
        self._owner = [owner]

    def forward(
        self, features: KeyedJaggedTensor | RewrittenBatch
    ) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
        """Rewrite a batch; every rank does so for its own.

        Args:
            features: Raw ids, or a batch that was rewritten ahead.

        Returns:
            Bags with the keys of :func:`~grace_torchrec.modules.sharded_rows.row_keys`; lengths of
            the original bags ``[F, B]``; reads ``[F, 2]``.

        Raises:
            StaleSums: the sums were not built since the last load.
            GraceError: the batch is malformed.
            PlanMismatch: it was rewritten for another plan.
            ValueError: an id, or a rewritten row, is outside its table.
        """
        owner = self._owner[0]
        owner.sharded.require_fresh()
        everything = list(range(len(owner.dims)))
        if isinstance(features, RewrittenBatch):
            held = owner.rewriter.rewritten
            given = [(features.rows_for(owner.path, owner.rewriter.stamp), held)]
            others = [f for f in everything if f not in held]  # planned for the stock lookup
            if others:
                given.append((_rewrite(owner, _bags(owner, features.bags), others), others))
            return _row_bags(owner, given)
        bags = _bags(owner, features)
        if owner.has_ahead:
            ahead = [
                label
                for label, table in zip(owner.rewriter.labels, owner.rewriter.table_of, strict=True)
                if owner.table_plans[table].lookup == "ahead"
            ]
            tell_plain_batch(owner.path, ahead, owner.plain_batches)
            return _row_bags(owner, [(_rewrite(owner, bags, everything), everything)])
        guard = torch.empty(0, dtype=torch.int8, device=bags[0].device)
        rows, lengths, reads = owner.rewriter(*bags, everything, guard)
        return rows, lengths, reads


def _bags(owner: "GraceEmbeddingBagCollection", features: KeyedJaggedTensor) -> Bags:
    """Return a checked batch."""
    return bags_of(features, owner.input_names, owner.is_weighted(), owner.strict)


def _rewrite(owner: "GraceEmbeddingBagCollection", bags: Bags, chosen: list[int]) -> RewrittenRows:
    """Rewrite some features of plain bags; those of tables planned ahead become plain rows."""
    rewriter = owner.rewriter
    ids, offsets, weights, stride, positions = bags
    ahead = [plan.lookup == "ahead" for plan in owner.table_plans]

    def in_line(arrays: list[Tensor]) -> list[Tensor]:
        """Take the arrays of tables planned ahead away."""
        return [a[:0] if skip else a for a, skip in zip(arrays, ahead, strict=True)]

    subset_parts, subset_marks = (part and in_line(part) for part in rewriter.subsets())
    codes = in_line(rewriter.item_codes())
    parts = rewrite_features(
        ids, offsets, weights, stride, [positions[f] for f in chosen],
        [rewriter.table_of[f] for f in chosen], rewriter.num_rows, codes,
        rewriter.policy, [rewriter.labels[f] for f in chosen], subset_parts, subset_marks,
    )  # fmt: skip
    return RewrittenRows(*parts, rewriter.stamp)


def _row_bags(
    owner: "GraceEmbeddingBagCollection", given: list[tuple[RewrittenRows, list[int]]]
) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
    """Return rows of bags as bags of the three tables of each feature; as ``forward`` returns.

    Args:
        owner: The module.
        given: Rows, and which features they are for; together all features.
    """
    of_feature = {f: (rows, place) for rows, chosen in given for place, f in enumerate(chosen)}
    for rows, chosen in given:
        check_parts(rows.rows, rows.offsets, rows.weights, rows.given_lengths, range(len(chosen)))
    in_order = [of_feature[f] for f in sorted(of_feature)]
    parts = [part for f, place in enumerate(in_order) for part in _parts(owner, f, *place)]
    stride = in_order[0][0].given_lengths.shape[1]
    lengths = np.concatenate([part[1] for part in parts])
    if not stride:  # sharded collections fail on a batch of no bags: one empty bag each
        lengths = np.zeros(len(parts), np.int64)
    weights = None
    if owner.is_weighted():
        weights = torch.from_numpy(np.concatenate([part[2] for part in parts]))
        weights = weights.to(owner.rewriter.weight_dtype)
    bags = KeyedJaggedTensor(
        keys=row_keys(owner.output_names),
        values=torch.from_numpy(np.concatenate([part[0] for part in parts])),
        lengths=torch.from_numpy(lengths),
        weights=weights,
    )
    given_lengths = torch.stack([rows.given_lengths[place] for rows, place in in_order])
    return bags, given_lengths, torch.stack([rows.reads[place] for rows, place in in_order])


def _parts(
    owner: "GraceEmbeddingBagCollection", feature: int, given: RewrittenRows, place: int
) -> list[tuple[Any, Any, Any]]:
    """Return (row ids inside their table, lengths, weights) of the three tables of a feature.

    Raises:
        ValueError: a row is outside its table and its sums.
    """
    rewriter = owner.rewriter
    table = rewriter.table_of[feature]
    num_rows, sums = rewriter.num_rows[table], owner.table_plans[table].placement.num_sums
    stride = given.given_lengths.shape[1]
    ends = given.offsets[place * stride : (place + 1) * stride + 1].numpy()
    rows = given.rows[int(ends[0]) : int(ends[-1])].numpy()
    if rows.size and not 0 <= rows.min() <= rows.max() < num_rows + sums:
        worst = rows.max() if rows.min() >= 0 else rows.min()
        raise ValueError(
            f"{rewriter.labels[feature]}: the batch reads row {worst}, there are {num_rows} rows "
            f"and {sums} sums; rewrite the batch again"
        )
    weights = None
    if given.weights is not None:
        weights = given.weights[int(ends[0]) : int(ends[-1])].numpy()
    hot = rewriter.hot_rows()[table].numpy()
    parts: list[tuple[Any, Any, Any]] = split_by_tier(
        rows, ends - ends[0], weights, num_rows, rewriter.num_hbm_sums[table], hot
    )
    return parts
