"""Where the rows and codes of a table lie, as the numba cores of rewriting take it: *Table*.

Flow: table_rows.py and *table_of_row_ids* make it; _split_ids.py, _merge.py and what they call read
it.  A place is an absolute address for the lookup; for rewriting alone it is the row id itself (one
byte a row, plain rows at 0, stored rows at N).
Indices are cast to ``U``: numba then leaves out the wrap-around of negative indices.
"""

# mypy: disable-error-code="call-arg, var-annotated"

from typing import TYPE_CHECKING, Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels._llvm import load_i32

if TYPE_CHECKING:
    from grace_kernels.packed_codes import PackedCodes
    from grace_kernels.subset_tables import SubsetTables

U = np.uintp
NO_SUBSETS = 0, 0

# Where the rows and codes of a table lie: (plain_at, hbm_at, host_at: addresses of the original
# rows and of the stored rows in each tier, num_hbm_sums, row_bytes, num_rows, words_at, codes_at:
# packed codes, words_at 0 without sums, code_bytes, hot_at: int32 per item, the row at hbm_at
# that copies it or -1, 0 without hot rows, parts_at, marks_at: the arrays of subset_tables.py, 0
# where every subset of a cluster is stored).
Table = tuple[int, int, int, int, int, int, int, int, int, int, int, int]
HOT_AT, PARTS_AT, MARKS_AT = 9, 10, 11


@jit
def plain_place(item: Any, table: Any) -> Any:
    """Return where the row of an item lies: a hot row, or its original."""
    plain_at, hbm_at, row_bytes, hot_at = table[0], table[1], table[4], table[9]
    if hot_at != 0:
        hot = load_i32(hot_at + 4 * item)
        if hot >= 0:
            return hbm_at + hot * row_bytes
    return plain_at + item * row_bytes


@jit
def stored_place(row: Any, table: Any) -> Any:
    """Return where stored row ``row`` lies, without a branch on its tier."""
    _, hbm_at, host_at, num_hbm_sums, row_bytes = table[:5]
    in_hbm = (row - num_hbm_sums) >> 63  # -1 or 0
    base = (hbm_at & in_hbm) | ((host_at - num_hbm_sums * row_bytes) & ~in_hbm)
    return base + row * row_bytes


def table_of_row_ids(num_rows: int, codes: "PackedCodes", subsets: "SubsetTables | None") -> Table:
    """Return the ``Table`` for rewriting alone: places are row ids."""
    tables = NO_SUBSETS if subsets is None else subsets.addresses
    return (0, num_rows, num_rows, 1 << 62, 1, num_rows, *codes.addresses, 0, *tables)
