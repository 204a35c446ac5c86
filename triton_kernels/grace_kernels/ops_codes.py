"""``grace::coded_lookup`` and ``grace::rewrite_coded_bags``: ops over tables of any kind of code.

Flow: modules call them where a table has a code other than clusters; meaning, checks and errors are
those of ``grace::pooled_lookup`` and ``grace::rewrite_bags``.  The lookup rewrites first and then
gathers and sums the rows: two passes, where a fused kernel takes one.
Shapes: F features, T tables, B bags of each feature (the stride), L ids, D_f dimension.
"""

# mypy: disallow-untyped-calls=False
# (torch.library has no types)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace_kernels.ops import (
    _keep_nothing,
    _pooled_lookup_fake,
    _refuse_backward,
    _rewrite_bags_cpu,
    _rewrite_bags_fake,
)
from grace_kernels.ops_rows import _pooled_rows_cpu, rewrite_features
from grace_kernels.table_codes import from_arguments

_LIBRARY = torch.library.Library("grace", "FRAGMENT")
_BAGS = (
    "Tensor values, Tensor offsets, Tensor? weights, int stride, int[] positions, int[] table_of"
)
_REST = "Tensor[] hot_rows, int[] num_hbm_sums, int policy, str[] labels"
_LIBRARY.define(
    f"coded_lookup({_BAGS}, Tensor[] rows, Tensor[] hbm_rows, Tensor[] host_rows, bool[] mean, "
    f"Tensor[] codes, {_REST}, int[] code_kinds, Tensor guard) -> (Tensor pooled, Tensor reads)"
)
_LIBRARY.define(
    f"rewrite_coded_bags({_BAGS}, int[] num_rows, Tensor[] codes, {_REST}, int num_others, "
    "int[] code_kinds, Tensor guard) "
    "-> (Tensor values, Tensor lengths, Tensor weights, Tensor bag_lengths, Tensor reads)"
)


def _coded_lookup_cpu(
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
    codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    code_kinds: Sequence[int],
    guard: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rewrite every feature, then gather and sum its rows.

    Args, results and errors as ``grace::pooled_lookup`` but for ``codes`` and ``code_kinds``: see
    ``table_codes.as_arguments``.
    """
    num_rows = [table.shape[0] for table in rows]
    row_ids, ends, row_weights, given, reads = rewrite_features(
        values, offsets, weights, stride, positions, table_of, num_rows,
        from_arguments(codes, code_kinds), policy, labels,
    )  # fmt: skip
    pooled = _pooled_rows_cpu(
        row_ids, ends, row_weights, given, range(len(positions)), table_of, rows, hbm_rows,
        host_rows, mean, hot_rows, num_hbm_sums, labels, guard,
    )  # fmt: skip
    return pooled, reads


def _rewrite_coded_bags_cpu(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    num_rows: Sequence[int],
    codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    num_others: int,
    code_kinds: Sequence[int],
    guard: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rewrite every feature into three, as ``grace::rewrite_bags`` does, by any code."""
    return _rewrite_bags_cpu(
        values, offsets, weights, stride, positions, table_of, num_rows,
        from_arguments(codes, code_kinds), hot_rows, num_hbm_sums, policy, labels, num_others,
        guard,
    )  # fmt: skip


def _rewrite_coded_bags_fake(
    values: Tensor, offsets: Tensor, weights: Tensor | None, stride: int, positions: Any,
    table_of: Any, num_rows: Any, codes: Any, hot_rows: Any, num_hbm_sums: Any, policy: int,
    labels: Any, num_others: int, code_kinds: Any, guard: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Shapes and types of ``rewrite_coded_bags``."""
    return _rewrite_bags_fake(
        values, offsets, weights, stride, positions, table_of, num_rows, codes, hot_rows,
        num_hbm_sums, policy, labels, num_others, guard,
    )  # fmt: skip


_LIBRARY.impl("coded_lookup", _coded_lookup_cpu, "CPU")
_LIBRARY.impl("rewrite_coded_bags", _rewrite_coded_bags_cpu, "CPU")
torch.library.register_fake("grace::coded_lookup", _pooled_lookup_fake, lib=_LIBRARY)
torch.library.register_fake("grace::rewrite_coded_bags", _rewrite_coded_bags_fake, lib=_LIBRARY)
for _name in ("grace::coded_lookup", "grace::rewrite_coded_bags"):
    torch.library.register_autograd(
        _name, _refuse_backward, setup_context=_keep_nothing, lib=_LIBRARY
    )
