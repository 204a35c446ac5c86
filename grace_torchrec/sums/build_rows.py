"""Stored rows: each is the sum of the original rows of its set, built in large batches.

Flow: StoredSums + weights -> *stored rows* -> modules.  Meaning: ``build_rows_reference``.
Shapes: N items, R stored rows, R1 = R + 1, S items of all sets together, D dimension.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 1 << 17


@torch.no_grad()
def build_rows(
    weight_ND: Tensor,
    set_indptr_R1: Tensor,
    set_items_S: Tensor,
    out_RD: Tensor,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the sum of every set into ``out_RD``, added up in the order of the set.

    Args:
        weight_ND: Original rows, float32 or float16; sums are formed in float32.
        set_indptr_R1: int64 ``[R + 1]``.
        set_items_S: int32 or int64 item ids.
        out_RD: ``[R, D]`` of the type of ``weight_ND``.
        progress: Called with the number of rows finished since the last call.
    """
    for first in range(0, out_RD.shape[0], CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, out_RD.shape[0])
        out_RD[first:last] = sum_sets(weight_ND, set_indptr_R1[first : last + 1], set_items_S)
        if progress is not None:
            progress(last - first)


@torch.no_grad()
def sum_sets(weight_ND: Tensor, set_indptr_K1: Tensor, set_items_S: Tensor) -> Tensor:
    """Return the float32 sums of K consecutive sets, ``[K, D]``.

    Args:
        weight_ND: Original rows.
        set_indptr_K1: int64 ``[K + 1]``, may start above 0.
        set_items_S: Item ids of all sets.
    """
    items = set_items_S[int(set_indptr_K1[0]) : int(set_indptr_K1[-1])].long()
    offsets = set_indptr_K1 - set_indptr_K1[0]
    if weight_ND.dtype == torch.float32:
        return F.embedding_bag(items, weight_ND, offsets, mode="sum", include_last_offset=True)
    picked = weight_ND[items].float()
    order = torch.arange(items.numel(), device=items.device)
    return F.embedding_bag(order, picked, offsets, mode="sum", include_last_offset=True)
