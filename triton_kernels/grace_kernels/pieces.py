"""How raw bags are cut in pieces on a device, and what every kernel over raw bags refuses.

Flow: clusters.py and pooling.py call these before a launch; gpu.py reads the counters of bad ids.
Nothing here is read from the device, but by :func:`raise_bad_ids`.
Shapes: L ids, B bags, B1 = B + 1, N items.
"""

import torch
from torch import Tensor

from grace_kernels.errors import ALLOW_BAD_IDS, OutsideTable, refusal
from grace_kernels.reference import SLOT_BITS

LEAST_PIECE, LARGEST_PIECE = 32, 512


def check_bags(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    item_code_N: Tensor,
    bad_ids: Tensor,
    piece: int | None,
) -> tuple[int, int]:
    """Check what every kernel over raw bags takes; return (bags B, log2 of the piece).

    Raises:
        ValueError: as in :func:`rewrite_clusters`.
    """
    for name, tensor in (("ids", ids_L), ("offsets", offsets_B1), ("item codes", item_code_N)):
        if tensor.dtype not in (torch.int32, torch.int64) or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32 or int64, got {tensor.dtype}")
    if weights_L is not None and (
        weights_L.dtype != torch.float32
        or weights_L.shape != ids_L.shape
        or not weights_L.is_contiguous()
    ):
        raise ValueError(f"weights must be contiguous float32 {list(ids_L.shape)}")
    if bad_ids.dtype != torch.int32 or bad_ids.numel() != 1:
        raise ValueError(f"the counter of bad ids must be int32 [1], got {bad_ids.dtype}")
    num_bags = offsets_B1.numel() - 1
    if num_bags < 0:
        raise ValueError("offsets must hold one number more than there are bags, got none")
    piece = piece_ids(ids_L.numel(), num_bags) if piece is None else piece
    if piece not in {1 << log for log in range(5, 10)}:
        raise ValueError(f"a piece holds 32, 64, 128, 256 or 512 ids, got {piece}")
    return num_bags, piece.bit_length() - 1


def piece_ids(num_ids: int, num_bags: int) -> int:
    """Return the ids sorted together: a power of two over twice the mean length of a bag.

    Shapes alone decide, so that no length is read from the device.

    >>> piece_ids(60 * 512, 512), piece_ids(3, 1), piece_ids(5000, 1)
    (128, 32, 512)
    """
    mean = -(-num_ids // max(num_bags, 1))
    return min(max(1 << (2 * mean - 1).bit_length(), LEAST_PIECE), LARGEST_PIECE)


def piece_warps(piece: int) -> int:
    """Return the warps of a program: two ids a lane."""
    return max(1, piece // 64)


def is_narrow(log: int, num_blocks: int, weighted: bool) -> bool:
    """Return whether block, slot and position fit 32 bits: half the work of every exchange.

    Args:
        log: Log2 of the piece.
        num_blocks: Blocks are below it: stored rows of clusters, entries of subset tables.
        weighted: Whether bags carry weights.

    >>> is_narrow(6, 1_000_000, False), is_narrow(6, 5_000_000, False)
    (True, False)
    """
    return not weighted and num_blocks < (1 << (31 - SLOT_BITS - log)) - 2


def raise_bad_ids(bad_ids: Tensor, label: str, num_rows: int) -> None:
    """Read the counter (this waits for the device) and reset it.

    Raises:
        OutsideTable: ids outside the table were met since the last call.
    """
    count = int(bad_ids.item())
    if count:
        bad_ids.zero_()
        raise refusal(
            OutsideTable,
            f"{label}: {count} ids are outside 0..{num_rows - 1}; fix the ids, or {ALLOW_BAD_IDS}",
        )
