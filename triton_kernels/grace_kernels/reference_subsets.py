"""The meaning of rewriting with a subset code, in plain loops: what the fast path is tested against.

Flow: raw bags -> *rewrite* (ids to rows).  Derived from GRACE's clusters: only the useful subsets
of a cluster own a row, so that clusters can be large; a table says how any mask splits into them.
The masks of a cluster of k items are the entries ``start .. start + 2**k - 1`` of one common
table; an entry that is stored owns the row that is its rank among all stored entries.
Shapes: L ids, B bags, B1 = B + 1, N items, E entries, W words of 64 entries.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grace_kernels.reference import (
    MAX_LAYERS,
    SLOT_BITS,
    apply_bad_id_policy_reference,
    pool_rows_reference,
)

WORD_BITS = 64
BAD_ID = -2  # an id that reads row 0, as ``apply_bad_id_policy_reference`` marks it


@dataclass
class _Layer:
    """The items of a bag that share a cluster, a weight and a layer: slot -> position."""

    start: int
    positions: dict[int, int] = field(default_factory=dict)


def rewrite_subsets_reference(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    item_code_N: Tensor,
    next_E: Tensor,
    stored_W: Tensor,
    ranks_W: Tensor,
    policy: int,
) -> tuple[int, Tensor, Tensor, Tensor | None]:
    """Replace items that share a cluster in a bag by the stored rows of their subsets.

    Copy ``l`` of an item joins layer ``l`` of its cluster; copies past ``MAX_LAYERS`` and items
    of different weight (compared bit by bit) share no row. Of each bag the ids in no cluster
    come first, then the layers of one item, then the others, each split as the table says; both
    in order of their first item.

    Args:
        ids_L: int32 or int64 ``[L]``, raw; -1 is padding.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        item_code_N: ``start * 8 + slot`` per item, -1 where the item is in no cluster.
        next_E: uint8: the part of a mask that is read first, a stored subset or one item.
        stored_W: int64, bit ``e % 64`` of word ``e // 64`` is set where entry ``e`` is stored.
        ranks_W: int32, stored entries before each word.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        ids asked for, rows int64, offsets int64 ``[B + 1]``, weights float32 or None: ids below
        N are plain rows, ``N + j`` is stored row ``j``.

    Raises:
        ValueError: an id is outside ``0 .. N - 1`` under RAISE.
    """
    num_items = item_code_N.numel()
    ids_L, offsets_B1, weights_L = apply_bad_id_policy_reference(
        ids_L, offsets_B1, weights_L, num_items, policy
    )
    rows: list[int] = []
    origins: list[int] = []
    ends = [0]
    for begin, end in zip(offsets_B1[:-1].tolist(), offsets_B1[1:].tolist(), strict=True):
        layers: list[_Layer] = []
        of_cluster: dict[tuple[int, int], list[_Layer]] = {}
        for position in range(begin, end):
            item = int(ids_L[position])
            code = -1 if item == BAD_ID else int(item_code_N[item])
            if code < 0:
                rows.append(max(item, 0))
                origins.append(position)
                continue
            start, slot = code >> SLOT_BITS, code & 7
            bits = 0 if weights_L is None else int(weights_L[position].view(torch.int32))
            mine = of_cluster.setdefault((start, bits), [])
            layer = next((one for one in mine if slot not in one.positions), None)
            if layer is None:
                layer = _Layer(start)
                layers.append(layer)
                if len(mine) < MAX_LAYERS:
                    mine.append(layer)
            layer.positions[slot] = position
        for layer in sorted(layers, key=lambda one: len(one.positions) > 1):
            mask = sum(1 << slot for slot in layer.positions)
            while mask:
                part = int(next_E[layer.start + mask])
                position = layer.positions[(part & -part).bit_length() - 1]
                row = stored_row_reference(layer.start + part, stored_W, ranks_W)
                rows.append(int(ids_L[position]) if part & (part - 1) == 0 else num_items + row)
                origins.append(position)
                mask ^= part
        ends.append(len(rows))
    return (
        ids_L.numel(),
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(ends, dtype=torch.int64),
        None if weights_L is None else weights_L[torch.tensor(origins, dtype=torch.int64)],
    )


def pooled_subsets_reference(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    rows_ND: Tensor,
    stored_RD: Tensor,
    code: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    mean: bool,
    policy: int,
) -> tuple[Tensor, int]:
    """Clean, rewrite and pool the bags of one feature of a table with a subset code.

    Args:
        ids_L: As in :func:`rewrite_subsets_reference`, as the next two.
        offsets_B1: int64 ``[B + 1]``, from 0.
        weights_L: float32 ``[L]`` or None.
        rows_ND: Original rows.
        stored_RD: Stored rows in the order of the code.
        code: ``item_code_N``, ``next_E``, ``stored_W`` and ``ranks_W``.
        mean: Divide by the length of the bag as it was given, padding included.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        float32 ``[B, D]`` and the number of rows read.
    """
    _, rows, ends, weights = rewrite_subsets_reference(ids_L, offsets_B1, weights_L, *code, policy)
    everything = torch.cat([rows_ND.float(), stored_RD.float()])
    pooled = pool_rows_reference(everything, rows, ends, weights)
    if mean:
        pooled = pooled / offsets_B1.diff().clamp(min=1)[:, None]
    return pooled, rows.numel()


def stored_row_reference(entry: int, stored_W: Tensor, ranks_W: Tensor) -> int:
    """Return the rank of ``entry`` among all stored entries: the row it owns if it is stored."""
    word = int(stored_W[entry // WORD_BITS]) & (2**WORD_BITS - 1)
    below = word & ((1 << entry % WORD_BITS) - 1)
    return int(ranks_W[entry // WORD_BITS]) + int(below.bit_count())
