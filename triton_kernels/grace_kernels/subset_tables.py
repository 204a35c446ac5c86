"""Subset tables: what splits the mask of a cluster into stored rows, as the kernels read it.

Flow: SubsetCode's arrays -> *pack_subsets* -> *SubsetTables* -> numba and Triton rewriting.
The code of an item is ``start * 8 + slot``; entry ``start + mask`` of one common table says which
part of the mask is read first, and a stored entry owns the row that is its rank among all stored
entries.  Derived: marks and ranks stand in one word for 32 entries, as packed_codes.py packs
codes, so that one load finds a row.
Shapes: E entries, W = ceil(E / 32) words, V = ceil(E / 64) words as SubsetCode has them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels.packed_codes import ITEMS_A_WORD, PackedCodes


@dataclass(frozen=True, eq=False)
class SubsetTables:
    """How the masks of all clusters split; the code they come from has been checked.

    Attributes:
        next_E: uint8 ``[E]``: the part of a mask that is read first: it holds the lowest item of
            the mask and is stored, or is that item alone.
        marks_W: int64 ``[W]``: ``rank << 32 | bits``: a bit for each stored entry, and the stored
            entries of all words before.

    Raises:
        ValueError: names what does not fit.
    """

    next_E: npt.NDArray[np.uint8]
    marks_W: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together."""
        words = -(-self.next_E.size // ITEMS_A_WORD)
        if self.next_E.dtype != np.uint8 or self.marks_W.dtype != np.int64:
            raise ValueError(
                f"subset tables are uint8 and int64, got {self.next_E.dtype} and {self.marks_W.dtype}"
            )
        if self.marks_W.shape != (words,):
            raise ValueError(
                f"{self.next_E.size} entries need {words} words of marks, got {self.marks_W.size}"
            )
        if not (self.next_E.flags.c_contiguous and self.marks_W.flags.c_contiguous):
            raise ValueError("subset tables must be contiguous")

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of both arrays."""
        return self.next_E.ctypes.data, self.marks_W.ctypes.data

    @property
    def num_stored(self) -> int:
        """Stored entries: the rows that masks may read."""
        last = int(self.marks_W[-1]) if self.marks_W.size else 0
        return (last >> ITEMS_A_WORD) + int((last & (2**ITEMS_A_WORD - 1)).bit_count())

    @property
    def num_bytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.next_E.nbytes + self.marks_W.nbytes)


def pack_subsets(next_E: npt.NDArray[np.uint8], stored_V: npt.NDArray[np.uint64]) -> SubsetTables:
    """Return the tables of a SubsetCode as the kernels read them.

    Args:
        next_E: The part of a mask that is read first; not copied.
        stored_V: A bit for each entry that is stored.

    Raises:
        ValueError: the sizes do not belong together.

    >>> tables = pack_subsets(np.array([0, 1, 2, 3], np.uint8), np.array([8], np.uint64))
    >>> tables.marks_W.tolist(), tables.num_stored
    ([8], 1)
    """
    words = -(-next_E.size // ITEMS_A_WORD)
    bits_W = stored_V.view(np.uint32)[:words]
    counts_W = np.unpackbits(bits_W.view(np.uint8)).reshape(-1, ITEMS_A_WORD).sum(1, np.int64)
    ranks_W = np.cumsum(counts_W) - counts_W
    return SubsetTables(next_E, (ranks_W << ITEMS_A_WORD) | bits_W.astype(np.int64))


def check_subsets(codes: PackedCodes, subsets: SubsetTables, num_sums: int) -> None:
    """Refuse tables that the codes of another table would read past their end.

    Args:
        codes: ``start * 8 + slot`` of the clustered items.
        subsets: What splits the masks of these clusters.
        num_sums: Stored rows of the table.

    Raises:
        ValueError: the codes name entries, or the entries name rows, that are not there.
    """
    if codes.num_entries > subsets.next_E.size:
        raise ValueError(
            f"codes name {codes.num_entries} entries, the subset tables have {subsets.next_E.size}"
        )
    if subsets.num_stored > num_sums:
        raise ValueError(
            f"subset tables name {subsets.num_stored} stored rows, the table has {num_sums}"
        )
