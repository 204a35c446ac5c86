"""Numba core of MERCI's clustering: merges inside partitions, best benefit per row first.

Flow: called by ``merci``.  A partition holds at most 128 items, so the pair table of its clusters
is small and exact: entry (a, b) counts the bags that touch both, which is what merging a and b
saves.
Shapes: N items, P partitions, P1 = P + 1, G pieces (a bag inside a partition), T ids of pieces,
S slots of one partition (a cluster owns the slot of one of its items).
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@jit
def pair_tables(
    part_starts_P1: Int64s, piece_starts_P1: Int64s, piece_indptr: Int64s, slots_T: Int32s
) -> tuple[Int32s, Int64s]:
    """Count for each partition how many pieces hold each pair of slots.

    Returns:
        (tables, starts ``[P + 1]``): table ``p`` is ``tables[starts[p]:starts[p + 1]]``, S x S.
    """
    num_parts = part_starts_P1.size - 1
    starts = np.zeros(num_parts + 1, np.int64)
    for part in range(num_parts):
        size = part_starts_P1[part + 1] - part_starts_P1[part]
        starts[part + 1] = starts[part] + size * size
    tables = np.zeros(starts[-1], np.int32)
    for part in range(num_parts):
        size = part_starts_P1[part + 1] - part_starts_P1[part]
        table = tables[starts[part] : starts[part + 1]]
        for piece in range(piece_starts_P1[part], piece_starts_P1[part + 1]):
            first, last = piece_indptr[piece], piece_indptr[piece + 1]
            for one in range(first, last):
                for other in range(first, one):
                    table[slots_T[one] * size + slots_T[other]] += 1
                    table[slots_T[other] * size + slots_T[one]] += 1
    return tables, starts


@jit
def best_pair(
    table: Int32s, sizes_S: Int32s, most_rows: int, size_limit: int
) -> tuple[float, int, int]:
    """Return (saved reads per stored row, a, b) of the best merge that fits; (0, -1, -1) if none.

    Ties go to the lower a, then the lower b.
    """
    size = sizes_S.size
    best_saved, best_rows, one, other = 0, 1, -1, -1
    for a in range(size):
        if sizes_S[a] == 0:
            continue
        for b in range(a + 1, size):
            saved = table[a * size + b]
            if saved == 0 or sizes_S[b] == 0 or sizes_S[a] + sizes_S[b] > size_limit:
                continue
            rows = ((1 << sizes_S[a]) - 1) * ((1 << sizes_S[b]) - 1)
            if rows <= most_rows and saved * best_rows > best_saved * rows:
                best_saved, best_rows, one, other = saved, rows, a, b
    return best_saved / best_rows, one, other


@jit
def merge(
    table: Int32s,
    sizes_S: Int32s,
    owner_S: Int32s,
    a: int,
    b: int,
    pieces: Int64s,
    slots_T: Int32s,
    seen_S: Int64s,
) -> None:
    """Merge cluster ``b`` into ``a`` and count the pairs of the result anew over the pieces.

    Args:
        table: Pair table of the partition.
        sizes_S: Items of each cluster, 0 for a slot that owns none.
        owner_S: The cluster of each slot.
        a: The slot that owns the result.
        b: The slot that owns nothing afterwards.
        pieces: Start of each piece of the partition in ``slots_T``, and the end of the last.
        slots_T: Slots of all pieces.
        seen_S: Scratch; no entry may be a piece number when the call starts.
    """
    size = sizes_S.size
    sizes_S[a] += sizes_S[b]
    sizes_S[b] = 0
    for slot in range(size):
        if owner_S[slot] == b:
            owner_S[slot] = a
        table[a * size + slot] = 0
    seen_S[:] = -1
    for piece in range(pieces.size - 1):
        touched = False
        for place in range(pieces[piece], pieces[piece + 1]):
            touched |= owner_S[slots_T[place]] == a
        if not touched:
            continue
        for place in range(pieces[piece], pieces[piece + 1]):
            cluster = owner_S[slots_T[place]]
            if seen_S[cluster] != piece:
                seen_S[cluster] = piece
                table[a * size + cluster] += 1
    for slot in range(size):
        table[slot * size + a] = table[a * size + slot]


@jit
def cluster(
    part_starts_P1: Int64s,
    piece_starts_P1: Int64s,
    piece_indptr: Int64s,
    slots_T: Int32s,
    budget: int,
    size_limit: int,
) -> tuple[Int32s, Int32s, int]:
    """Merge the best pair of clusters of all partitions until no merge fits in the budget.

    Args:
        part_starts_P1: Partition ``p`` owns the slots ``part_starts[p]:part_starts[p + 1]``.
        piece_starts_P1: Its pieces.
        piece_indptr: Start of each piece in ``slots_T``.
        slots_T: Slots of each piece, counted from the start of its partition.
        budget: Most stored rows (sums).
        size_limit: Most items of a cluster.

    Returns:
        (owner, size, rows used): for each slot of all partitions the slot, within its
        partition, that owns its cluster, and the items of the cluster that a slot owns.
    """
    tables, table_starts = pair_tables(part_starts_P1, piece_starts_P1, piece_indptr, slots_T)
    num_parts = part_starts_P1.size - 1
    owner = np.empty(part_starts_P1[-1], np.int32)
    sizes = np.ones(part_starts_P1[-1], np.int32)
    best = np.full(num_parts, -1.0)
    pair = np.full((num_parts, 2), -1, np.int64)
    for part in range(num_parts):
        slots = slice(part_starts_P1[part], part_starts_P1[part + 1])
        owner[slots] = np.arange(part_starts_P1[part + 1] - part_starts_P1[part])
        table = tables[table_starts[part] : table_starts[part + 1]]
        best[part], pair[part, 0], pair[part, 1] = best_pair(
            table, sizes[slots], budget, size_limit
        )
    seen = np.empty(128, np.int64)
    used = 0
    while num_parts:
        part = int(np.argmax(best))
        if best[part] <= 0:
            break
        slots = slice(part_starts_P1[part], part_starts_P1[part + 1])
        table = tables[table_starts[part] : table_starts[part + 1]]
        a, b = pair[part]
        rows = ((1 << sizes[slots][a]) - 1) * ((1 << sizes[slots][b]) - 1)
        if used + rows <= budget:
            used += rows
            pieces = piece_indptr[piece_starts_P1[part] : piece_starts_P1[part + 1] + 1]
            merge(
                table, sizes[slots], owner[slots], a, b, pieces, slots_T, seen[: sizes[slots].size]
            )
        best[part], pair[part, 0], pair[part, 1] = best_pair(
            table, sizes[slots], budget - used, size_limit
        )
    return owner, sizes, used
