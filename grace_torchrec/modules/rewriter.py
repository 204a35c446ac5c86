"""Rewriter: the arrays that turn ids into rows, and the bags a stock lookup reads.

Flow: bags -> *Rewriter* -> inner collections (lookup ``stock``); the fused lookup reads the
same arrays.  A module of its own, so that sharders and pipelines find it as one.
Shapes: F features, B bags of each, N items, R stored rows.
"""

from collections.abc import Iterable, Sequence
from operator import is_not
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels import ops
from grace_kernels.reference import BAD_ID_POLICIES
from grace_torchrec.artifact import fingerprint
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.held import code_arrays
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.sums.arrays import SET_ARRAYS

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
            for name, array in code_arrays(plan.sums).items():
                self._hold(f"{name}_{t}", array)
            self._hold(f"hot_row_{t}", hot_rows(plan))
        self._array_names = list(self._buffers)
        self._code_names = [name for name in self._buffers if not name.startswith("hot_row_")]
        self._no_code = torch.empty(0, dtype=torch.int32, device="cpu")
        self._no_parts = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._no_marks = torch.empty(0, dtype=torch.int64, device="cpu")
        self._stamped: tuple[list[Tensor], list[int], str] | None = None

    def arrays(self) -> list[Tensor]:
        """Return codes and hot rows of every table; a plain dictionary, for each forward asks."""
        buffers: Any = self._buffers
        return [buffers[name] for name in self._array_names]

    def arrays_of(self, table: int) -> list[Tensor]:
        """Return code and hot rows of one table."""
        buffers: Any = self._buffers
        return [buffers[name] for name in self._array_names if name.endswith(f"_{table}")]

    def item_codes(self) -> list[Tensor]:
        """Return the code of each item, for every table of clusters or subsets (else empty)."""
        return self._of_every_table("item_code", self._no_code)

    def subsets(self) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Return what splits masks, for every table of subsets: parts and marks; None if no table is."""
        if not any(name.startswith("subset_part_") for name in self._code_names):
            return None, None
        parts = self._of_every_table("subset_part", self._no_parts)
        return parts, self._of_every_table("subset_mark", self._no_marks)

    def set_codes(self) -> list[list[Tensor]]:
        """Return the arrays of the code of every table of sets (else none of them)."""
        buffers: Any = self._buffers
        return [
            [buffers[f"{name}_{t}"] for name in SET_ARRAYS if f"{name}_{t}" in buffers]
            for t in range(len(self.num_rows))
        ]

    def hot_rows(self) -> list[Tensor]:
        """Return the stored rows in HBM that copy an item, for every table (or empty)."""
        return self._of_every_table("hot_row", self._no_code)

    @property
    def stamp(self) -> str:
        """Short hash of all that the rows of a RewrittenBatch depend on: codes, rows, policy.

        It follows the codes: one that is written in place or given anew changes it.
        """
        buffers: Any = self._buffers
        tensors = [buffers[name] for name in self._code_names]
        versions = tensor_versions(tensors)
        found = self._stamped
        if found is None or any(map(is_not, tensors, found[0])) or versions != found[1]:
            found = self._stamped = (tensors, versions, self._hash(tensors))
        return found[2]

    def _hash(self, tensors: Sequence[Tensor]) -> str:
        """Hash the codes and what else rows depend on."""
        chosen = [(self.names[f], self.labels[f], self.table_of[f]) for f in self.rewritten]
        known = (chosen, self.num_rows, self.policy, self.is_weighted, self._code_names)
        return fingerprint(repr(known), *(tensor.numpy() for tensor in tensors))

    def _of_every_table(self, name: str, none: Tensor) -> list[Tensor]:
        """Return a buffer of every table, ``none`` where a table has none of this name."""
        buffers = cast(dict[str, Tensor], self._buffers)
        return [buffers.get(f"{name}_{t}", none) for t in range(len(self.num_rows))]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles stamp their codes themselves."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_stamped": None}

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
            [self.labels[f] for f in chosen], len(others), guard, *self.subsets(),
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


def tensor_versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return their version counters; inference tensors have none."""
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def hot_rows(plan: TablePlan) -> npt.NDArray[np.int32]:
    """Return item -> stored row in HBM that copies it, -1 if none; or empty."""
    hot = plan.placement.hot_items
    if not hot.size:
        return np.zeros(0, np.int32)
    rows = np.full(plan.spec.num_rows, -1, np.int32)
    rows[hot] = plan.placement.num_hbm_sums + np.arange(hot.size, dtype=np.int32)
    return rows
