"""Lookup: who reads the rows, decided per table in the plan.

Flow: checked bags -> *FusedLookup* (one registered op over the tiers' tensors) or
*StockLookup* (the inner stock collections, on rewritten bags) -> pooled columns.
Shapes: F features, B bags of each, D dimension.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules._torchrec import DATA_TYPES
from grace_torchrec.modules.rewriter import PART_SUFFIX, stored_sets
from grace_torchrec.plans.plan import TablePlan

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

# ids, offsets, weights, stride, positions: what bags_of returns
Bags = tuple[Tensor, Tensor, Tensor | None, int, list[int]]


def refuse_unreadable(label: str, rows: Tensor, shape: tuple[int, int] | None = None) -> None:
    """Refuse a table that no kernel of this version reads.

    Args:
        label: Name of the table, quoted.
        rows: Its rows, as they are now.
        shape: The shape it was planned with, where that may have changed.

    Raises:
        NotSupported: another device, type, layout or shape; names the table and what is read.
    """
    if rows.device.type not in ("cpu", "meta"):
        raise NotSupported(f"table {label} is on {rows.device}: only CPU tables have kernels yet")
    if rows.dtype not in DATA_TYPES:
        raise NotSupported(f"table {label} is {rows.dtype}: float32 and float16 have kernels")
    if not rows.is_contiguous():
        raise NotSupported(f"table {label} is not contiguous; call .contiguous() on it first")
    if shape is not None and tuple(rows.shape) != shape:
        raise NotSupported(
            f"table {label} has shape {tuple(rows.shape)}, it was planned with {shape}; "
            "plan this model again"
        )


class _Lookup:
    """The output features whose table is planned for one way of lookup.

    Attributes:
        chosen: Their numbers, rising.
        dims: Dimension of each.
    """

    way: str

    def __init__(self, plans: Sequence[TablePlan]) -> None:
        table_of = [t for t, plan in enumerate(plans) for _ in plan.spec.features]
        self.chosen = [f for f, t in enumerate(table_of) if plans[t].lookup == self.way]
        self.table_of = [table_of[f] for f in self.chosen]
        self.dims = [plans[t].spec.dim for t in self.table_of]
        self.mean = [plan.spec.pooling == "mean" for plan in plans]


class FusedLookup(_Lookup):
    """One op rewrites, gathers and sums all its features."""

    way = "fused"

    def __call__(
        self, owner: "GraceEmbeddingBagCollection", bags: Bags, guard: Tensor
    ) -> tuple[Any, Any]:
        """Return pooled float32 ``[B, sum of D]`` of the chosen features, and their reads."""
        ids, offsets, weights, stride, positions = bags
        rewriter = owner.rewriter
        tables = range(len(self.mean))
        pooled, reads = torch.ops.grace.pooled_lookup(
            ids, offsets, weights, stride, [positions[f] for f in self.chosen], self.table_of,
            [owner.weight(t) for t in tables],
            [owner.stored(t, "hbm") for t in tables],
            [owner.stored(t, "host") for t in tables],
            self.mean, rewriter.item_codes(), rewriter.hot_rows(), rewriter.num_hbm_sums,
            rewriter.policy, [rewriter.labels[f] for f in self.chosen], guard,
        )  # fmt: skip
        return pooled, reads


class StockLookup(_Lookup):
    """The inner collections look rewritten bags up; what they return is added and averaged."""

    way = "stock"

    def __init__(self, plans: Sequence[TablePlan], names: Sequence[str]) -> None:
        super().__init__(plans)
        # For each feature the (tier, key) pairs of the inner outputs that add up to it.
        self.parts = [
            [(plans[t].placement.originals, names[f])]
            + [(tier, names[f] + PART_SUFFIX[tier]) for tier in stored_sets(plans[t])]
            for f, t in zip(self.chosen, self.table_of, strict=True)
        ]

    def __call__(
        self, owner: "GraceEmbeddingBagCollection", bags: Bags, guard: Tensor
    ) -> tuple[list[Tensor], Any]:
        """Return float32 ``[B, D]`` for each chosen feature, and their reads."""
        stride = bags[3]
        rewritten, bag_lengths, reads = owner.rewriter(*bags, self.chosen, guard)
        looked_up = {
            tier: inner(rewritten).to_dict() for tier, inner in owner.inner_collections().items()
        }
        columns = []
        for place, parts in enumerate(self.parts):
            column = sum(looked_up[tier][key] for tier, key in parts)
            column = column[:stride]  # a batch of no bags was looked up as one empty bag
            if self.mean[self.table_of[place]]:
                column = column / bag_lengths[place].clamp(min=1).unsqueeze(1)
            columns.append(column)
        return columns, reads
