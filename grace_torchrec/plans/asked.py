"""Asked: the rows of a table that its bags ask for or its sums hold, numbered anew.

Flow: bags and finalists of a table -> *Asked* -> offers over these rows alone -> pricing.  Derived:
of ten million rows bags ask for some hundred thousand, and what it takes to price a size of sums is
then by what bags ask for, not by the rows of the table.  Ids keep their order, so every bag reads
what it would read of the whole table.
Shapes: N rows of the table, A asked rows, L ids, S items of sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grace_torchrec.grouping.candidates import Ranked
from grace_torchrec.grouping.subset_clusters import RankedSubsets
from grace_torchrec.plans.candidates import Bags
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import Code, StoredSums
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Asked:
    """Some rows of a table.

    Attributes:
        item_A: int64 ``[A]``, their ids, rising.
        place_N: int32 ``[N]``, the number of each; what it says of other rows means nothing.
    """

    item_A: npt.NDArray[np.int64]
    place_N: npt.NDArray[np.int32]

    @classmethod
    def of(cls, bags: Bags, sums: Sequence[Ranked]) -> "Asked":
        """List the rows that fit or validation bags ask for, or ``sums`` hold.

        Args:
            bags: Of one table.
            sums: Fitted on it.
        """
        is_asked_N = np.zeros(bags.all.num_items, bool)
        for trace in (bags.fit, bags.validation):
            is_asked_N[trace.ids_L] = True
        for one in sums:
            is_asked_N[_items_of(one)] = True
        item_A = np.flatnonzero(is_asked_N)
        place_N = np.zeros(is_asked_N.size, np.int32)  # most of it stays untouched memory
        place_N[item_A] = np.arange(item_A.size, dtype=np.int32)
        return cls(item_A, place_N)

    def bags(self, bags: Bags) -> Bags:
        """Return the same fit and validation bags, over the asked rows; all bags as they are."""
        return Bags(bags.all, self._trace(bags.fit), self._trace(bags.validation))

    def ranked(self, sums: Ranked) -> Ranked:
        """Return the same sums in order of value, over the asked rows."""
        if isinstance(sums, RankedSubsets):
            members_M = self.place_N[sums.members_M].astype(np.int64)
            return replace(sums, num_items=self.item_A.size, members_M=members_M)
        assert isinstance(sums, StoredSums)
        return self.sums(sums)

    def sums(self, sums: StoredSums) -> StoredSums:
        """Return the same sums over the asked rows."""
        items_S = self.place_N[sums.set_items_S].astype(np.int64)
        return StoredSums(self.item_A.size, sums.set_indptr_R1, items_S, self._code(sums.code))

    def _code(self, code: Code) -> Code:
        """Return what finds the same sums from the asked rows."""
        if isinstance(code, ClusterCode):
            return ClusterCode(code.item_code_N[self.item_A])
        if not isinstance(code, SetCode):
            return replace(code, item_code_N=code.item_code_N[self.item_A])
        starts_A1 = np.append(code.home_indptr_N1[self.item_A], code.home_indptr_N1[-1])
        others_S = self.place_N[code.others_S]
        return SetCode(starts_A1, code.set_row_R, code.others_indptr_R1, others_S)

    def _trace(self, trace: Trace) -> Trace:
        """Number the ids of a trace anew."""
        ids_L = self.place_N[trace.ids_L]
        return Trace(trace.offsets_B1, ids_L, self.item_A.size, trace.weights_L)


def _items_of(sums: Ranked) -> npt.NDArray[np.int64]:
    """Return the items of all sums, in any order."""
    if isinstance(sums, RankedSubsets):
        return sums.members_M
    assert isinstance(sums, StoredSums)
    return sums.set_items_S
