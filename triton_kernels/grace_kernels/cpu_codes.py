"""CPU twins of rewriting with the subset code and the set code, in numba.

Flow: grace_torchrec.sums.rewrite and rewriting ahead call these; meaning in reference_subsets.py
and reference_sets.py.  Subsets go through ``cpu.rewrite_counted``, which takes their arrays packed
(who rewrites many batches packs once); sets have a numba core of their own, _sets.py.  Calling shape as
``cpu.rewrite_counted``: ids, offsets, weights, the arrays of the code, policy.
Shapes: L ids, B bags, B1 = B + 1, N items, E entries, W words, R sets, S other items.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels import _sets
from grace_kernels.bad_rows import BadId
from grace_kernels.cpu import rewrite_counted
from grace_kernels.packed_codes import Ids
from grace_kernels.subset_tables import pack_subsets

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Rewritten = tuple[int, Int64s, Int64s, Floats | None]
EMPTY_I32 = np.zeros(0, np.int32)


def rewrite_subsets(
    ids_L: Ids,
    offsets_B1: Int64s,
    weights_L: Floats | None,
    item_code_N: Ids,
    next_E: npt.NDArray[np.uint8],
    stored_W: npt.NDArray[np.uint64],
    ranks_W: Int32s,
    policy: int,
) -> Rewritten:
    """Numba twin of :func:`grace_kernels.reference_subsets.rewrite_subsets_reference`.

    Args:
        ids_L: int32 or int64, raw, in any order; bag ``b`` is ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        item_code_N: ``start * 8 + slot`` per item, -1 where the item is in no cluster.
        next_E: The part of a mask that is read first.
        stored_W: A bit for each entry.
        ranks_W: Stored entries before each word; the words say it too.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        ids asked for, rows int64, offsets int64 ``[B + 1]`` from 0, weights float32 or None;
        equal to the reference row by row.

    Raises:
        BadId: an id is outside ``0 .. N - 1`` under RAISE.
    """
    tables = pack_subsets(next_E, stored_W)
    return rewrite_counted(
        ids_L, offsets_B1, weights_L, item_code_N, item_code_N.size, policy, tables
    )


def rewrite_sets(
    ids_L: Ids,
    offsets_B1: Int64s,
    weights_L: Floats | None,
    home_indptr_N1: Int32s,
    set_row_R: Int32s,
    others_indptr_R1: Int32s,
    others_S: Int32s,
    policy: int,
) -> Rewritten:
    """Numba twin of :func:`grace_kernels.reference_sets.rewrite_sets_reference`.

    Args:
        ids_L: As in :func:`rewrite_subsets`, as the next two.
        offsets_B1: int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        home_indptr_N1: The sets that each item carries.
        set_row_R: Stored row of each carried set.
        others_indptr_R1: Start of the other items of each carried set.
        others_S: Those items.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        As :func:`rewrite_subsets`.

    Raises:
        BadId: an id is outside ``0 .. N - 1`` under RAISE.
    """
    room = int(offsets_B1[-1] - offsets_B1[0]) + 1
    rows, origin = np.empty(room, np.int64), np.empty(room, np.int64)
    bits = weights_L.view(np.int32) if weights_L is not None else EMPTY_I32
    # zeroed by the system, page by page as they are touched: large tables cost what bags touch
    left_N = np.zeros(home_indptr_N1.size - 1, np.int32)
    wanted_N = np.zeros(home_indptr_N1.size - 1, np.int32)
    outcome = _sets.rewrite_all(
        ids_L, offsets_B1, bits, home_indptr_N1, set_row_R, others_indptr_R1, others_S, policy,
        left_N, wanted_N, rows, origin,
    )  # fmt: skip
    offsets, asked, bad = outcome
    if bad >= 0:
        raise BadId(int(bad), int(ids_L[bad]), offsets_B1, home_indptr_N1.size - 1)
    end = int(offsets[-1])
    weights = None if weights_L is None else weights_L[origin[:end]]
    return int(asked), rows[:end], offsets, weights
