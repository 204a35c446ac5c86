"""Rewriting: the bags of a trace with items replaced by the stored rows of their sums.

Flow: (trace, StoredSums) -> *RewrittenBags* -> read counts, plans.  The op is the one that
serves, chosen by the type of the code, so predicted reads are the reads of serving.
The law: the items behind the rows of a rewritten bag are, as a multiset, the items of the bag.
Shapes: B bags, B1 = B + 1, L ids, N items, P rows read.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels.cpu import rewrite_counted
from grace_kernels.cpu_codes import rewrite_sets, rewrite_subsets
from grace_kernels.reference import RAISE
from grace_torchrec.errors import PlanMismatch
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class RewrittenBags:
    """Bag ``b`` reads the rows ``rows[offsets_B1[b]:offsets_B1[b + 1]]``.

    Attributes:
        offsets_B1: int64 ``[B + 1]``.
        rows: int64 ``[P]``: below N a plain row, ``N + j`` stored row ``j``.
        weights: float32 ``[P]``, one for each row, or None.
    """

    offsets_B1: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None = None

    @property
    def num_rows_read(self) -> int:
        """Rows P that these bags read."""
        return int(self.rows.size)


def rewrite(trace: Trace, sums: StoredSums) -> RewrittenBags:
    """Rewrite every bag; ids may come in any order and repeat.

    A repeated id uses each copy once; weighted bags merge items of equal weight only.

    Raises:
        PlanMismatch: the trace holds items that the table of ``sums`` has not.

    >>> sums = StoredSums.from_clusters(4, np.array([0, 2]), np.array([1, 3]))
    >>> rewrite(Trace.from_bags([[3, 0, 1]]), sums).rows.tolist()
    [0, 4]
    """
    if trace.num_items > sums.num_items:
        raise PlanMismatch(
            f"rewrite: the trace is over {trace.num_items} items, the sums over {sums.num_items}; "
            f"fit the sums on this table"
        )
    _, rows, offsets, weights = rewrite_raw(
        trace.ids_L, trace.offsets_B1, trace.weights_L, sums, RAISE
    )
    return RewrittenBags(offsets, rows, weights)


def rewrite_raw(
    ids_L: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    offsets_B1: npt.NDArray[np.int64],
    weights_L: npt.NDArray[np.float32] | None,
    sums: StoredSums,
    policy: int,
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Rewrite raw bags with the op of the code of ``sums``.

    Args:
        ids_L: Raw ids; -1 is padding, others outside the table follow ``policy``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 ``[L]`` or None.
        sums: What is stored.
        policy: RAISE, DROP or ZERO_ROW of ``grace_kernels.reference``.

    Returns:
        ids asked for, rows, offsets ``[B + 1]``, weights or None.

    Raises:
        BadId: an id is outside the table under RAISE.
    """
    code = sums.code
    bags = (ids_L, offsets_B1, weights_L)
    if isinstance(code, ClusterCode):
        return rewrite_counted(*bags, code.item_code_N, sums.num_items, policy)
    if isinstance(code, SubsetCode):
        return rewrite_subsets(
            *bags, code.item_code_N, code.next_E, code.stored_W, code.ranks_W, policy
        )
    return rewrite_sets(
        *bags,
        code.home_indptr_N1,
        code.set_row_R,
        code.others_indptr_R1,
        code.others_S,
        policy,
    )
