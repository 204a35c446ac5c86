"""Row types: how rows lie in a table batch, and how float rows become such rows.

Flow: float rows of a model, and sums formed from them -> *pack_rows* -> table batches.
Packing is that of TorchRec's own quantiser (``quantize_state_dict``), row by row, so rows packed a
few at a time equal rows packed all at once.
Shapes: K rows, D dimension, W bytes of a packed row.
"""

from typing import Literal

import torch
from torch import Tensor
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS, DataType

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.plan import Plan

RowType = Literal["fp32", "fp16", "int8", "int4"]
DATA_TYPES: dict[str, DataType] = {
    "fp32": DataType.FP32,
    "fp16": DataType.FP16,
    "int8": DataType.INT8,
    "int4": DataType.INT4,
}
SCALE_BYTES = 4  # float16 scale and float16 bias in front of a quantised row
DIM_MULTIPLE = {"int8": 2, "int4": 4}  # values of a row fill an even number of bytes
WIDER = {"fp32": "fp32", "fp16": "fp32", "int8": "fp16", "int4": "int8"}
LARGEST_HALF = torch.finfo(torch.float16).max  # fp16 values, and scale and bias of int8 and int4


def row_types(plan: Plan, asked: str | None) -> dict[str, str]:
    """Return table key -> type of its rows in serving.

    Args:
        plan: Its ``options.row_dtype`` counts where nothing is asked for.
        asked: ``table`` (as in the model), ``fp32``, ``fp16``, ``int8`` or ``int4``; or None.

    Raises:
        GraceError: the type is unknown.
        NotSupported: fbgemm cannot quantise rows of a table's dimension.
    """
    wanted = plan.options.row_dtype if asked is None else asked
    if wanted not in ("table", *DATA_TYPES):
        raise GraceError(
            f"convert: row_dtype must be one of {('table', *DATA_TYPES)}, got {wanted!r}"
        )
    types: dict[str, str] = {}
    for key, table in plan.tables.items():
        types[key] = table.spec.dtype if wanted == "table" else wanted
        multiple = DIM_MULTIPLE.get(types[key], 1)
        if table.spec.dim % multiple:
            raise NotSupported(
                f"table {key}: {types[key]} rows need a dimension that is a multiple of {multiple}, "
                f"it has {table.spec.dim}; convert it with row_dtype 'fp16'"
            )
    return types


def sum_type(row_type: str, table_dtype: str) -> str:
    """Return the type of stored rows beside rows of a type.

    A sum has a wider range than its rows, so packed like them it would be coarser than they are
    together: beside packed rows it is held in the next wider type.  That takes no more memory than
    was planned, for plans count rows of the table's own type.

    Args:
        row_type: Type of the rows in serving.
        table_dtype: Type of the rows in the model.
    """
    return row_type if row_type == table_dtype else WIDER[row_type]


def packed_bytes(row_type: str, dim: int) -> int:
    """Return the bytes W of a packed row of ``dim`` values."""
    bits: int = DATA_TYPE_NUM_BITS[DATA_TYPES[row_type]]
    return dim * bits // 8 + (SCALE_BYTES if row_type in ("int8", "int4") else 0)


def largest_value(row_type: str) -> float:
    """Return the largest magnitude that rows of a type are sure to hold."""
    return float("inf") if row_type == "fp32" else LARGEST_HALF


def beyond(rows_KD: Tensor, row_type: str) -> Tensor:
    """Return bool ``[K]``: rows whose finite numbers are too large for a type.

    A quantised row has its smallest value as a float16 bias and the step between two values as a
    float16 scale.
    """
    if row_type == "fp32":
        return torch.zeros(rows_KD.shape[0], dtype=torch.bool)
    return (rows_KD.isfinite() & (rows_KD.abs() > LARGEST_HALF)).any(dim=1)


@torch.no_grad()
def pack_rows(rows_KD: Tensor, row_type: str) -> Tensor:
    """Return float rows as a table batch holds them.

    Args:
        rows_KD: float32 or float16.
        row_type: ``fp32``, ``fp16``, ``int8`` or ``int4``.

    Returns:
        uint8 ``[K, W]``: the values, or a scale, a bias and the quantised values.
    """
    if row_type == "fp32":
        return rows_KD.float().contiguous().view(torch.uint8)
    if row_type == "fp16":
        return rows_KD.half().contiguous().view(torch.uint8)
    bits = DATA_TYPE_NUM_BITS[DATA_TYPES[row_type]]
    fused = torch.ops.fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(
        rows_KD.contiguous(), bits
    )
    width = packed_bytes(row_type, rows_KD.shape[1]) - SCALE_BYTES
    # The quantiser writes scale and bias behind the values, table batches read them in front.
    return torch.cat([fused[:, -SCALE_BYTES:], fused[:, :width]], dim=1)
