"""Tensors that tables may have or not: lists with an empty tensor for each table that has none.

Flow: op_inputs.py and device_rows.py call this for subset tables; it needs neither numba nor Triton.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


def tables_of(
    parts: Sequence[Tensor] | None,
    marks: Sequence[Tensor] | None,
    num_tables: int,
    make: Callable[[Tensor, Tensor], T],
) -> list[T | None]:
    """Return what ``make`` makes of the tensors of each table, None where they are empty.

    Args:
        parts: ``next_E`` of every table, or None: no table has a subset code.
        marks: ``marks_W`` of every table.
        num_tables: How many tables there are.
        make: Takes both tensors of a table.

    Raises:
        ValueError: tables are missing.
    """
    if parts is None and marks is None:
        return [None] * num_tables
    parts, marks = parts or [], marks or []
    if not len(parts) == len(marks) == num_tables:
        raise ValueError(
            f"{num_tables} tables need a tensor of parts and one of marks each, empty where all "
            f"subsets are stored; got {len(parts)} and {len(marks)}"
        )
    pairs = zip(parts, marks, strict=True)
    return [make(part, mark) if len(part) or len(mark) else None for part, mark in pairs]
