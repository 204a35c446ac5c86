"""Sharded rewriter: bags, or rows of bags, become what the sharded collections of a module read.

Flow: features -> *ShardedRewriter* -> input distribution and lookup of both tiers.  Rewriting comes
before the rows are sent to their ranks: the whole bag is on this rank, and less is sent.  A
module of its own without parameters, so that pipelines run it while the batch before is looked up
(``pipeline_postproc=True``).
Shapes: F features, B bags of each.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_torchrec.modules.bags import bags_of
from grace_torchrec.modules.lookup import Bags, tell_plain_batch
from grace_torchrec.modules.rewritten_batch import RewrittenBatch, RewrittenRows
from grace_torchrec.modules.tier_bags import rows_in_line, tier_bags

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
            Bags with the keys of :func:`~grace_torchrec.modules.tier_bags.tier_keys`; lengths of
            the original bags ``[F, B]``; reads ``[F, 2]``.

        Raises:
            StaleSums: the sums were not built since the last load.
            GraceError: the batch is malformed.
            PlanMismatch: it was rewritten for another plan.
            OutsideTable: an id, or a rewritten row, is outside its table.
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
    ahead = [plan.lookup == "ahead" for plan in owner.table_plans]
    return rows_in_line(owner.rewriter, bags, chosen, ahead)


def _row_bags(
    owner: "GraceEmbeddingBagCollection", given: list[tuple[RewrittenRows, list[int]]]
) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
    """Return rows of bags as bags of the three tables of each feature; as ``forward`` returns.

    Args:
        owner: The module.
        given: Rows, and which features they are for; together all features.

    Raises:
        OutsideTable: a row is outside its table and its sums.
    """
    of_feature = {f: (rows, place) for rows, chosen in given for place, f in enumerate(chosen)}
    in_order = [of_feature[f] for f in sorted(of_feature)]
    num_sums = [plan.placement.num_sums for plan in owner.table_plans]
    bags = tier_bags(owner.rewriter, in_order, num_sums)
    if owner.is_weighted():
        bags = KeyedJaggedTensor(
            keys=bags.keys(), values=bags.values(), lengths=bags.lengths(),
            weights=bags.weights().to(owner.rewriter.weight_dtype),
        )  # fmt: skip
    given_lengths = torch.stack([rows.given_lengths[place] for rows, place in in_order])
    return bags, given_lengths, torch.stack([rows.reads[place] for rows, place in in_order])
