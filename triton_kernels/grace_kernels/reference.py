"""The meaning of every op, in plain torch and plain loops: what the fast paths are tested against.

Flow: raw bags -> *check* -> *rewrite* (ids to rows) -> *pool* (rows to sums).
Source: GRACE, ASPLOS'23. Derived: the rule for repeated ids and for weights, from the law that
the multiset of items behind a rewritten bag is the bag.
Shapes: L ids, B bags, B1 = B + 1, N items, R stored rows, D embedding dimension.
"""

import torch
from torch import Tensor

SLOT_BITS = 3  # an item code is block * 8 + slot, -1 for an item in no cluster
MAX_LAYERS = 64  # copies of one id in a bag that may enter sums; further copies read their row
PADDING = -1  # an id that adds nothing, under every policy

RAISE, DROP, ZERO_ROW = 0, 1, 2
BAD_ID_POLICIES = {"raise": RAISE, "drop": DROP, "zero_row": ZERO_ROW}


def rewrite_clusters_reference(
    ids_L: Tensor, offsets_B1: Tensor, weights_L: Tensor | None, item_code_N: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Replace items that share a cluster in a bag by the stored row of their sum.

    Ids arrive in any order and may repeat: copy ``l`` of an item joins layer ``l`` of its
    cluster, so each copy is used once; copies past ``MAX_LAYERS`` read their own row. Items of
    different weight (compared bit by bit) never share a row. Of each bag the ids in no cluster
    come first, then the merged rows in order of their first item.

    Args:
        ids_L: int32 or int64 ``[L]``, each in ``0 .. N - 1``.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        item_code_N: ``block * 8 + slot`` per item, -1 where the item is in no cluster.

    Returns:
        rows int64, offsets int64 ``[B + 1]``, weights float32 or None: ids below N are plain
        rows, ``N + j`` is stored row ``j``.
    """
    num_items = item_code_N.numel()
    rows: list[int] = []
    weights: list[float] = []
    offsets = [0]
    for begin, end in zip(offsets_B1[:-1].tolist(), offsets_B1[1:].tolist(), strict=True):
        layers: dict[tuple[int, int], list[list[int]]] = {}  # (block, weight bits) -> [mask, place]
        codes = {p: int(item_code_N[int(ids_L[p])]) for p in range(begin, end)}
        for p in sorted(codes, key=lambda p: codes[p] >= 0):  # stable: unclustered ids first
            block, bit = codes[p] >> SLOT_BITS, 1 << (codes[p] & 7)
            bits = 0 if weights_L is None else int(weights_L[p].view(torch.int32))
            of_cluster = layers.setdefault((block, bits), []) if codes[p] >= 0 else []
            layer = next((entry for entry in of_cluster if not entry[0] & bit), None)
            if layer is not None:
                layer[0] |= bit
                rows[layer[1]] = num_items + block + layer[0] - 1 - layer[0].bit_length()
                continue
            if codes[p] >= 0 and len(of_cluster) < MAX_LAYERS:
                of_cluster.append([bit, len(rows)])
            rows.append(int(ids_L[p]))
            weights.append(1.0 if weights_L is None else float(weights_L[p]))
        offsets.append(len(rows))
    return (
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(offsets, dtype=torch.int64),
        None if weights_L is None else torch.tensor(weights, dtype=torch.float32),
    )


def apply_bad_id_policy_reference(
    ids_L: Tensor, offsets_B1: Tensor, weights_L: Tensor | None, num_rows: int, policy: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Remove padding and treat ids outside ``0 .. num_rows - 1`` as ``policy`` says.

    ``-1`` is padding: it adds nothing under every policy. ``RAISE`` raises ValueError, ``DROP``
    leaves the id out, ``ZERO_ROW`` reads row 0 instead (and never a sum).

    Returns:
        ids, offsets, weights of the cleaned bags; an id that became row 0 is given as
        ``-2``, so that rewriting cannot take it for a request of item 0.

    Raises:
        ValueError: an id is outside the table under ``RAISE``.
    """
    keep_ids: list[int] = []
    keep: list[int] = []
    offsets = [0]
    for begin, end in zip(offsets_B1[:-1].tolist(), offsets_B1[1:].tolist(), strict=True):
        for position in range(begin, end):
            item = int(ids_L[position])
            inside = 0 <= item < num_rows
            if item == PADDING or (not inside and policy == DROP):
                continue
            if not inside and policy == RAISE:
                raise ValueError(f"id {item} is outside 0..{num_rows - 1}")
            keep_ids.append(item if inside else -2)
            keep.append(position)
        offsets.append(len(keep_ids))
    return (
        torch.tensor(keep_ids, dtype=torch.int64),
        torch.tensor(offsets, dtype=torch.int64),
        None if weights_L is None else weights_L[torch.tensor(keep, dtype=torch.int64)],
    )


def pool_rows_reference(
    rows_ND: Tensor, row_ids_R: Tensor, offsets_B1: Tensor, weights_R: Tensor | None = None
) -> Tensor:
    """Add up ``rows_ND[row_ids_R]`` bag by bag (weighted if weights are given), float32 ``[B, D]``."""
    picked_RD = rows_ND[row_ids_R].float()
    if weights_R is not None:
        picked_RD = picked_RD * weights_R[:, None]
    bags = zip(offsets_B1[:-1].tolist(), offsets_B1[1:].tolist(), strict=True)
    pooled = [picked_RD[begin:end].sum(0) for begin, end in bags]
    return torch.stack(pooled) if pooled else picked_RD.new_zeros(0, rows_ND.shape[1])


def build_rows_reference(rows_ND: Tensor, set_indptr_R1: Tensor, set_items_S: Tensor) -> Tensor:
    """Return the stored rows ``[R, D]``: row ``j`` is the sum of the rows of set ``j``."""
    return pool_rows_reference(rows_ND, set_items_S, set_indptr_R1).to(rows_ND.dtype)


def pooled_lookup_reference(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    rows_ND: Tensor,
    stored_RD: Tensor,
    item_code_N: Tensor | None,
    *,
    mean: bool,
    policy: int,
) -> tuple[Tensor, int]:
    """Clean, rewrite and pool the bags of one feature.

    MEAN divides by the length of the bag as it was given, padding included.

    Returns:
        float32 ``[B, D]`` and the number of rows read.
    """
    num_rows = rows_ND.shape[0]
    ids, offsets, weights = apply_bad_id_policy_reference(
        ids_L, offsets_B1, weights_L, num_rows, policy
    )
    # Item -2 (a bad id that reads row 0) becomes an item of its own, in no cluster.
    everything = torch.cat([rows_ND.float(), rows_ND[:1].float(), stored_RD.float()])
    ids = torch.where(ids == -2, num_rows, ids)
    if item_code_N is None:
        item_code_N = torch.full((num_rows,), -1)
    code = torch.cat([item_code_N.long(), torch.tensor([-1])])
    rows, offsets, weights = rewrite_clusters_reference(ids, offsets, weights, code)
    pooled = pool_rows_reference(everything, rows, offsets, weights)
    if mean:
        pooled = pooled / offsets_B1.diff().clamp(min=1)[:, None]
    return pooled, rows.numel()


def pool_rewritten_reference(
    row_ids_P: Tensor,
    offsets_B1: Tensor,
    weights_P: Tensor | None,
    given_lengths_B: Tensor,
    rows_ND: Tensor,
    stored_RD: Tensor,
    *,
    mean: bool,
) -> Tensor:
    """Pool bags that were rewritten before: row ``r < N`` is plain, ``N + j`` is stored row ``j``.

    MEAN divides by ``given_lengths_B``, the lengths of the bags before they were rewritten.

    Returns:
        float32 ``[B, D]``.

    Raises:
        ValueError: a row is outside ``0 .. N + R - 1``.
    """
    everything = torch.cat([rows_ND.float(), stored_RD.float()])
    outside = (row_ids_P < 0) | (row_ids_P >= everything.shape[0])
    if outside.any():
        raise ValueError(
            f"row {int(row_ids_P[outside][0])} is outside 0..{everything.shape[0] - 1}"
        )
    pooled = pool_rows_reference(everything, row_ids_P, offsets_B1, weights_P)
    return pooled / given_lengths_B.clamp(min=1)[:, None] if mean else pooled
