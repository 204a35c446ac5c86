"""The ops: one schema, one fake and one implementation per device behind each name.

Flow: modules call ``torch.ops.grace.*``, so fx, export and compile see one node each.
Meaning in reference.py and reference_subsets.py; the CPU implementation in cpu.py. Both codes take the
same op: a table whose ``subset_parts`` are not empty has a subset code.

``grace::pooled_lookup``: bags of several features -> pooled embeddings, rewriting included.
``grace::rewrite_bags``: bags of several features -> bags over (plain rows, stored rows in HBM,
stored rows in host memory), for a lookup by stock modules.
``grace::join_columns``: what such a lookup returns, side by side; refuses a backward.

Shapes: F features, T tables, B bags of each feature (the stride), L ids, D_f dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace_kernels import cpu
from grace_kernels.op_inputs import (
    bad_id,
    check_bags,
    keep_nothing,
    numpy_or_none,
    packed_codes,
    refuse_backward,
    subset_tables,
)
from grace_kernels.rewrite_bags_cpu import PARTS, rewrite_bags_cpu
from grace_kernels.table_rows import FeatureRows, TableRows

__all__ = ["PARTS", "bad_id", "packed_codes"]

_LIBRARY = torch.library.Library("grace", "DEF")
_BAGS = (
    "Tensor values, Tensor offsets, Tensor? weights, int stride, int[] positions, int[] table_of"
)
_CODES = "Tensor[] item_codes, Tensor[] hot_rows, int[] num_hbm_sums, int policy, str[] labels"
_SUBSETS = "Tensor[]? subset_parts=None, Tensor[]? subset_marks=None"
_LIBRARY.define(
    f"pooled_lookup({_BAGS}, Tensor[] rows, Tensor[] hbm_rows, Tensor[] host_rows, bool[] mean, "
    f"{_CODES}, Tensor guard, {_SUBSETS}) -> (Tensor pooled, Tensor reads)"
)
_LIBRARY.define(
    f"rewrite_bags({_BAGS}, int[] num_rows, {_CODES}, int num_others, Tensor guard, {_SUBSETS}) "
    "-> (Tensor values, Tensor lengths, Tensor weights, Tensor bag_lengths, Tensor reads)"
)
_LIBRARY.define("join_columns(Tensor[] pieces) -> Tensor")


def _pooled_lookup_cpu(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    rows: Sequence[Tensor],
    hbm_rows: Sequence[Tensor],
    host_rows: Sequence[Tensor],
    mean: Sequence[bool],
    item_codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    guard: Tensor,
    subset_parts: Sequence[Tensor] | None = None,
    subset_marks: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Look up every feature with one pass over its bags.

    Args:
        values: int32 or int64 ``[L]`` ids of all features.
        offsets: int64 ``[F_kjt * B + 1]``.
        weights: float32 ``[L]`` or None.
        stride: Bags B of each feature.
        positions: Which feature of the input each output feature is.
        table_of: Table of each output feature.
        rows: Per table ``[N, D]`` float32 or float16.
        hbm_rows: Per table stored rows in HBM (sums, then hot rows).
        host_rows: Per table stored rows in host memory.
        mean: Per table: MEAN pooling.
        item_codes: Per table the code of each item: ``block * 8 + slot``, or of a subset code
            ``start * 8 + slot``; or empty.
        hot_rows: Per table int32 row of ``hbm_rows`` that copies the item, or empty.
        num_hbm_sums: Per table: sums in ``hbm_rows``.
        policy: RAISE, DROP or ZERO_ROW.
        labels: Per output feature, "table 't', feature 'f'" for messages.
        guard: Result of the freshness check; makes that check run first.
        subset_parts: Per table ``next_E`` of SubsetTables, uint8; empty where every subset of a
            cluster is stored. None: no table has a subset code.
        subset_marks: Per table ``marks_W`` of SubsetTables, int64; or empty.

    Returns:
        pooled float32 ``[B, sum of D_f]`` and reads int64 ``[F, 2]`` (ids requested, rows read).

    Raises:
        ValueError: bags that would read outside the ids; an id is outside its table under RAISE:
            names table, feature, sample, id, rows.
    """
    check_bags(values, offsets, weights, stride, positions)
    subsets = subset_tables(subset_parts, subset_marks, len(rows))
    tables = [
        TableRows(
            rows[t].detach().numpy(), hbm_rows[t].numpy(), host_rows[t].numpy(),
            packed_codes(item_codes[t]), hot_rows[t].numpy(), num_hbm_sums[t], subsets[t],
        )
        for t in range(len(rows))
    ]  # fmt: skip
    features = FeatureRows([tables[t] for t in table_of], positions, [mean[t] for t in table_of])
    # Type and device are said: a process may have other defaults.
    pooled = torch.empty(stride, sum(features.dims), dtype=torch.float32, device=values.device)
    try:
        reads = cpu.look_up_features(
            features, values.numpy(), offsets.numpy(), numpy_or_none(weights), stride,
            pooled.numpy(), policy=policy, num_threads=torch.get_num_threads(),
        )  # fmt: skip
    except cpu.BadId as bad:
        raise bad_id(bad, labels[bad.feature]) from None
    return pooled, torch.from_numpy(reads)


def _pooled_lookup_fake(
    values: Tensor, offsets: Tensor, weights: Tensor | None, stride: int, positions: Any,
    table_of: Any, rows: Sequence[Tensor], *rest: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Shapes and types of ``pooled_lookup``."""
    width = sum(rows[t].shape[1] for t in table_of)
    pooled = rows[0].new_empty(stride, width, dtype=torch.float32)
    return pooled, values.new_empty(len(positions), 2, dtype=torch.int64)


def _rewrite_bags_fake(
    values: Tensor, offsets: Tensor, weights: Tensor | None, stride: int, positions: Any,
    table_of: Any, num_rows: Any, item_codes: Any, hot_rows: Any, num_hbm_sums: Any, policy: int,
    labels: Any, num_others: int, guard: Tensor, subset_parts: Any = None, subset_marks: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Shapes and types of ``rewrite_bags``; how many rows come out depends on the data."""
    num = torch.library.get_ctx().new_dynamic_size()
    bags = torch.sym_max(stride, 1)
    num_lengths = len(PARTS) * (len(positions) + num_others) * bags
    lengths = values.new_empty(num_lengths, dtype=torch.int64)
    new_weights = values.new_empty(num if weights is not None else 0, dtype=torch.float32)
    bag_lengths = values.new_empty(len(positions), stride, dtype=torch.int64)
    reads = values.new_empty(len(positions), 2, dtype=torch.int64)
    return values.new_empty(num, dtype=torch.int64), lengths, new_weights, bag_lengths, reads


def _join_columns(pieces: Sequence[Tensor]) -> Tensor:
    """Put the features' columns side by side; the one place where stock lookups end."""
    return torch.cat(tuple(pieces), dim=1)


_LIBRARY.impl("pooled_lookup", _pooled_lookup_cpu, "CPU")
_LIBRARY.impl("rewrite_bags", rewrite_bags_cpu, "CPU")
_LIBRARY.impl("join_columns", _join_columns, "CompositeExplicitAutograd")
torch.library.register_fake("grace::join_columns", _join_columns, lib=_LIBRARY)
torch.library.register_fake("grace::pooled_lookup", _pooled_lookup_fake, lib=_LIBRARY)
torch.library.register_fake("grace::rewrite_bags", _rewrite_bags_fake, lib=_LIBRARY)
for _name in ("grace::pooled_lookup", "grace::rewrite_bags", "grace::join_columns"):
    torch.library.register_autograd(
        _name, refuse_backward, setup_context=keep_nothing, lib=_LIBRARY
    )


def _pooled_lookup_cuda(*args: Any) -> tuple[Tensor, Tensor]:
    """Triton is loaded by the first call on a GPU, not by importing the ops."""
    from grace_kernels import gpu

    return gpu.pooled_lookup_of_features(*args)


def _rewrite_bags_cuda(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Triton is loaded by the first call on a GPU, not by importing the ops."""
    from grace_kernels import gpu_bags

    return gpu_bags.rewrite_bags_of_features(*args)


_LIBRARY.impl("pooled_lookup", _pooled_lookup_cuda, "CUDA")
_LIBRARY.impl("rewrite_bags", _rewrite_bags_cuda, "CUDA")
