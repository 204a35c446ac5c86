"""Held: everything that a served table keeps beside its original rows, and its bytes.

Flow: StoredSums + Placement -> *Extra* in the plan; *code_arrays*, *stored_sets* in the module, which
keeps what is counted here.  Three kinds: stored rows; metadata, the arrays that turn ids into stored rows; and
what is kept in host memory and not read to serve plain lookups there: the sets behind the stored
rows (they are compared, rebuilt and published from them) and what CPU kernels pack of the codes.
Shapes: N items, R stored rows of one memory, R1 = R + 1, S items of their sets.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from grace_kernels.packed_codes import ITEMS_A_WORD
from grace_kernels.subset_tables import pack_subsets
from grace_sharding.placement import Placement
from grace_torchrec.sums.arrays import SET_ARRAYS
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums

if TYPE_CHECKING:
    from grace_torchrec.plans.table_plan import TablePlan

Int64s = npt.NDArray[np.int64]
INDPTR_BYTES = 8
WORD_BYTES = 8  # of grace_kernels.packed_codes


@dataclass(frozen=True)
class Extra:
    """What one table holds over its stock table.

    Attributes:
        rows: Stored sums and hot rows.
        row_bytes: Bytes of these rows.
        metadata_bytes: Bytes of the code and of the map of hot rows.
        kept_bytes: Bytes of the sets behind the rows, and of codes as CPU kernels pack them.
    """

    rows: int
    row_bytes: int
    metadata_bytes: int
    kept_bytes: int

    @property
    def bytes(self) -> int:
        """Every byte over the stock table."""
        return self.row_bytes + self.metadata_bytes + self.kept_bytes


def extra_of(sums: StoredSums | None, placement: Placement) -> Extra:
    """Count what a table holds.

    Args:
        sums: Its sums, None where it is left stock.
        placement: Where they lie.
    """
    if sums is None:
        return Extra(0, 0, 0, 0)
    rows = sums.num_sums + int(placement.hot_items.size)
    metadata = sums.metadata_bytes + placement.hot_map_bytes
    kept = _set_bytes(sums, placement) + _packed_bytes(sums)
    return Extra(rows, rows * placement.row_bytes, metadata, kept)


def stored_sets(
    plan: "TablePlan",
) -> dict[str, tuple[Int64s, npt.NDArray[np.integer]]]:
    """Return the sets behind the stored rows of each tier: sums, then hot rows as sets of one.

    Returns:
        tier name -> (int64 indptr ``[R + 1]``, items int32, int64 where rows need it); tiers without
        rows are left out.
    """
    split = plan.placement.num_hbm_sums
    indptr = plan.sums.set_indptr_R1 if plan.sums is not None else np.zeros(1, np.int64)
    items = plan.sums.set_items_S if plan.sums is not None else np.zeros(0, np.int64)
    hot = plan.placement.hot_items
    hbm_indptr = np.concatenate([indptr[: split + 1], indptr[split] + 1 + np.arange(hot.size)])
    sets = {
        "hbm": (hbm_indptr, np.concatenate([items[: indptr[split]], hot])),
        "host": (indptr[split:] - indptr[split], items[indptr[split] :]),
    }
    narrow = np.int32 if _item_bytes(plan.spec.num_rows) == 4 else np.int64
    return {tier: (p, i.astype(narrow)) for tier, (p, i) in sets.items() if p.size > 1}


def code_arrays(sums: StoredSums | None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a code that serving keeps, as the kernels read them.

    Args:
        sums: None, or without sums: one empty ``item_code``.

    Returns:
        ``item_code``, with subsets also ``subset_part`` and ``subset_mark``; or the arrays of a set
        code, see ``SET_ARRAYS``.
    """
    if sums is None or not sums.num_sums:
        return {"item_code": np.zeros(0, np.int32)}
    code = sums.code
    if isinstance(code, SetCode):
        arrays = (getattr(code, field.name) for field in fields(code))
        return dict(zip(SET_ARRAYS, arrays, strict=True))
    if isinstance(code, ClusterCode):
        return {"item_code": code.item_code_N}
    tables = pack_subsets(code.next_E, code.stored_W)
    return {
        "item_code": code.item_code_N,
        "subset_part": tables.next_E,
        "subset_mark": tables.marks_W,
    }


def _set_bytes(sums: StoredSums, placement: Placement) -> int:
    """Bytes of what :func:`stored_sets` returns."""
    hot = int(placement.hot_items.size)
    hbm_rows = placement.num_hbm_sums + hot
    host_rows = sums.num_sums - placement.num_hbm_sums
    indptr = sum(rows + 1 for rows in (hbm_rows, host_rows) if rows)
    items = int(sums.set_items_S.size) + hot
    return indptr * INDPTR_BYTES + items * _item_bytes(sums.num_items)


def _packed_bytes(sums: StoredSums) -> int:
    """Bytes that ``grace_kernels.packed_codes.pack_codes`` takes; a set code is not packed."""
    if not sums.num_sums or isinstance(sums.code, SetCode):
        return 0
    code_N = sums.code.item_code_N
    words = -(-code_N.size // ITEMS_A_WORD)
    return words * WORD_BYTES + int((code_N >= 0).sum()) * code_N.itemsize


def _item_bytes(num_rows: int) -> int:
    """Bytes of an item of a set."""
    return 4 if num_rows <= 2**31 else 8
