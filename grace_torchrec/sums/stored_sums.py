"""StoredSums: which groups of items have their sum stored, and how ids find it.

Flow: grouping -> *StoredSums* -> rewriting, building of rows, plans.
Shapes: N items, R stored rows (sums), R1 = R + 1, S items of all sets together.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.sums.clusters import ClusterCode, cluster_code, cluster_sets
from grace_torchrec.sums.covering import check_covers
from grace_torchrec.sums.sets import SetCode, set_code
from grace_torchrec.sums.subsets import SubsetCode, subset_code

Code = ClusterCode | SubsetCode | SetCode


@dataclass(frozen=True, eq=False)
class StoredSums:
    """Stored row ``j`` is the sum of the rows ``set_items_S[set_indptr_R1[j]:set_indptr_R1[j + 1]]``.

    In rewritten bags a stored row has the id ``num_items + j``; ids below are plain rows.

    Attributes:
        num_items: Rows N of the original table.
        set_indptr_R1: int64 ``[R + 1]``; sets in order of value (with a SubsetCode in order of
            its entries).
        set_items_S: int64 item ids; every set has two or more distinct items.
        code: How a bag finds its sums.

    Raises:
        GraceError: sets do not cover the items, hold fewer than two or one outside the table, or
            the code is of other sets.
    """

    num_items: int
    set_indptr_R1: npt.NDArray[np.int64]
    set_items_S: npt.NDArray[np.int64]
    code: Code

    def __post_init__(self) -> None:
        """Check sizes and ranges once."""
        check_covers("set_indptr", self.set_indptr_R1, "items", self.set_items_S.size)
        if self.num_sums and np.diff(self.set_indptr_R1).min() < 2:
            raise GraceError("stored sums: a set has fewer than two items")
        if (
            self.set_items_S.size
            and not 0 <= self.set_items_S.min() <= self.set_items_S.max() < self.num_items
        ):
            raise GraceError(f"stored sums: an item is outside 0..{self.num_items - 1}")
        self.code.check(self.num_items, self.num_sums)

    @property
    def num_sums(self) -> int:
        """Stored rows R: what the budget counts."""
        return int(self.set_indptr_R1.size - 1)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the arrays that turn ids into stored rows."""
        return self.code.num_bytes if self.num_sums else 0

    def metadata_bytes_of(self, num_rows: int) -> int:
        """Bytes of these arrays for a table of ``num_rows`` rows, those past N in no sum."""
        further = max(num_rows - self.num_items, 0) * self.code.item_bytes
        return self.metadata_bytes + further if self.num_sums else 0

    @classmethod
    def from_clusters(
        cls,
        num_items: int,
        cluster_offsets_C1: npt.NDArray[np.int64],
        members_M: npt.NDArray[np.int64],
    ) -> "StoredSums":
        """Store every subset of two or more items of each cluster.

        Raises:
            GraceError: offsets do not cover the members, or a cluster is too small, too large, or
                shares an item with another.
        """
        offsets = np.asarray(cluster_offsets_C1, np.int64)
        members = np.asarray(members_M, np.int64)
        code = cluster_code(num_items, offsets, members)
        indptr, items = cluster_sets(offsets, members)
        return cls(num_items, indptr, items, code)

    @classmethod
    def from_subsets(
        cls,
        num_items: int,
        cluster_offsets_C1: npt.NDArray[np.int64],
        members_M: npt.NDArray[np.int64],
        entries_R: npt.NDArray[np.int64],
        parts_E: npt.NDArray[np.uint8] | None = None,
    ) -> "StoredSums":
        """Store chosen subsets of clusters, see :func:`grace_torchrec.sums.subsets.subset_code`.

        Raises:
            GraceError: a cluster, an entry or a part is not as it must be.
        """
        offsets, members = np.asarray(cluster_offsets_C1, np.int64), np.asarray(members_M, np.int64)
        code, indptr, items = subset_code(
            num_items, offsets, members, np.asarray(entries_R, np.int64), parts_E
        )
        return cls(num_items, indptr, items, code)

    @classmethod
    def from_sets(
        cls,
        num_items: int,
        set_indptr_R1: npt.NDArray[np.int64],
        set_items_S: npt.NDArray[np.int64],
        counts_N: npt.NDArray[np.int64] | None = None,
    ) -> "StoredSums":
        """Store any sets, in order of value; they may overlap.

        Args:
            num_items: Rows N of the table.
            set_indptr_R1: CSR of the sets.
            set_items_S: Item ids.
            counts_N: How often each item is requested: a set hangs on its rarest item.

        Raises:
            GraceError: sets do not cover the items, have fewer than two or repeat one, or an id is
                outside.
        """
        indptr, items = np.asarray(set_indptr_R1, np.int64), np.asarray(set_items_S, np.int64)
        return cls(num_items, indptr, items, set_code(num_items, indptr, items, counts_N))

    def first(self, budget: int) -> "StoredSums":
        """Return the first sums, the best ones, as many as fit in ``budget``.

        Clusters are kept or left out whole. Subset codes keep no order of value: choose them
        for the budget (``grouping.subset_clusters.RankedSubsets.first``).

        Raises:
            NotSupported: the code is a SubsetCode.
        """
        if budget >= self.num_sums:
            return self
        if isinstance(self.code, SubsetCode):
            raise NotSupported(
                "stored sums: rows of a subset code stand in the order of the code; "
                "choose subsets for the smaller budget"
            )
        code, kept = self.code.first(max(budget, 0))
        indptr = self.set_indptr_R1[: kept + 1]
        return StoredSums(self.num_items, indptr, self.set_items_S[: indptr[-1]], code)

    @classmethod
    def none(cls, num_items: int) -> "StoredSums":
        """No sums at all: the candidate every choice must beat."""
        return cls.from_clusters(num_items, np.zeros(1, np.int64), np.zeros(0, np.int64))
