"""The meaning of rewriting with a set code, in plain loops: what the fast path is tested against.

Flow: raw bags -> *rewrite* (ids to rows), ahead of serving: finding sets takes probes.
Derived, not in the paper: stored sets may overlap, so a bag must choose among those it holds.
Each set hangs on one of its items (its rarest); a bag looks through what hangs on its own items.
Chosen greedily: a set is better the more reads it saves and the fewer other sets want its items,
price = sum over its items of sqrt(sets of the bag that hold the item) / (items - 1), lowest first
(the classic weight over square root of conflicts of weighted set packing).
Shapes: L ids, B bags, B1 = B + 1, N items, N1 = N + 1, R sets, R1 = R + 1, S other items.
"""

import math
from collections import Counter

import torch
from torch import Tensor

from grace_kernels.reference import apply_bad_id_policy_reference
from grace_kernels.reference_subsets import BAD_ID


def rewrite_sets_reference(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    home_indptr_N1: Tensor,
    set_row_R: Tensor,
    others_indptr_R1: Tensor,
    others_S: Tensor,
    policy: int,
) -> tuple[int, Tensor, Tensor, Tensor | None]:
    """Replace items of a bag by the stored rows of sets that the bag holds.

    A set is read as often as copies of all its items are left. Items of different weight
    (compared bit by bit) never share a row. Of each bag bad ids that read row 0 come first,
    then for each weight, rising by bit pattern, the sets in the order in which they are chosen
    and the copies that are left in the order of the bag (of an item its first positions).

    Args:
        ids_L: int32 or int64 ``[L]``, raw; -1 is padding.
        offsets_B1: int64 ``[B + 1]``.
        weights_L: float32 ``[L]`` or None.
        home_indptr_N1: int32: item ``i`` carries the sets ``home_indptr[i]:home_indptr[i + 1]``.
        set_row_R: int32, stored row of each carried set.
        others_indptr_R1: int32: the items of a carried set besides the one that carries it.
        others_S: int32 item ids.
        policy: RAISE, DROP or ZERO_ROW of reference.py.

    Returns:
        ids asked for, rows int64, offsets int64 ``[B + 1]``, weights float32 or None: ids below
        N are plain rows, ``N + j`` is stored row ``j``.

    Raises:
        ValueError: an id is outside ``0 .. N - 1`` under RAISE.
    """
    num_items = home_indptr_N1.numel() - 1
    ids_L, offsets_B1, weights_L = apply_bad_id_policy_reference(
        ids_L, offsets_B1, weights_L, num_items, policy
    )
    carried = _carried_sets(home_indptr_N1, set_row_R, others_indptr_R1, others_S)
    rows: list[int] = []
    origins: list[int] = []
    ends = [0]
    for begin, end in zip(offsets_B1[:-1].tolist(), offsets_B1[1:].tolist(), strict=True):
        groups: dict[int, list[int]] = {}
        for position in range(begin, end):
            if int(ids_L[position]) == BAD_ID:
                rows.append(0)
                origins.append(position)
                continue
            bits = 0 if weights_L is None else int(weights_L[position].view(torch.int32))
            groups.setdefault(bits, []).append(position)
        for _, positions in sorted(groups.items()):
            left = Counter(int(ids_L[position]) for position in positions)
            for row in choose_sets_reference(left, carried):
                rows.append(num_items + row)
                origins.append(positions[0])  # all weights of the group are equal
            for position in positions:
                if left[int(ids_L[position])] > 0:
                    left[int(ids_L[position])] -= 1
                    rows.append(int(ids_L[position]))
                    origins.append(position)
        ends.append(len(rows))
    return (
        ids_L.numel(),
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(ends, dtype=torch.int64),
        None if weights_L is None else weights_L[torch.tensor(origins, dtype=torch.int64)],
    )


def choose_sets_reference(
    left: Counter[int], carried: dict[int, list[tuple[int, tuple[int, ...]]]]
) -> list[int]:
    """Choose stored rows for the copies in ``left`` and take their items out of it.

    Args:
        left: Item -> copies.
        carried: Item -> (stored row, items of the set, the carrying one first).

    Returns:
        Rows in the order in which they were chosen; one that is read twice stands twice.
    """
    found = [
        (row, items)
        for item in sorted(left)
        for row, items in carried.get(item, [])
        if all(left[other] > 0 for other in items)
    ]
    wanted = Counter(item for _, items in found for item in items)
    price = {
        row: sum(math.sqrt(wanted[item]) for item in items) / (len(items) - 1)
        for row, items in found
    }
    chosen: list[int] = []
    for row, items in sorted(found, key=lambda one: (price[one[0]], one[0])):
        while all(left[item] > 0 for item in items):
            left.subtract(items)
            chosen.append(row)
    return chosen


def _carried_sets(
    home_indptr_N1: Tensor, set_row_R: Tensor, others_indptr_R1: Tensor, others_S: Tensor
) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    """Return item -> (stored row, items) of the sets that it carries."""
    homes, starts, others = home_indptr_N1.tolist(), others_indptr_R1.tolist(), others_S.tolist()
    return {
        item: [
            (int(set_row_R[at]), (item, *others[starts[at] : starts[at + 1]]))
            for at in range(homes[item], homes[item + 1])
        ]
        for item in range(len(homes) - 1)
        if homes[item + 1] > homes[item]
    }
