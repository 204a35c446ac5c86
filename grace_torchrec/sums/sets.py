"""Set code: stored sets of any items, which may overlap; a bag looks for the sets that it holds.

Flow: grouping -> *StoredSums with a SetCode* -> rewriting ahead of serving.  Derived, not in the
paper: disjoint clusters are the wrong model where a few popular items go with everybody. Every
set hangs on its rarest item, so that a bag looks through few of them. Finding takes probes,
two to six for an id: this code is for bags that are rewritten before they are served.
Shapes: N items, N1 = N + 1, R stored rows, R1 = R + 1, S other items of all sets together.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.covering import check_covers

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SetCode:
    """Which sets each item carries.

    Attributes:
        home_indptr_N1: int32 ``[N + 1]``: item ``i`` carries ``home_indptr[i]:home_indptr[i + 1]``.
        set_row_R: int32 ``[R]``: stored row of each carried set.
        others_indptr_R1: int32 ``[R + 1]``: the other items of each carried set.
        others_S: int32 ``[S]``.
    """

    home_indptr_N1: Int32s
    set_row_R: Int32s
    others_indptr_R1: Int32s
    others_S: Int32s

    @property
    def num_bytes(self) -> int:
        """Metadata bytes that rewriting keeps for this code."""
        arrays = (self.home_indptr_N1, self.set_row_R, self.others_indptr_R1, self.others_S)
        return int(sum(array.nbytes for array in arrays))

    @property
    def item_bytes(self) -> int:
        """Bytes of :attr:`num_bytes` that one more item, in no sum, would take."""
        return int(self.home_indptr_N1.itemsize)

    def check(self, num_items: int, num_stored: int) -> None:
        """Refuse a code that names items or rows that are not there.

        Raises:
            GraceError: the message names what does not fit.
        """
        if self.home_indptr_N1.shape != (num_items + 1,):
            raise GraceError(
                f"stored sums: the code has {self.home_indptr_N1.size - 1} items, expected {num_items} items"
            )
        if not np.array_equal(np.sort(self.set_row_R), np.arange(num_stored)):
            raise GraceError(f"stored sums: the code does not name each of {num_stored} rows once")
        if self.others_indptr_R1.size != num_stored + 1:
            raise GraceError(
                f"stored sums: the code has {self.others_indptr_R1.size - 1} sets, expected {num_stored}"
            )
        for name, indptr, size in (
            ("sets", self.home_indptr_N1, self.set_row_R.size),
            ("other items", self.others_indptr_R1, self.others_S.size),
        ):
            check_covers("the code", indptr, name, size)
        if (np.diff(self.others_indptr_R1) < 1).any():
            raise GraceError("stored sums: a carried set has no other item")
        if self.others_S.size and not 0 <= self.others_S.min() <= self.others_S.max() < num_items:
            raise GraceError(f"stored sums: the code names an item outside 0..{num_items - 1}")

    def check_sets(self, set_indptr_R1: Int64s, set_items_S: Int64s) -> None:
        """Refuse a code whose carried sets are not these sets (after :meth:`check`).

        Raises:
            GraceError: a set repeats an item, or the code carries another set.
        """
        num_items = self.home_indptr_N1.size - 1
        first_key_R = np.arange(set_indptr_R1.size - 1) * num_items  # a key for each row and item
        wanted = np.sort(np.repeat(first_key_R, np.diff(set_indptr_R1)) + set_items_S)
        carried_R = first_key_R[self.set_row_R]
        homes = np.repeat(np.arange(num_items), np.diff(self.home_indptr_N1)) + carried_R
        others = np.repeat(carried_R, np.diff(self.others_indptr_R1)) + self.others_S
        found = np.sort(np.concatenate([homes, others]))
        if (np.diff(wanted) == 0).any():
            raise GraceError("stored sums: a set holds an item twice")
        if not np.array_equal(wanted, found):
            raise GraceError("stored sums: the code carries sets that are not stored")

    def first(self, budget: int) -> tuple["SetCode", int]:
        """Return the code of the first ``budget`` rows, and how many they are."""
        kept = self.set_row_R < budget
        lengths = np.diff(self.others_indptr_R1)
        before = np.concatenate([[0], np.cumsum(kept)])
        code = SetCode(
            before[self.home_indptr_N1].astype(np.int32),
            self.set_row_R[kept],
            np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int32),
            self.others_S[np.repeat(kept, lengths)],
        )
        return code, int(kept.sum())


def set_code(
    num_items: int,
    set_indptr_R1: Int64s,
    set_items_S: Int64s,
    counts_N: Int64s | None = None,
) -> SetCode:
    """Hang every set on its rarest item.

    Args:
        num_items: Rows N of the table.
        set_indptr_R1: Set ``j`` is ``set_items_S[set_indptr_R1[j]:set_indptr_R1[j + 1]]``.
        set_items_S: Item ids, two or more different ones a set.
        counts_N: How often each item is requested; default: in how many sets it is. Any counts
            give a correct code; good ones give a fast one. Ties go to the lower id.

    Raises:
        GraceError: the sets do not cover the items, one has fewer than two or repeats one, an id is
            outside the table, counts are of another one, or the sets are too many for 31 bits.
    """
    check_covers("set_indptr", set_indptr_R1, "items", set_items_S.size)
    sizes = np.diff(set_indptr_R1)
    if sizes.size and sizes.min() < 2:
        raise GraceError("stored sums: a set has fewer than two items")
    if set_items_S.size and not 0 <= set_items_S.min() <= set_items_S.max() < num_items:
        raise GraceError(f"stored sums: an item is outside 0..{num_items - 1}")
    if set_items_S.size >= 2**31 or num_items >= 2**31:
        raise GraceError(f"stored sums: {set_items_S.size:,} items of sets pass 2**31; store fewer")
    if counts_N is not None and counts_N.shape != (num_items,):
        raise GraceError(f"stored sums: counts are {counts_N.shape}, expected {num_items} items")
    if counts_N is None:
        counts_N = np.bincount(set_items_S, minlength=num_items)
    set_S = np.repeat(np.arange(sizes.size), sizes)
    order = np.lexsort((set_items_S, counts_N[set_items_S], set_S))
    items, owner = set_items_S[order], set_S[order]
    key = np.sort(owner * np.int64(max(num_items, 1)) + items)
    if (np.diff(key) == 0).any():
        raise GraceError("stored sums: a set holds an item twice")
    is_home = np.zeros(items.size, bool)
    is_home[set_indptr_R1[:-1]] = True
    homes_R = items[is_home]
    rows_R = np.argsort(homes_R, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes - 1)])
    others = items[~is_home]
    others_indptr = np.concatenate([[0], np.cumsum(sizes[rows_R] - 1)])
    source = np.repeat(starts[rows_R] - others_indptr[:-1], sizes[rows_R] - 1)
    carried_N = np.bincount(homes_R, minlength=num_items)
    return SetCode(
        np.concatenate([[0], np.cumsum(carried_N)]).astype(np.int32),
        rows_R.astype(np.int32),
        others_indptr.astype(np.int32),
        others[source + np.arange(others.size)].astype(np.int32),
    )
