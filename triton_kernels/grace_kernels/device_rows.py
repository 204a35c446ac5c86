"""Where the rows of a table lie on a GPU, in which format, and bags over them.

Flow: modules hold the tensors -> *DeviceRows* -> pooling.py; clusters.py -> *RewrittenBags* -> pooling.py.
Row formats: float32, float16, bfloat16; int8 and int4 as fbgemm lays them out: float16 scale,
float16 bias, then D values of 8 or 4 bits (low half first), maybe padding; a value is
``number * scale + bias``.
Shapes: E entries of subset tables, W words of marks, L slots, B bags, N items, R' stored rows in HBM, R'' in host memory, D dimension, W bytes of a
quantised row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace_kernels.per_table import tables_of

HEADER_BYTES = 4  # float16 scale and float16 bias in front of a quantised row
ENTRIES_A_WORD, ENTRIES_OF_MARKS = 4, 32  # of subset tables
FLOAT_ROWS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """Where the rows of one table lie; every tensor is on the device or in pinned host memory.

    Attributes:
        rows: ``[N, D]`` float rows, or uint8 ``[N, W]`` quantised rows.
        dim: Dimension D.
        bits: 0 for float rows, 8 or 4.
        hbm: ``[R', ...]`` stored rows in HBM: sums, then hot rows; None: no stored rows.
        host: ``[R'', ...]`` the sums that follow, or None.
        hot_row_N: int32 row of ``hbm`` that copies the item, -1 if none; or None.
        num_hbm_sums: Sums in ``hbm``.

    Raises:
        ValueError: a row format without a kernel, or tensors of different formats.
    """

    rows: Tensor
    dim: int
    bits: int = 0
    hbm: Tensor | None = None
    host: Tensor | None = None
    hot_row_N: Tensor | None = None
    num_hbm_sums: int = 0

    def __post_init__(self) -> None:
        """Check types and sizes once."""
        if self.bits not in (0, 4, 8):
            raise ValueError(f"rows have 0 (float), 8 or 4 bits, got {self.bits}")
        if (self.rows.dtype in FLOAT_ROWS) != (self.bits == 0):
            raise ValueError(f"no kernel reads {self.rows.dtype} rows of {self.bits} bits")
        if self.bits:
            self._check_quantised()
        elif self.rows.shape[1] != self.dim:
            raise ValueError(f"rows have {self.rows.shape[1]} columns, dim is {self.dim}")
        if self.hbm is None and (self.host is not None or self.hot_row_N is not None):
            raise ValueError("stored rows need those in HBM, give an empty tensor")
        for tensor in (self.rows, self.hbm, self.host):
            if tensor is not None and (
                tensor.dtype != self.rows.dtype
                or tensor.shape[1] != self.rows.shape[1]
                or not tensor.is_contiguous()
            ):
                raise ValueError("stored rows must be contiguous and of the format of the table")
        if self.hot_row_N is not None and self.hot_row_N.dtype != torch.int32:
            raise ValueError(f"hot rows must be int32, got {self.hot_row_N.dtype}")

    def _check_quantised(self) -> None:
        """Quantised rows are read 4 bytes a lane: nothing may cross such a word."""
        row_bytes, value_bytes = self.rows.shape[1], self.dim * self.bits // 8
        if self.rows.dtype != torch.uint8 or row_bytes % 4 or self.dim * self.bits % 32:
            raise ValueError(
                f"rows of {self.bits} bits must be uint8, of whole 4-byte words; "
                f"got {self.rows.dtype}, {row_bytes} bytes, dim {self.dim}"
            )
        if row_bytes < HEADER_BYTES + value_bytes:
            raise ValueError(f"{row_bytes} bytes are too few for {self.dim} values and a header")

    def kernel_tensors(self) -> tuple[Tensor | None, ...]:
        """Return rows, stored rows of both memories and hot map as the kernels take them."""
        host = self.hbm if self.host is None else self.host
        return self.rows, self.hbm, host, self.hot_row_N

    def kernel_constants(self) -> dict[str, int]:
        """Return the sizes the kernels are compiled for."""
        columns = self.dim // 2 if self.bits == 4 else self.dim
        return {
            "DIM": self.dim,
            "WIDTH": 1 << (columns - 1).bit_length(),
            "PITCH": self.rows.shape[1],
            "BITS": self.bits,
            "STORED": self.hbm is not None,
            "HOT": self.hot_row_N is not None,
        }


@dataclass(frozen=True, eq=False)
class RewrittenBags:
    """Bags over rows, each in the slots of the bag it came from.

    Attributes:
        rows_L: int32 or int64 ``[L]``: bag ``b`` is the first ``lengths_B[b]`` slots from
            ``offsets_B1[b]`` on, the slots behind are -1. Ids below N are plain rows, ``N + j``
            is stored row ``j``. Slots of no bag hold anything.
        lengths_B: int32 ``[B]`` rows of each bag.
        asked_B: int32 ``[B]`` ids asked for (padding and dropped ids left out).
        weights_L: float32 ``[L]`` parallel to ``rows_L`` (0 in the tail), or None.
    """

    rows_L: Tensor
    lengths_B: Tensor
    asked_B: Tensor
    weights_L: Tensor | None


@dataclass(frozen=True, eq=False)
class DeviceSubsets:
    """Subset tables of a table, as ``SubsetTables`` has them, on the device.

    Attributes:
        next_E: uint8 ``[E]``: the part of a mask that is read first; E is a multiple of four.
        marks_W: int64 ``[W]``: ``rank << 32 | bits``.

    Raises:
        ValueError: the tensors are no subset tables.
    """

    next_E: Tensor
    marks_W: Tensor

    def __post_init__(self) -> None:
        """Check types and sizes once."""
        fits = self.next_E.dtype == torch.uint8 and self.marks_W.dtype == torch.int64
        fits = fits and self.next_E.is_contiguous() and self.marks_W.is_contiguous()
        fits = fits and self.num_entries % ENTRIES_A_WORD == 0
        if not fits or self.marks_W.numel() != -(-self.num_entries // ENTRIES_OF_MARKS):
            raise ValueError(
                f"subset tables are uint8 [4 * n] and int64 [n / 8], got {list(self.next_E.shape)} "
                f"{self.next_E.dtype} and {list(self.marks_W.shape)} {self.marks_W.dtype}"
            )

    @property
    def num_entries(self) -> int:
        """Entries E."""
        return self.next_E.numel()

    def kernel_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the entries, four in an int32, and the marks, as the kernels take them."""
        return self.next_E.view(torch.int32), self.marks_W


def device_subsets(
    subset_parts: Sequence[Tensor] | None, subset_marks: Sequence[Tensor] | None, num_tables: int
) -> list[DeviceSubsets | None]:
    """Return the subset tables of every table, None where every subset of a cluster is stored.

    Args:
        subset_parts: Per table uint8 ``[E]``, or empty; None: no table has any.
        subset_marks: Per table int64 ``[W]``, or empty.
        num_tables: How many tables there are.

    Raises:
        ValueError: the tensors of a table do not belong together, or tables are missing.
    """
    return tables_of(subset_parts, subset_marks, num_tables, DeviceSubsets)
