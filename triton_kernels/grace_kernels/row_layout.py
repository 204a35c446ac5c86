"""What the CPU kernels must find in the memory of a table, since they read it by address.

Flow: *TableRows* asks this where it tells addresses: one width and one type are used for all rows.
Shapes: N items, R stored rows, D embedding dimension.
"""

from typing import Any

import numpy as np
import numpy.typing as npt


def check_layout(
    rows_ND: npt.NDArray[Any],
    hbm_RD: npt.NDArray[Any],
    host_RD: npt.NDArray[Any],
    hot_row_N: npt.NDArray[np.int32],
) -> None:
    """Refuse arrays whose rows would be read where they do not lie.

    Args:
        rows_ND: Original rows.
        hbm_RD: Stored rows in HBM; if empty, of any type.
        host_RD: Stored rows in host memory; if empty, of any type.
        hot_row_N: int32 row of ``hbm_RD`` of each item, or empty.

    Raises:
        ValueError: rows are not contiguous or not alike, or the hot rows are not one for each item.
    """
    wanted = rows_ND.dtype, rows_ND.shape[1:]
    for part in (rows_ND, hbm_RD, host_RD):
        if part.size and (
            not part.flags.c_contiguous or (part.dtype, part.shape[1:]) != wanted or part.ndim != 2
        ):
            told = [f"{p.dtype} {p.shape} strides {p.strides}" for p in (rows_ND, hbm_RD, host_RD)]
            raise ValueError(
                "rows and stored rows must be contiguous and of one type and width, got "
                f"{', '.join(told)}; call .contiguous() and .to() on them first"
            )
    if hot_row_N.size and (
        hot_row_N.dtype != np.int32
        or not hot_row_N.flags.c_contiguous
        or hot_row_N.shape != rows_ND.shape[:1]
    ):
        raise ValueError(
            f"hot rows must be contiguous int32 ({rows_ND.shape[0]},), got {hot_row_N.dtype} "
            f"{hot_row_N.shape}"
        )
