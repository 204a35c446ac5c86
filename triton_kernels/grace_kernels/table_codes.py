"""Table codes: how the ids of one table become rows, whatever kind of code its sums have, as tensors.

Flow: a module holds the tensors of every table -> *rewrite_by* -> ops, and rewriting ahead of time.
A cluster code is one tensor, ``block * 8 + slot`` per item (empty without sums); the other kinds are
values that name their tensors.  An op takes the codes of all tables in one list of tensors.
Shapes: L ids, B1 = bags + 1, N items, E entries, W words, R sets, S other items.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from grace_kernels import cpu_codes
from grace_kernels.packed_codes import Ids

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SubsetTensors:
    """A subset code, see ``cpu_codes.rewrite_subsets``.

    Attributes:
        item_code: ``start * 8 + slot`` per item, -1 where the item is in no cluster.
        next_part: uint8 ``[E]``, the part of a mask that is read first.
        stored: int64 ``[W]``, the bits of the entries that are stored.
        ranks: int32 ``[W]``, stored entries before each word.
    """

    item_code: Tensor
    next_part: Tensor
    stored: Tensor
    ranks: Tensor

    def rewrite(
        self,
        ids_L: Ids,
        offsets_B1: npt.NDArray[np.int64],
        weights_L: Floats | None,
        num_rows: int,
        policy: int,
    ) -> cpu_codes.Rewritten:
        """Rewrite bags; arguments, result and errors as ``cpu.rewrite_counted``."""
        _check_items(self.item_code.numel(), num_rows)
        return cpu_codes.rewrite_subsets(
            ids_L, offsets_B1, weights_L, self.item_code.numpy(), self.next_part.numpy(),
            self.stored.numpy().view(np.uint64), self.ranks.numpy(), policy,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SetTensors:
    """A set code, see ``cpu_codes.rewrite_sets``.

    Attributes:
        home_indptr: int32 ``[N + 1]``, the sets that each item carries.
        set_row: int32 ``[R]``, stored row of each carried set.
        others_indptr: int32 ``[R + 1]``, the other items of each carried set.
        others: int32 ``[S]``.
    """

    home_indptr: Tensor
    set_row: Tensor
    others_indptr: Tensor
    others: Tensor

    def rewrite(
        self,
        ids_L: Ids,
        offsets_B1: npt.NDArray[np.int64],
        weights_L: Floats | None,
        num_rows: int,
        policy: int,
    ) -> cpu_codes.Rewritten:
        """Rewrite bags; arguments, result and errors as ``cpu.rewrite_counted``."""
        _check_items(self.home_indptr.numel() - 1, num_rows)
        return cpu_codes.rewrite_sets(
            ids_L, offsets_B1, weights_L, self.home_indptr.numpy(), self.set_row.numpy(),
            self.others_indptr.numpy(), self.others.numpy(), policy,
        )  # fmt: skip


TableCode = Tensor | SubsetTensors | SetTensors
CLUSTERS, SUBSETS, SETS = range(3)  # kinds of codes in the arguments of ops
_MADE_OF: dict[int, tuple[int, Callable[..., TableCode]]] = {
    CLUSTERS: (1, lambda item_code: item_code),
    SUBSETS: (len(fields(SubsetTensors)), SubsetTensors),
    SETS: (len(fields(SetTensors)), SetTensors),
}


def as_arguments(codes: Sequence[TableCode]) -> tuple[list[Tensor], list[int]]:
    """Return the tensors of all codes in one list, and the kind of each code, as an op takes them."""
    tensors: list[Tensor] = []
    for code in codes:
        tensors += code_tensors(code)
    kinds = [
        CLUSTERS if isinstance(code, Tensor) else SETS if isinstance(code, SetTensors) else SUBSETS
        for code in codes
    ]
    return tensors, kinds


def from_arguments(tensors: Sequence[Tensor], kinds: Sequence[int]) -> list[TableCode]:
    """Return the codes behind the arguments of an op.

    Raises:
        ValueError: a kind is unknown, or there are too few or too many tensors.
    """
    codes: list[TableCode] = []
    taken = 0
    for kind in kinds:
        if kind not in _MADE_OF:
            raise ValueError(f"code of kind {kind}, expected one of {tuple(_MADE_OF)}")
        count, make = _MADE_OF[kind]
        if taken + count > len(tensors):
            break
        codes.append(make(*tensors[taken : taken + count]))
        taken += count
    if len(codes) < len(kinds) or taken != len(tensors):
        raise ValueError(f"{len(tensors)} tensors are not those of codes of kinds {list(kinds)}")
    return codes


def code_tensors(code: TableCode) -> list[Tensor]:
    """Return the tensors of one code, in the order of its fields."""
    if isinstance(code, Tensor):
        return [code]
    tensors: list[Any] = [getattr(code, field.name) for field in fields(code)]
    return tensors


def _check_items(num_items: int, num_rows: int) -> None:
    """Refuse the code of another table."""
    if num_items != num_rows:
        raise ValueError(f"codes are for {num_items} items, the table has {num_rows} rows")
