"""The op ``grace::rewrite_bags`` on a GPU: bags over plain rows and stored rows of each memory.

Flow: ops.py registers this for CUDA, on first use -> clusters.py.  Meaning: reference.py; what a
bag reads is what clusters.py documents (of repeated ids only the last copy joins a sum).

One host sync: the schema returns exactly as many values as there are rows, so the host has to
know their number before it can allocate them. It comes after everything that does not need the
number, once for all features. Bad ids travel as in gpu.py, without a sync.
Derived: where a feature's ids begin is known on the device only, so each feature passes over the
slots of the whole batch; a second sync would save that and cost more.
Shapes: F features, T tables, B bags of each feature (the stride), L ids or slots, R stored rows.
"""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace_kernels.clusters import rewrite_clusters
from grace_kernels.device_rows import RewrittenBags, device_subsets
from grace_kernels.errors import NoCapture, refusal
from grace_kernels.gpu import raise_arrived_bad_ids, send_bad_ids
from grace_kernels.op_inputs import check_bags
from grace_kernels.reference import RAISE, SLOT_BITS

__all__ = ["rewrite_bags_of_features"]

NUM_PARTS = 3  # plain rows, stored rows in HBM, in host memory
CLUSTER, CLUSTER_SUMS = 8, 247  # items of the largest cluster, and the sums it stores


@dataclass(frozen=True, eq=False)
class _Split:
    """The rewritten slots of a feature, by memory.

    Attributes:
        tier_L: int64: which part a slot's row lies in, NUM_PARTS where a slot holds no row.
        rank_L: int64: how many rows of the same part come before it.
        local_L: int64: number of the row inside its part.
        weights_L: float32, or None.
    """

    tier_L: Tensor
    rank_L: Tensor
    local_L: Tensor
    weights_L: Tensor | None


def rewrite_bags_of_features(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    stride: int,
    positions: Sequence[int],
    table_of: Sequence[int],
    num_rows: Sequence[int],
    item_codes: Sequence[Tensor],
    hot_rows: Sequence[Tensor],
    num_hbm_sums: Sequence[int],
    policy: int,
    labels: Sequence[str],
    num_others: int,
    guard: Tensor,
    subset_parts: Sequence[Tensor] | None = None,
    subset_marks: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rewrite every feature into three; arguments and results as ops.py documents them.

    Raises:
        ValueError: a size or type is wrong; under RAISE, ids of an earlier call were outside
            their table.
        NoCapture: the call is recorded in a CUDA graph.
    """
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        raise refusal(
            NoCapture,
            "rewrite_bags: cannot be recorded in a CUDA graph, the host waits for the number of rows; "
            "plan with PlanOptions(lookup='fused'), or leave the collection outside of the graph",
        )
    raise_arrived_bad_ids()
    check_bags(values, offsets, weights, stride, positions)
    subsets = device_subsets(subset_parts, subset_marks, len(item_codes))
    num = len(positions)
    bad_ids = torch.zeros(num, dtype=torch.int32, device=values.device)
    reads = torch.zeros(num, 2, dtype=torch.int64, device=values.device)
    bag_lengths = torch.zeros(num, stride, dtype=torch.int64, device=values.device)
    lengths = reads.new_zeros(num + num_others, NUM_PARTS, max(stride, 1))
    splits = []
    for feature, (position, t) in enumerate(zip(positions, table_of, strict=True)):
        bounds = offsets[position * stride : (position + 1) * stride + 1]
        bags = rewrite_clusters(
            values, bounds, weights, item_codes[t], num_rows=num_rows[t],
            num_sums=_most_sums(num_rows[t], item_codes[t]), policy=policy,
            bad_ids=bad_ids[feature : feature + 1], subsets=subsets[t],
        )  # fmt: skip
        bag_lengths[feature] = bounds.diff()
        reads[feature, 0], reads[feature, 1] = bags.asked_B.sum(), bags.lengths_B.sum()
        splits.append(
            _split(bags, bounds, num_rows[t], num_hbm_sums[t], hot_rows[t], lengths[feature])
        )
    if policy == RAISE:
        send_bad_ids(bad_ids, tuple(labels), tuple(num_rows[t] for t in table_of))
    ends_FP = lengths[:num].sum(2).flatten().cumsum(0)
    total = int(ends_FP[-1]) if num else 0  # the host waits here
    row_ids, row_weights = _packed(splits, ends_FP, total, weights is not None, values.device)
    return row_ids, lengths.flatten(), row_weights, bag_lengths, reads


def _most_sums(num_rows: int, item_code_N: Tensor) -> int:
    """Return a bound of the sums of a table, whose number the schema does not tell."""
    by_type = 1 << (8 * item_code_N.element_size() - 1 - SLOT_BITS)
    return min(-(-num_rows * CLUSTER_SUMS // CLUSTER), by_type + CLUSTER_SUMS)


def _split(
    bags: RewrittenBags,
    bounds_B1: Tensor,
    num_rows: int,
    num_hbm_sums: int,
    hot_row_N: Tensor,
    lengths_PB: Tensor,
) -> _Split:
    """Find the part of every row, and count the rows of each part and bag into ``lengths_PB``."""
    rows_L = bags.rows_L.long()
    num_bags = bounds_B1.numel() - 1
    slot_L = torch.arange(rows_L.numel(), device=rows_L.device)
    bag_L = torch.searchsorted(bounds_B1.long(), slot_L, right=True) - 1
    is_row = (bag_L >= 0) & (bag_L < num_bags) & (rows_L >= 0)  # slots of other features: anything
    is_plain = is_row & (rows_L < num_rows)
    stored_L = rows_L - num_rows
    in_host = stored_L >= num_hbm_sums
    local_L = torch.where(is_plain, rows_L, stored_L - num_hbm_sums * in_host)
    tier_L = torch.where(is_plain, 0, 1 + in_host.long())
    if hot_row_N.numel():
        hot_L = hot_row_N[torch.where(is_plain, rows_L, 0)].long()
        is_hot = is_plain & (hot_L >= 0)
        local_L, tier_L = torch.where(is_hot, hot_L, local_L), torch.where(is_hot, 1, tier_L)
    tier_L = torch.where(is_row, tier_L, NUM_PARTS)
    rank_L = torch.zeros_like(tier_L)
    for part in range(NUM_PARTS):
        here = tier_L == part
        rank_L += here * (here.cumsum(0) - 1)
    if num_bags:
        place = torch.where(is_row, tier_L * num_bags + bag_L, 0)
        lengths_PB.view(-1).index_add_(0, place, is_row.long())
    return _Split(tier_L, rank_L, local_L, bags.weights_L)


def _packed(
    splits: Sequence[_Split],
    ends_FP: Tensor,
    total: int,
    weighted: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the rows of all features, part by part, and their weights (empty without)."""
    # one place more, for the slots that hold no row
    row_ids = torch.zeros(total + 1, dtype=torch.int64, device=device)
    row_weights = torch.zeros(total + 1 if weighted else 1, dtype=torch.float32, device=device)
    begins_FP = torch.cat([ends_FP.new_zeros(1), ends_FP[:-1]]).view(-1, NUM_PARTS)
    for split, begins_P in zip(splits, begins_FP, strict=True):
        begin_L = begins_P[split.tier_L.clamp(max=NUM_PARTS - 1)]
        place_L = torch.where(split.tier_L < NUM_PARTS, begin_L + split.rank_L, total)
        row_ids[place_L] = split.local_L
        if split.weights_L is not None:
            row_weights[place_L] = split.weights_L
    return row_ids[:-1], row_weights[:-1]
