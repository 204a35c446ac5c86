"""What the ops share: tensors as the CPU kernels take them, checks of bags, and what is refused.

Flow: ops.py, rewrite_bags_cpu.py and ops_rows.py call these before anything is read.
Shapes: F features, B bags of each feature (the stride), L ids, N items, E entries, W words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from grace_kernels import cpu
from grace_kernels.errors import ALLOW_BAD_IDS, NoBackward, OutsideTable, WrongBatch, refusal
from grace_kernels.packed_codes import PackedCodes, pack_codes
from grace_kernels.per_table import tables_of
from grace_kernels.subset_tables import SubsetTables

_packed: Any = WeakTensorKeyDictionary()  # codes of a table -> (version, packed)


def packed_codes(item_code: Tensor) -> PackedCodes:
    """Return the codes of a table packed for the CPU kernels, packed once while they stay the same.

    Args:
        item_code: Codes ``block * 8 + slot`` per item (of a subset code ``start * 8 + slot``), or
            empty.
    """
    version = -1 if item_code.is_inference() else item_code._version
    found = _packed.get(item_code)
    if found is None or found[0] != version:
        found = _packed[item_code] = (version, pack_codes(item_code.numpy()))
    packed: PackedCodes = found[1]
    return packed


def subset_tables(
    subset_parts: Sequence[Tensor] | None, subset_marks: Sequence[Tensor] | None, num_tables: int
) -> list[SubsetTables | None]:
    """Return the subset tables of every table, None where every subset of a cluster is stored.

    Args:
        subset_parts: Per table uint8 ``[E]``, or empty; None: no table has any.
        subset_marks: Per table int64 ``[W]``, or empty.
        num_tables: How many tables there are.

    Raises:
        ValueError: the tensors of a table do not belong together, or tables are missing.
    """

    def on_cpu(next_E: Tensor, marks_W: Tensor) -> SubsetTables:
        """Look at the memory of the tensors."""
        return SubsetTables(next_E.numpy(), marks_W.numpy())

    return tables_of(subset_parts, subset_marks, num_tables, on_cpu)


def check_bags(
    values: Tensor, offsets: Tensor, weights: Tensor | None, stride: int, positions: Sequence[int]
) -> None:
    """Refuse bags that would make a kernel read outside its arrays.

    Args:
        values: Ids of all features.
        offsets: Where bags begin.
        weights: Parallel to the ids, or None.
        stride: Bags of each feature.
        positions: Features of the batch that are asked for.

    Raises:
        WrongBatch: a size or type is wrong, or offsets fall, or leave the ids (seen on the CPU
            only: a device would have to be waited for).
    """
    needed = (max(positions, default=-1) + 1) * stride + 1
    fits = values.dim() == 1 and values.dtype in (torch.int32, torch.int64)
    fits = fits and offsets.dim() == 1 and offsets.dtype == torch.int64
    fits = fits and offsets.numel() >= needed and min(positions, default=0) >= 0
    if fits and weights is not None:
        fits = weights.dtype == torch.float32 and weights.shape == values.shape
    if fits and not offsets.is_cuda:
        bounds = offsets.numpy()
        fits = bounds[0] >= 0 and bounds[-1] <= values.numel()
        fits = fits and cpu.first_misfit(bounds, bounds[:0]) < 0
    if not fits:
        raise refusal(
            WrongBatch,
            f"bags: {stride} bags of {needed // max(stride, 1)} features need {needed} int64 offsets "
            f"that never fall, inside {values.numel()} int32 or int64 ids, weights float32 or none; "
            f"got {offsets.numel()} {offsets.dtype} offsets; fix the batch",
        )


def numpy_or_none(tensor: Tensor | None) -> Any:
    """Return the numpy view of a tensor that may be None."""
    return None if tensor is None else tensor.detach().numpy()


def bad_id(bad: cpu.BadId, label: str) -> Exception:
    """Say which table, feature, sample and id, and how many rows there are.

    Args:
        bad: What a kernel met.
        label: "table 't', feature 'f'".
    """
    return refusal(
        OutsideTable,
        f"{label}: sample {bad.sample} holds id {bad.id}, the table has {bad.num_rows} rows; "
        f"fix the ids, or {ALLOW_BAD_IDS}",
    )


def refuse_backward(context: Any, *gradients: Any) -> Any:
    """Sums are constants: a gradient through them would be silently incomplete."""
    raise refusal(
        NoBackward,
        "backward through a GraceEmbeddingBagCollection: it is inference only; "
        "call restore_ and train the stock module, or look up (and compile) under torch.no_grad()",
    )


def keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """Save nothing for a backward that never runs."""
