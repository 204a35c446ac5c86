"""Asked: the rows of a table that its bags ask for, numbered anew.

Flow: bags of a table -> *Asked* -> bags over these rows alone -> candidates, offers, pricing -> sums
over the whole table again.  Derived: of a hundred million rows bags ask for some hundred thousand,
and what it takes to choose sums is then by what bags ask for, not by the rows of the table.  Ids keep
their order, so ties fall as they would and every bag reads what it would read of the whole table.
Shapes: N rows of the table, A asked rows, L ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import Code, StoredSums
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Asked:
    """Some rows of a table.

    Attributes:
        num_rows: Rows N of the table.
        item_A: int64 ``[A]``, the ids of these rows, rising.
    """

    num_rows: int
    item_A: npt.NDArray[np.int64]

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> "Asked":
        """List the rows that some bags ask for.

        Args:
            traces: Of one table, one or more.

        >>> Asked.of([Trace.from_bags([[7, 3], [7]], 100)]).item_A.tolist()
        [3, 7]
        """
        found = [np.unique(trace.ids_L) for trace in traces]
        return cls(traces[0].num_items, np.unique(np.concatenate(found)).astype(np.int64))

    @property
    def is_all(self) -> bool:
        """Whether every row is asked for: then nothing is numbered anew."""
        return self.item_A.size == self.num_rows

    def trace(self, trace: Trace) -> Trace:
        """Return the same bags over the asked rows."""
        if self.is_all:
            return trace
        return replace(trace, ids_L=self._places(trace.ids_L), num_items=self.item_A.size)

    def whole(self, sums: StoredSums) -> StoredSums:
        """Return sums over the asked rows as sums over the table.

        Raises:
            GraceError: a set code cannot number so many rows.
        """
        if self.is_all:
            return sums
        items_S = self.item_A[sums.set_items_S]
        return StoredSums(self.num_rows, sums.set_indptr_R1, items_S, self._code(sums.code))

    def _places(self, ids_L: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the numbers of asked ids."""
        if self.num_rows > ids_L.size:
            return np.searchsorted(self.item_A, ids_L).astype(np.int64, copy=False)
        place_N = np.zeros(self.num_rows, np.int64)  # no longer than the ids: faster than searching
        place_N[self.item_A] = np.arange(self.item_A.size)
        places_L: npt.NDArray[np.int64] = place_N[ids_L]
        return places_L

    def _code(self, code: Code) -> Code:
        """Return what finds the same sums from the ids of the table."""
        if not isinstance(code, SetCode):
            code_N = np.full(self.num_rows, -1, code.item_code_N.dtype)
            code_N[self.item_A] = code.item_code_N
            return (
                ClusterCode(code_N)
                if isinstance(code, ClusterCode)
                else replace(code, item_code_N=code_N)
            )
        if self.num_rows >= 2**31:
            raise GraceError(
                f"stored sums: sets number rows in 31 bits, the table has {self.num_rows:,}; plan it "
                "without the method 'set_merge'"
            )
        indptr_N1 = np.zeros(self.num_rows + 1, np.int32)
        indptr_N1[self.item_A + 1] = np.diff(code.home_indptr_N1)
        np.cumsum(indptr_N1, out=indptr_N1)
        others_S = self.item_A[code.others_S].astype(np.int32)
        return SetCode(indptr_N1, code.set_row_R, code.others_indptr_R1, others_S)
