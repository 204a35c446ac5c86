"""Rewriter: the arrays that turn ids into rows, and the bags a stock lookup reads.

Flow: bags -> *Rewriter* -> inner collections (lookup ``stock``); the fused lookup reads the
same arrays.  A module of its own, so that sharders and pipelines find it as one.
Shapes: F features, B bags of each, N items, R stored rows.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels import ops
from grace_kernels.reference import BAD_ID_POLICIES
from grace_torchrec.artifact import fingerprint
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import TablePlan

PART_SUFFIX = {part: "" if part == "plain" else f"__{part}" for part in ops.PARTS}


class Rewriter(nn.Module):
    """Holds codes and hot rows of every table as non-persistent buffers.

    Args:
        plans: One plan for each table, in the order of the collection.
        names: A unique name for each output feature (``feature@table`` where features repeat).
        bad_ids: What an id outside its table does: ``raise``, ``drop`` or ``zero_row``.

    Raises:
        GraceError: ``bad_ids`` is unknown.
    """

    def __init__(self, plans: Sequence[TablePlan], names: Sequence[str], bad_ids: str) -> None:
        super().__init__()
        if bad_ids not in BAD_ID_POLICIES:
            raise GraceError(f"bad_ids must be one of {[*BAD_ID_POLICIES]}, got {bad_ids!r}")
        self.policy = BAD_ID_POLICIES[bad_ids]
        self.num_rows = [plan.spec.num_rows for plan in plans]
        self.num_hbm_sums = [plan.placement.num_hbm_sums for plan in plans]
        self.names = list(names)
        self.table_of = [t for t, plan in enumerate(plans) for _ in plan.spec.features]
        self.labels = [
            f"table {plan.spec.name!r}, feature {feature!r}"
            for plan in plans
            for feature in plan.spec.features
        ]
        self.rewritten = rewritten_features(plans)
        self.is_weighted = any(plan.spec.is_weighted for plan in plans)
        # Stock tables of half rows take half weights; a collection of both types is not weighted.
        all_half = all(plan.spec.dtype == "fp16" for plan in plans)
        self.weight_dtype = torch.float16 if all_half else torch.float32
        for t, plan in enumerate(plans):
            self._hold(f"item_code_{t}", item_code(plan))
            self._hold(f"hot_row_{t}", hot_rows(plan))
        self._array_names = list(self._buffers)

    def arrays(self) -> list[Tensor]:
        """Return codes and hot rows of every table; a plain dictionary, for each forward asks."""
        buffers: Any = self._buffers
        return [buffers[name] for name in self._array_names]

    def item_codes(self) -> list[Tensor]:
        """Return the packed cluster codes of every table (empty without sums)."""
        return [getattr(self, f"item_code_{t}") for t in range(len(self.num_rows))]

    def hot_rows(self) -> list[Tensor]:
        """Return the rows of the fast tier that copy an item, for every table (or empty)."""
        return [getattr(self, f"hot_row_{t}") for t in range(len(self.num_rows))]

    @cached_property
    def stamp(self) -> str:
        """Short hash of all that the rows of a RewrittenBatch depend on: codes, rows, policy."""
        chosen = [(self.names[f], self.labels[f], self.table_of[f]) for f in self.rewritten]
        codes = [code.numpy() for code in self.item_codes()]
        return fingerprint(repr((chosen, self.num_rows, self.policy, self.is_weighted)), *codes)

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        stride: int,
        positions: list[int],
        chosen: list[int],
        guard: Tensor,
    ) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
        """Rewrite the features ``chosen`` for a lookup by stock collections.

        Args:
            ids: ``[L]``.
            offsets: int64.
            weights: float32 ``[L]`` or None.
            stride: Bags B of each feature.
            positions: Where each feature stands in the batch.
            chosen: Numbers of output features.
            guard: Result of the freshness check.

        Returns:
            bags over plain and stored rows of every feature (empty where not chosen; one
            empty bag each for a batch of none), original bag lengths ``[F, B]``, reads ``[F, 2]``.
        """
        # The inner collections ask for all their features: those looked up elsewhere are empty.
        others = [f for f in range(len(self.names)) if f not in chosen]
        values, lengths, row_weights, bag_lengths, reads = torch.ops.grace.rewrite_bags(
            ids, offsets, weights, stride, [positions[f] for f in chosen],
            [self.table_of[f] for f in chosen],
            self.num_rows, self.item_codes(), self.hot_rows(), self.num_hbm_sums, self.policy,
            [self.labels[f] for f in chosen], len(others), guard,
        )  # fmt: skip
        bags = KeyedJaggedTensor(
            keys=[
                self.names[f] + suffix
                for f in (*chosen, *others)
                for suffix in PART_SUFFIX.values()
            ],
            values=values,
            lengths=lengths,
            weights=row_weights.to(self.weight_dtype) if self.is_weighted else None,
        )
        return bags, bag_lengths, reads

    def _hold(self, name: str, array: npt.NDArray[np.integer]) -> None:
        """Register a copy of ``array`` as a buffer outside the state dict."""
        self.register_buffer(name, torch.from_numpy(array.copy()), persistent=False)


def rewritten_features(plans: Sequence[TablePlan]) -> list[int]:
    """Return the output features that a RewrittenBatch holds: all but those of stock lookups."""
    lookups = [plan.lookup for plan in plans for _ in plan.spec.features]
    return [f for f, lookup in enumerate(lookups) if lookup != "stock"]


def item_code(plan: TablePlan) -> npt.NDArray[np.integer]:
    """Return the packed codes of a table, empty where it stores no sums."""
    if plan.sums is None or not plan.sums.num_sums:
        return np.zeros(0, np.int32)
    return plan.sums.clusters.item_code_N


def hot_rows(plan: TablePlan) -> npt.NDArray[np.int32]:
    """Return item -> row of the fast tier's stored table that copies it, -1 if none; or empty."""
    hot = plan.placement.hot_items
    if not hot.size:
        return np.zeros(0, np.int32)
    rows = np.full(plan.spec.num_rows, -1, np.int32)
    rows[hot] = plan.placement.num_hbm_sums + np.arange(hot.size, dtype=np.int32)
    return rows


def stored_sets(
    plan: TablePlan,
) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.integer]]]:
    """Return the sets behind the stored rows of each tier: sums, then hot rows as sets of one.

    Returns:
        tier name -> (int64 indptr ``[R + 1]``, items int32, int64 where rows need it); tiers without rows are left out.
    """
    split = plan.placement.num_hbm_sums
    indptr = plan.sums.set_indptr_R1 if plan.sums is not None else np.zeros(1, np.int64)
    items = plan.sums.set_items_S if plan.sums is not None else np.zeros(0, np.int64)
    hot = plan.placement.hot_items
    hbm_indptr = np.concatenate([indptr[: split + 1], indptr[split] + 1 + np.arange(hot.size)])
    sets = {
        "hbm": (hbm_indptr, np.concatenate([items[: indptr[split]], hot])),
        "host": (indptr[split:] - indptr[split], items[indptr[split] :]),
    }
    narrow = np.int32 if plan.spec.num_rows <= 2**31 else np.int64
    return {tier: (p, i.astype(narrow)) for tier, (p, i) in sets.items() if p.size > 1}
