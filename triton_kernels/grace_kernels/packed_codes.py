"""Packed codes: the codes of the clustered items alone, found by a bit for each item.

Flow: ClusterCode's ``item_code_N`` -> *pack_codes* -> the numba cores of rewriting.
Derived: most items are in no cluster, and most of the time of rewriting went into fetching the
4 bytes of each item's code from memory.  32 items share one word here, ``rank << 32 | bits``:
whether an item is clustered is a bit, and the place of its code is the rank plus the number of
bits below its own.  A quarter of a byte for each item stays in the cache.
Shapes: N items, W = ceil(N / 32) words, C clustered items.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._llvm import popcount

ITEMS_A_WORD = 32
WORD_SHIFT = ITEMS_A_WORD.bit_length() - 1


@dataclass(frozen=True, eq=False)
class PackedCodes:
    """What finds an item's code: ``codes_C[rank + bits below]`` where its bit is set.

    Attributes:
        num_items: Items N.
        words_W: int64 ``[W]``: ``rank << 32 | bits``; empty where no item is clustered.
        codes_C: int32 or int64 ``[C]``, ``block * 8 + slot`` in order of item.
        num_entries: One past the last entry that a mask can name where blocks are the starts of
            subset tables.
    """

    num_items: int
    words_W: npt.NDArray[np.int64]
    codes_C: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    num_entries: int

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of both (words 0 where nothing is clustered) and bytes of a code."""
        words_at = self.words_W.ctypes.data if self.words_W.size else 0
        return words_at, self.codes_C.ctypes.data, self.codes_C.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.words_W.nbytes + self.codes_C.nbytes)


Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Codes = Ids | PackedCodes  # one code per item, or packed


def pack_codes(item_code_N: Ids) -> PackedCodes:
    """Pack the codes of a table.

    Args:
        item_code_N: ``block * 8 + slot`` per item, -1 where the item is in no cluster; or empty.
    """
    num_clustered = int(_count_clustered(item_code_N))
    codes_C = np.empty(num_clustered, item_code_N.dtype)
    words_W = np.empty(-(-item_code_N.size // ITEMS_A_WORD) if num_clustered else 0, np.int64)
    num_entries = int(_pack(item_code_N, words_W, codes_C)) if num_clustered else 0
    return PackedCodes(int(item_code_N.size), words_W, codes_C, num_entries)


@jit
def _count_clustered(item_code: Any) -> Any:
    """Count the items that have a code."""
    count = 0
    for item in range(item_code.size):
        count += item_code[item] >= 0
    return count


@jit
def _pack(item_code: Any, words: Any, codes: Any) -> Any:
    """Fill ``words`` and ``codes``; return the end of the entries that they can name."""
    count, end = np.int64(0), np.int64(0)
    for word in range(words.size):
        bits, rank = np.int64(0), count
        first = word * ITEMS_A_WORD
        for item in range(first, min(first + ITEMS_A_WORD, item_code.size)):
            if item_code[item] >= 0:
                bits |= np.int64(1) << (item - first)
                code = np.int64(item_code[item])
                codes[count] = code
                end = max(end, (code >> 3) + (np.int64(2) << (code & 7)))
                count += 1
        words[word] = (rank << ITEMS_A_WORD) | bits
    return end


@jit
def rank_in_word(word: Any, item: Any) -> Any:
    """Return the place of an item's code, given the word of the item."""
    below = (np.int64(1) << (item & (ITEMS_A_WORD - 1))) - 1
    return ((word >> ITEMS_A_WORD) & 0xFFFFFFFF) + popcount(word & below)
