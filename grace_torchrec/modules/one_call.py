"""One call: batches of the usual form go through a single compiled call, by address.

Flow: KeyedJaggedTensor, or rewritten rows + FeatureRows -> *served_bags* / *pooled_rows* -> pooled
columns, or None: the batch is of another form, or something is wrong with it, which the ways with
messages (*looked_up*) say.  Swapped modules and served collections share these doors.
Shapes: F features, B bags of each feature, D dimension.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from grace_kernels import cpu, ops
from grace_kernels.table_rows import FeatureRows
from grace_torchrec.modules.bags import ID_TYPES
from grace_torchrec.modules.lookup import Bags
from grace_torchrec.modules.rewritten_batch import RewrittenRows


def served_bags(
    features: KeyedJaggedTensor,
    features_of: Callable[[tuple[str, ...]], FeatureRows | None],
    policy: int,
) -> tuple[Tensor, Any] | None:
    """Look up a plain batch without weights.

    Args:
        features: On the CPU; nobody traces or intercepts it.
        features_of: From the keys of a batch to its features, None where one is missing.
        policy: What an id outside its table does.

    Returns:
        Pooled float32 ``[B, sum of D]`` and reads int64 ``[F, 2]``.
    """
    ids = features.values()
    if (
        ids.dtype not in ID_TYPES
        or not _is_vector(ids)
        or features.weights_or_none() is not None
        or features.variable_stride_per_key()
        or features.inverse_indices_or_none() is not None
    ):
        return None
    keys, stride = features.keys(), features.stride()
    num_bags = len(keys) * stride
    bounds = _bounds(features, num_bags)
    if bounds is None:
        return None
    offsets, lengths = bounds
    laid_out = features_of(tuple(keys))
    if laid_out is None:
        return None
    pooled = torch.empty(stride, laid_out.width, dtype=torch.float32, device="cpu")
    reads = laid_out.serve(
        ids.data_ptr(), ids.element_size(), ids.numel(),
        0 if offsets is None else offsets.data_ptr(), num_bags + 1,
        0 if lengths is None else lengths.data_ptr(),
        8 if lengths is None else lengths.element_size(),
        stride, policy, pooled.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return None if reads is None else (pooled, reads)


def looked_up(
    features: FeatureRows, bags: Bags, policy: int, label_of: Callable[[int], str]
) -> tuple[Tensor, Any]:
    """Look up checked bags of any form.

    Args:
        features: In the order of the bags.
        bags: Ids, offsets, weights and stride of them, on the CPU.
        policy: What an id outside its table does.
        label_of: From a feature to the name that an error says.

    Returns:
        Pooled float32 ``[B, sum of D]`` and reads int64 ``[F, 2]``.

    Raises:
        OutsideTable: an id is outside its table under RAISE.
    """
    ids, offsets, weights, stride, _ = bags
    pooled = torch.empty(stride, features.width, dtype=torch.float32, device="cpu")
    try:
        reads = cpu.look_up_features(
            features, ids.numpy(), offsets.numpy(),
            None if weights is None else weights.detach().numpy(), stride, pooled.numpy(),
            policy=policy, num_threads=torch.get_num_threads(),
        )  # fmt: skip
    except cpu.BadId as bad:
        raise ops.bad_id(bad, label_of(bad.feature)) from None
    return pooled, reads


def pooled_rows(features: FeatureRows, given: RewrittenRows) -> Tensor | None:
    """Sum rewritten bags without weights; return float32 ``[B, sum of D]``.

    Args:
        features: In the order of the batch.
        given: Rows of a RewrittenBatch.
    """
    rows, offsets, lengths = given.rows, given.offsets, given.given_lengths
    if given.weights is not None or lengths.dim() != 2 or not lengths.is_contiguous():
        return None
    if not (rows.dtype == offsets.dtype == lengths.dtype == torch.int64):
        return None
    if not (_is_vector(rows) and _is_vector(offsets)) or not (rows.is_cpu and lengths.is_cpu):
        return None
    num_bags, stride = lengths.numel(), lengths.shape[1]
    if not num_bags or offsets.numel() != num_bags + 1 or not offsets.is_cpu:
        return None
    pooled = torch.empty(stride, features.width, dtype=torch.float32, device="cpu")
    done = features.pool(
        rows.data_ptr(), rows.numel(), offsets.data_ptr(), lengths.data_ptr(), num_bags, stride,
        pooled.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return pooled if done else None


def _bounds(
    features: KeyedJaggedTensor, num_bags: int
) -> tuple[Tensor | None, Tensor | None] | None:
    """Return int64 offsets and lengths, at least one of them; None if they are of no usual form."""
    offsets, lengths = features.offsets_or_none(), features.lengths_or_none()
    if not num_bags or (offsets is None and lengths is None):
        return None
    for given, size in ((offsets, num_bags + 1), (lengths, num_bags)):
        if given is not None and not (
            given.dtype in ID_TYPES and _is_vector(given) and given.numel() == size
        ):
            return None
    return None if offsets is None else offsets.to(torch.int64), lengths


def _is_vector(tensor: Tensor) -> bool:
    """Tell whether elements follow each other in memory."""
    return tensor.dim() == 1 and tensor.is_contiguous()
