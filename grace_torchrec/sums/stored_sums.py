"""StoredSums: which groups of items have their sum stored, and how ids find it.

Flow: grouping -> *StoredSums* -> rewriting, building of rows, plans.
Shapes: N items, R stored rows (sums), R1 = R + 1, S items of all sets together.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels.reference import SLOT_BITS
from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import (
    ClusterCode,
    cluster_code,
    cluster_sets,
    num_sums,
)


@dataclass(frozen=True, eq=False)
class StoredSums:
    """Stored row ``j`` is the sum of the rows ``set_items_S[set_indptr_R1[j]:set_indptr_R1[j + 1]]``.

    In rewritten bags a stored row has the id ``num_items + j``; ids below are plain rows.

    Attributes:
        num_items: Rows N of the original table.
        set_indptr_R1: int64 ``[R + 1]``; sets in order of value.
        set_items_S: int64 item ids; every set has two or more distinct items.
        code: How a bag finds its sums.
    """

    num_items: int
    set_indptr_R1: npt.NDArray[np.int64]
    set_items_S: npt.NDArray[np.int64]
    code: ClusterCode

    def __post_init__(self) -> None:
        """Check sizes and ranges once."""
        if (
            self.set_indptr_R1.size < 1
            or self.set_indptr_R1[0] != 0
            or self.set_indptr_R1[-1] != self.set_items_S.size
        ):
            raise GraceError("stored sums: indptr does not cover the items")
        if self.num_sums and np.diff(self.set_indptr_R1).min() < 2:
            raise GraceError("stored sums: a set has fewer than two items")
        if (
            self.set_items_S.size
            and not 0 <= self.set_items_S.min() <= self.set_items_S.max() < self.num_items
        ):
            raise GraceError(f"stored sums: an item is outside 0..{self.num_items - 1}")
        if self.code.item_code_N.shape != (self.num_items,):
            raise GraceError(
                f"stored sums: the code has {self.code.item_code_N.shape}, expected {self.num_items} items"
            )
        last_block = int(self.code.item_code_N.max(initial=-1)) >> SLOT_BITS
        members = (
            int((self.code.item_code_N >> SLOT_BITS == last_block).sum()) if last_block >= 0 else 0
        )
        if last_block >= 0 and last_block + num_sums(members) > self.num_sums:
            raise GraceError(
                f"stored sums: the code names row {last_block + num_sums(members) - 1}, "
                f"there are {self.num_sums}"
            )

    @property
    def num_sums(self) -> int:
        """Stored rows R: what the budget counts."""
        return int(self.set_indptr_R1.size - 1)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the arrays that turn ids into stored rows."""
        return self.code.num_bytes if self.num_sums else 0

    @classmethod
    def from_clusters(
        cls,
        num_items: int,
        cluster_offsets_C1: npt.NDArray[np.int64],
        members_M: npt.NDArray[np.int64],
    ) -> "StoredSums":
        """Store every subset of two or more items of each cluster.

        Raises:
            GraceError: a cluster is too small, too large, or shares an item with another.
        """
        offsets = np.asarray(cluster_offsets_C1, np.int64)
        members = np.asarray(members_M, np.int64)
        code = cluster_code(num_items, offsets, members)
        indptr, items = cluster_sets(offsets, members)
        return cls(num_items, indptr, items, code)

    @classmethod
    def none(cls, num_items: int) -> "StoredSums":
        """No sums at all: the candidate every choice must beat."""
        return cls.from_clusters(num_items, np.zeros(1, np.int64), np.zeros(0, np.int64))
