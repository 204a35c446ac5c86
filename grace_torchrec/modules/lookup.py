"""Lookup: who reads the rows, decided per table in the plan.

Flow: checked bags -> *FusedLookup* (one registered op over the tiers' tensors) or
*StockLookup* (the inner stock collections, on rewritten bags) -> pooled columns.
A RewrittenBatch -> *RewrittenLookup* for all but the stock ones.  *AheadLookup* serves the tables
planned ``ahead`` where either may come: plain bags, which read plain rows, or traced graphs.
Shapes: F features, B bags of each, D dimension.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import grace_kernels.ops_rows  # noqa: F401  # registers grace::pooled_rows
from grace_torchrec.errors import NotSupported
from grace_torchrec.modules._torchrec import DATA_TYPES
from grace_torchrec.modules.rewriter import PART_SUFFIX, rewritten_features
from grace_torchrec.modules.rewritten_batch import RewrittenBatch
from grace_torchrec.plans.held import stored_sets
from grace_torchrec.plans.plan import TablePlan

if TYPE_CHECKING:
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

# ids, offsets, weights, stride, positions: what bags_of returns
Bags = tuple[Tensor, Tensor, Tensor | None, int, list[int]]
# originals, stored rows in hbm and host, MEAN or not, hot rows, sums in hbm: one entry per table
Tables = tuple[
    Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], list[bool], list[Tensor], list[int]
]

KEEP_ROWS = "keep the rows in one of these on the CPU, or restore_ the stock collection"
logger = logging.getLogger(__name__)

torch.fx.wrap("look_up_ahead")  # one node that takes both kinds of batch


def refuse_unreadable(
    label: str, rows: Tensor, shape: tuple[int, int] | None = None, todo: str = KEEP_ROWS
) -> None:
    """Refuse a table that no kernel of this version reads.

    Args:
        label: Name of the table, quoted.
        rows: Its rows, as they are now.
        shape: The shape it was planned with, where that may have changed.
        todo: What to do about a type or device.

    Raises:
        NotSupported: another device, type, layout or shape; names the table and what is read.
    """
    if rows.device.type not in ("cpu", "meta"):
        raise NotSupported(
            f"table {label} is on {rows.device}: only CPU tables have kernels yet; {todo}"
        )
    if rows.dtype not in DATA_TYPES:
        raise NotSupported(
            f"table {label} is {rows.dtype}: float32 and float16 have kernels; {todo}"
        )
    if not rows.is_contiguous():
        raise NotSupported(f"table {label} is not contiguous; call .contiguous() on it first")
    if shape is not None and tuple(rows.shape) != shape:
        raise NotSupported(
            f"table {label} has shape {tuple(rows.shape)}, it was planned with {shape}; "
            "plan this model again"
        )


def look_up_ahead(
    features: KeyedJaggedTensor | RewrittenBatch,
    bags: Bags | None,
    module: tuple[str, str],
    chosen: list[int],
    places: list[int],
    table_of: list[int],
    tables: Tables,
    policy: int,
    labels: list[str],
    guard: Tensor,
    plain_batches: Tensor,
) -> tuple[Tensor, Tensor]:
    """Look up rewritten bags by their rows; plain bags read plain rows, told once and counted.

    Args:
        features: The batch.
        bags: The same, checked; may be None for a RewrittenBatch.
        module: Path and stamp of the swapped module.
        chosen: Numbers of the output features.
        places: Where each stands in the RewrittenBatch.
        table_of: Table of each.
        tables: Where rows lie.
        policy: RAISE, DROP or ZERO_ROW.
        labels: Names of the features for messages.
        guard: Result of the freshness check.
        plain_batches: int64 ``[1]``, counts plain batches.

    Returns:
        Pooled float32 ``[B, sum of D]``, and reads int64 ``[F, 2]``.
    """
    rows, hbm, host, mean, hot, num_hbm_sums = tables
    if isinstance(features, RewrittenBatch):
        given = features.rows_for(*module)
        pooled = torch.ops.grace.pooled_rows(
            given.rows, given.offsets, given.weights, given.given_lengths, places, table_of,
            rows, hbm, host, mean, hot, num_hbm_sums, labels, guard,
        )  # fmt: skip
        return pooled, given.reads[places]
    assert bags is not None  # only a RewrittenBatch comes without them
    tell_plain_batch(module[0], labels, plain_batches)
    ids, offsets, weights, stride, positions = bags
    no_codes = [torch.empty(0, dtype=torch.int32)] * len(rows)
    pooled, reads = torch.ops.grace.pooled_lookup(
        ids, offsets, weights, stride, [positions[f] for f in chosen], table_of, rows, hbm, host,
        mean, no_codes, hot, num_hbm_sums, policy, labels, guard,
    )  # fmt: skip
    return pooled, reads


def tell_plain_batch(path: str, labels: Sequence[str], plain_batches: Tensor) -> None:
    """Count a plain batch for tables planned ``ahead``; the first is told.

    Args:
        path: Path of the module.
        labels: Names of the features planned ``ahead``.
        plain_batches: int64 ``[1]``, the count.
    """
    if not int(plain_batches):
        logger.warning(
            "module %r: plain bags came for tables planned 'ahead' (%s): they read plain rows, "
            "equal and without the gain; pass grace_torchrec.rewrite(batches, model), or plan "
            "with rewriting='in_line'",
            path, "; ".join(labels),
        )  # fmt: skip
    plain_batches += 1


class Lookup:
    """The output features whose table is planned for one way of lookup.

    Attributes:
        chosen: Their numbers, rising.
        dims: Dimension of each.
    """

    ways: tuple[str, ...]

    def __init__(self, plans: Sequence[TablePlan]) -> None:
        table_of = [t for t, plan in enumerate(plans) for _ in plan.spec.features]
        self.chosen = [f for f, t in enumerate(table_of) if plans[t].lookup in self.ways]
        self.table_of = [table_of[f] for f in self.chosen]
        self.dims = [plans[t].spec.dim for t in self.table_of]
        self.mean = [plan.spec.pooling == "mean" for plan in plans]


class FusedLookup(Lookup):
    """One op rewrites, gathers and sums all its features."""

    ways = ("fused",)

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
            rewriter.policy, [rewriter.labels[f] for f in self.chosen], guard, *rewriter.subsets(),
        )  # fmt: skip
        return pooled, reads


class AheadLookup(Lookup):
    """Tables planned ``ahead``: rows of a RewrittenBatch, plain rows for plain bags."""

    ways: tuple[str, ...] = ("ahead",)

    def __init__(self, plans: Sequence[TablePlan]) -> None:
        super().__init__(plans)
        held = rewritten_features(plans)
        self.places = [held.index(f) for f in self.chosen]

    def __call__(
        self,
        owner: "GraceEmbeddingBagCollection",
        features: KeyedJaggedTensor | RewrittenBatch,
        bags: Bags | None,
        guard: Tensor,
    ) -> tuple[Any, Any]:
        """Return pooled float32 ``[B, sum of D]`` of the chosen features, and their reads."""
        rewriter = owner.rewriter
        tables = range(len(self.mean))
        held = (
            [owner.weight(t) for t in tables],
            [owner.stored(t, "hbm") for t in tables],
            [owner.stored(t, "host") for t in tables],
            self.mean, rewriter.hot_rows(), rewriter.num_hbm_sums,
        )  # fmt: skip
        pooled, reads = look_up_ahead(
            features, bags, (owner.path, rewriter.stamp), self.chosen, self.places, self.table_of,
            held, rewriter.policy, [rewriter.labels[f] for f in self.chosen], guard,
            owner.plain_batches,
        )  # fmt: skip
        return pooled, reads


class RewrittenLookup(AheadLookup):
    """All features that a RewrittenBatch holds rows for, those of ``fused`` tables too."""

    ways = ("fused", "ahead")


class StockLookup(Lookup):
    """The inner collections look rewritten bags up; what they return is added and averaged."""

    ways: tuple[str, ...] = ("stock",)

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
        return self.columns(looked_up, bag_lengths, stride), reads

    def columns(
        self, looked_up: Mapping[str, Mapping[str, Tensor]], bag_lengths: Tensor, stride: int
    ) -> list[Tensor]:
        """Add up what the collections returned, and average where the table pools by MEAN.

        Args:
            looked_up: Tier -> key -> pooled rows.
            bag_lengths: Lengths of the original bags ``[F, B]``.
            stride: Bags B of each feature.

        Returns:
            float32 ``[B, D]`` for each chosen feature.
        """
        columns: list[Tensor] = []
        for place, parts in enumerate(self.parts):
            column = functools.reduce(torch.add, [looked_up[tier][key] for tier, key in parts])
            column = column[:stride]  # a batch of no bags was looked up as one empty bag
            if self.mean[self.table_of[place]]:
                column = column / bag_lengths[place].clamp(min=1).unsqueeze(1)
            columns.append(column)
        return columns
