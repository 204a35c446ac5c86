"""The ops: one schema, one fake and one implementation per device behind each name.

Flow: modules call ``torch.ops.grace.*``, so fx, export and compile see one node each.
Meaning in reference.py; the CPU implementation in cpu.py.

``grace::pooled_lookup``: bags of several features -> pooled embeddings, rewriting included.
``grace::rewrite_bags``: bags of several features -> bags over (plain rows, stored rows of the
fast tier, stored rows of the host tier), for a lookup by stock modules.
``grace::join_columns``: what such a lookup returns, side by side; refuses a backward.

Shapes: F features, T tables, B bags of each feature (the stride), L ids, D_f dimension.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from grace_kernels import cpu
from grace_kernels.packed_codes import PackedCodes, pack_codes
from grace_kernels.table_rows import FeatureRows, TableRows

PARTS = ("plain", "hbm", "host")  # where a rewritten row lies: one output feature for each

_LIBRARY = torch.library.Library("grace", "DEF")
_BAGS = (
    "Tensor values, Tensor offsets, Tensor? weights, int stride, int[] positions, int[] table_of"
)
_CODES = "Tensor[] item_codes, Tensor[] hot_rows, int[] num_hbm_sums, int policy, str[] labels"
_LIBRARY.define(
    f"pooled_lookup({_BAGS}, Tensor[] rows, Tensor[] hbm_rows, Tensor[] host_rows, bool[] mean, "
    f"{_CODES}, Tensor guard) -> (Tensor pooled, Tensor reads)"
)
_LIBRARY.define(
    f"rewrite_bags({_BAGS}, int[] num_rows, {_CODES}, int num_others, Tensor guard) "
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
        hbm_rows: Per table stored rows of the fast tier (sums, then hot rows).
        host_rows: Per table stored rows of the host tier.
        mean: Per table: MEAN pooling.
        item_codes: Per table packed cluster codes, or empty.
        hot_rows: Per table int32 row of ``hbm_rows`` that copies the item, or empty.
        num_hbm_sums: Per table: sums in ``hbm_rows``.
        policy: RAISE, DROP or ZERO_ROW.
        labels: Per output feature, "table 't', feature 'f'" for messages.
        guard: Result of the freshness check; makes that check run first.

    Returns:
        pooled float32 ``[B, sum of D_f]`` and reads int64 ``[F, 2]`` (ids requested, rows read).

    Raises:
        ValueError: an id is outside its table under RAISE: names table, feature, sample, id, rows.
    """
    tables = [
        TableRows(
            rows[t].detach().numpy(), hbm_rows[t].numpy(), host_rows[t].numpy(),
            packed_codes(item_codes[t]), hot_rows[t].numpy(), num_hbm_sums[t],
        )
        for t in range(len(rows))
    ]  # fmt: skip
    features = FeatureRows([tables[t] for t in table_of], positions, [mean[t] for t in table_of])
    # Type and device are said: a process may have other defaults.
    pooled = torch.empty(stride, sum(features.dims), dtype=torch.float32, device=values.device)
    try:
        reads = cpu.look_up_features(
            features, values.numpy(), offsets.numpy(), _numpy_or_none(weights), stride,
            pooled.numpy(), policy=policy, num_threads=torch.get_num_threads(),
        )  # fmt: skip
    except cpu.BadId as bad:
        raise bad_id(bad, offsets.numpy(), stride, features, labels) from None
    return pooled, torch.from_numpy(reads)


_packed: Any = WeakTensorKeyDictionary()  # codes of a table -> (version, packed)


def packed_codes(item_code: Tensor) -> PackedCodes:
    """Return the codes of a table packed for the CPU kernels, packed once while they stay the same.

    Args:
        item_code: Packed cluster codes ``block * 8 + slot`` per item, or empty.
    """
    version = -1 if item_code.is_inference() else item_code._version
    found = _packed.get(item_code)
    if found is None or found[0] != version:
        found = _packed[item_code] = (version, pack_codes(item_code.numpy()))
    packed: PackedCodes = found[1]
    return packed


def _rewrite_bags_cpu(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rewrite every feature into three: plain rows, stored rows in HBM, stored rows in host.

    Arguments and errors as in ``pooled_lookup``; ``num_others`` features without ids follow.
    Stock collections fail on a batch of no bags: it is given as one empty bag of each feature.

    Returns:
        values int64, lengths int64 ``[3 * (F + num_others) * max(B, 1)]`` (feature-major: plain,
        hbm, host of feature 0, then feature 1, ..), weights float32 (empty without weights), bag_lengths int64
        ``[F, B]`` as given, reads int64 ``[F, 2]`` (ids asked for, rows read).
    """
    ids, bounds, id_weights = values.numpy(), offsets.numpy(), _numpy_or_none(weights)
    parts: list[tuple[Any, Any, Any]] = []
    bag_lengths = np.zeros((len(positions), stride), np.int64)
    reads = np.zeros((len(positions), 2), np.int64)
    for feature, (position, t) in enumerate(zip(positions, table_of, strict=True)):
        bag_offsets = bounds[position * stride : (position + 1) * stride + 1]
        try:
            asked, row_ids, new_offsets, row_weights = cpu.rewrite_counted(
                ids, bag_offsets, id_weights, packed_codes(item_codes[t]), num_rows[t], policy
            )
        except cpu.BadId as bad:
            raise _bad_id(bad, bag_offsets, labels[feature], num_rows[t]) from None
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


def _numpy_or_none(tensor: Tensor | None) -> Any:
    """Return the numpy view of a tensor that may be None."""
    return None if tensor is None else tensor.detach().numpy()


def bad_id(
    bad: cpu.BadId, offsets: Any, stride: int, features: FeatureRows, labels: Sequence[str]
) -> ValueError:
    """Say which table, feature, sample and id, and how many rows there are."""
    first = features.positions[bad.feature] * stride
    num_rows = features.tables[bad.feature].rows_ND.shape[0]
    return _bad_id(bad, offsets[first : first + stride + 1], labels[bad.feature], num_rows)


def _bad_id(bad: cpu.BadId, bag_offsets: Any, label: str, num_rows: int) -> ValueError:
    """Say which table, feature, sample and id, and how many rows there are."""
    sample = int(np.searchsorted(bag_offsets, bad.position, side="right")) - 1
    return ValueError(
        f"{label}: sample {sample} holds id {bad.id}, the table has {num_rows} rows; "
        "fix the ids, or plan with PlanOptions(bad_ids='drop' or 'zero_row')"
    )


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
    labels: Any, num_others: int, guard: Tensor,
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


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    """Sums are constants: a gradient through them would be silently incomplete."""
    raise NotImplementedError(
        "backward through a GraceEmbeddingBagCollection: it is inference only; "
        "call restore_ and train the stock module"
    )


def _keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """Save nothing for a backward that never runs."""


_LIBRARY.impl("pooled_lookup", _pooled_lookup_cpu, "CPU")
_LIBRARY.impl("rewrite_bags", _rewrite_bags_cpu, "CPU")
_LIBRARY.impl("join_columns", _join_columns, "CompositeExplicitAutograd")
torch.library.register_fake("grace::join_columns", _join_columns, lib=_LIBRARY)
torch.library.register_fake("grace::pooled_lookup", _pooled_lookup_fake, lib=_LIBRARY)
torch.library.register_fake("grace::rewrite_bags", _rewrite_bags_fake, lib=_LIBRARY)
for _name in ("grace::pooled_lookup", "grace::rewrite_bags", "grace::join_columns"):
    torch.library.register_autograd(
        _name, _refuse_backward, setup_context=_keep_nothing, lib=_LIBRARY
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
