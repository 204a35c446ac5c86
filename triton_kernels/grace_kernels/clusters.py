"""Triton rewriting: the items of a bag that share a cluster become one row, a program per bag.

Flow: raw bags -> *rewrite_clusters* -> pooling.py.  Meaning: ``rewrite_clusters_reference``, with
subset tables ``rewrite_subsets_reference`` (subsets.py splits the masks); numba twins: _merge.py
and _merge_subsets.py.  Source: GRACE, ASPLOS'23 (an address is arithmetic on the items).

Derived: ids arrive in any order. Per piece of N ids the codes are gathered, packed with the
position of the id into one integer, sorted in registers, and the masks of a cluster are joined
by one scan; nothing is looked up per pair and nothing loops over a cluster. A bag longer than N
is cut in pieces, which merges less and stays exact. Weights merge only where their bits are
equal: their rank in the bag, found by a first sort, becomes part of the cluster.

Derived, and different from the CPU: only the last copy of a repeated id joins a sum, earlier
copies read their own row. The law holds (each copy is used once), but bags full of repeats read
more rows than the layers of the reference. Order inside a bag: sums and clustered items by
cluster, then the other ids; without codes as given.

``rewrite_piece`` is one function of a page: all that it sorts and scans stays in the registers of one
program from its first step to its last.

No host sync: rows stay in the bag's own slots, the tail is padded with -1, and bad ids under
RAISE are counted on the device (``raise_bad_ids`` of pieces.py reads them at the next sync).

Shapes: L ids, B bags, B1 = B + 1, N items of the table or lanes of a piece, R stored rows.
"""

# mypy: disable-error-code="no-untyped-def, import-untyped"

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace_kernels.device_rows import DeviceSubsets, RewrittenBags
from grace_kernels.pieces import check_bags, is_narrow, piece_warps
from grace_kernels.reference import RAISE, ZERO_ROW
from grace_kernels.subsets import own_part, rank_of_part

__all__ = ["rewrite_clusters"]

_RAISE, _ZERO_ROW = tl.constexpr(RAISE), tl.constexpr(ZERO_ROW)


@triton.jit
def _join_masks(left, right):
    """Join two neighbours ``block << 8 | mask`` of a sorted piece: masks of one block unite."""
    return right | tl.where((left >> 8) == (right >> 8), left, 0)


@triton.jit
def _order_by_weight(group, bits, LOG: tl.constexpr, LIMIT: tl.constexpr):
    """Return the ids in order of weight bits: (group with the rank of its weight, position)."""
    lane = tl.arange(0, 1 << LOG)
    order = tl.sort((bits.to(tl.int64) << LOG) | lane)
    before = tl.gather(order, tl.maximum(lane - 1, 0), 0)
    rank = tl.cumsum(((order >> LOG) != (before >> LOG)).to(tl.int32), 0)
    position = (order & ((1 << LOG) - 1)).to(tl.int32)
    group = tl.gather(group, position, 0)
    block = group >> 3
    block = (block << LOG) | tl.where(block < LIMIT, rank, 0)
    return (block << 3) | (group & 7), position


@triton.jit
def rewrite_piece(
    ids_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, begin, count, num_rows,
    LOG: tl.constexpr, NARROW: tl.constexpr, POLICY: tl.constexpr,
    WEIGHTED: tl.constexpr, CODED: tl.constexpr, SUBSETS: tl.constexpr,
):  # fmt: skip
    """Rewrite ``count`` ids (at most ``1 << LOG``) from ``begin`` on.

    Returns per lane: is a row emitted, the row, the position its weight comes from; and two
    numbers: ids asked for, bad ids.
    """
    lane = tl.arange(0, 1 << LOG)
    item = tl.load(ids_ptr + begin + lane, mask=lane < count, other=-1).to(tl.int64)
    good = (item >= 0) & (item < num_rows)
    bad = (item != -1) & (good == 0)
    taken = good
    if POLICY == _ZERO_ROW:
        taken = good | bad
        item = tl.where(bad, 0, item)
    asked = tl.sum(taken.to(tl.int32), 0)
    num_bad = tl.sum(bad.to(tl.int32), 0)
    if CODED:
        # 3 slot bits, LOG position bits, LOG rank bits; two blocks stand for "in no cluster"
        # and "nothing here", above every real one, so these ids sort behind the clusters.
        KEY: tl.constexpr = tl.int32 if NARROW else tl.int64
        BITS: tl.constexpr = (31 if NARROW else 62) - 3 - LOG
        LIMIT: tl.constexpr = (1 << (BITS - (LOG if WEIGHTED else 0))) - 2
        code = tl.load(code_ptr + item, mask=good, other=-1).to(KEY)
        alone = tl.where(taken, LIMIT << 3, (LIMIT + 1) << 3).to(KEY)
        group = tl.where(code >= 0, code, alone)
        position = lane
        if WEIGHTED:
            bits = tl.load(bits_ptr + begin + lane, mask=lane < count, other=0)
            group, position = _order_by_weight(group, bits, LOG, LIMIT)
        key = tl.sort((group << LOG) | position)
        position = (key & ((1 << LOG) - 1)).to(tl.int32)
        group = key >> LOG
        block = group >> 3
        after = tl.gather(group, tl.minimum(lane + 1, (1 << LOG) - 1), 0)
        last = lane == (1 << LOG) - 1
        repeat = (after == group) & (last == 0)
        ends = ((after >> 3) != block) | last
        masks = (block << 8) | (1 << (group & 7))
        joined = tl.associative_scan(masks, 0, _join_masks)
        if SUBSETS:  # every item of a cluster has to know all of them, not the last one alone
            joined |= tl.associative_scan(masks, 0, _join_masks, reverse=True)
        mask = (joined & 255).to(tl.int32)
        if WEIGHTED:
            block = block >> LOG
        clustered = block < LIMIT
        if SUBSETS:
            bit = (1 << (group & 7)).to(tl.int32)
            part = own_part(parts_ptr, block, tl.where(clustered & (repeat == 0), mask, 0), bit)
            emit = (block == LIMIT) | (clustered & (repeat | ((part & -part) == bit)))
            merged = emit & ((part & (part - 1)) != 0)
            row = num_rows + rank_of_part(marks_ptr, block, part, merged)
        else:
            emit = (block == LIMIT) | (clustered & (repeat | ends))
            merged = clustered & ends & ((mask & (mask - 1)) != 0)
            length = (mask.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126  # in bits
            row = block.to(tl.int64) + num_rows + mask - 1 - length
        own = tl.load(ids_ptr + begin + position, mask=emit & (merged == 0), other=0).to(tl.int64)
        own = tl.where((own >= 0) & (own < num_rows), own, 0)
        row = tl.where(merged, row, own)
    else:
        position = lane
        emit = taken
        row = item
    return emit, row, position, asked, num_bad


@triton.jit
def rewrite_bag(
    ids_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, begin, num_ids, num_rows,
    rows_ptr, row_bits_ptr, bad_ptr,
    LOG: tl.constexpr, NARROW: tl.constexpr, POLICY: tl.constexpr,
    WEIGHTED: tl.constexpr, CODED: tl.constexpr, SUBSETS: tl.constexpr,
):  # fmt: skip
    """Rewrite one bag, piece by piece, into its own slots; return (rows, ids asked for)."""
    written = tl.zeros((), tl.int32)
    total = tl.zeros((), tl.int32)
    for first in range(0, num_ids, 1 << LOG):
        emit, row, position, asked, num_bad = rewrite_piece(
            ids_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, begin + first, num_ids - first,
            num_rows, LOG, NARROW, POLICY, WEIGHTED, CODED, SUBSETS,
        )  # fmt: skip
        ones = emit.to(tl.int32)
        slot = begin + written + tl.cumsum(ones, 0) - 1
        tl.store(rows_ptr + slot, row.to(rows_ptr.dtype.element_ty), mask=emit)
        if WEIGHTED:
            bits = tl.load(bits_ptr + begin + first + position, mask=emit)
            tl.store(row_bits_ptr + slot, bits, mask=emit)
        if POLICY == _RAISE:
            tl.atomic_add(bad_ptr, num_bad, mask=num_bad > 0)
        written += tl.sum(ones, 0)
        total += asked
    return written, total


@triton.jit
def rewrite_clusters_kernel(
    ids_ptr, offsets_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, num_rows,
    rows_ptr, row_bits_ptr, lengths_ptr, asked_ptr, bad_ptr,
    LOG: tl.constexpr, NARROW: tl.constexpr, POLICY: tl.constexpr,
    WEIGHTED: tl.constexpr, CODED: tl.constexpr, SUBSETS: tl.constexpr,
):  # fmt: skip
    """Program ``b`` rewrites bag ``b``; weights travel as their bits."""
    bag = tl.program_id(0)
    begin = tl.load(offsets_ptr + bag).to(tl.int64)
    num_ids = (tl.load(offsets_ptr + bag + 1).to(tl.int64) - begin).to(tl.int32)
    written, asked = rewrite_bag(
        ids_ptr, bits_ptr, code_ptr, parts_ptr, marks_ptr, begin, num_ids, num_rows,
        rows_ptr, row_bits_ptr, bad_ptr, LOG, NARROW, POLICY, WEIGHTED, CODED, SUBSETS,
    )  # fmt: skip
    for first in range(0, num_ids, 1 << LOG):
        place = first + tl.arange(0, 1 << LOG)
        tail = (place >= written) & (place < num_ids)
        tl.store(rows_ptr + begin + place, -1, mask=tail)
        if WEIGHTED:
            tl.store(row_bits_ptr + begin + place, 0, mask=tail)
    tl.store(lengths_ptr + bag, written)
    tl.store(asked_ptr + bag, asked)


def rewrite_clusters(
    ids_L: Tensor,
    offsets_B1: Tensor,
    weights_L: Tensor | None,
    item_code_N: Tensor,
    *,
    num_rows: int,
    num_sums: int,
    policy: int,
    bad_ids: Tensor,
    piece: int | None = None,
    subsets: DeviceSubsets | None = None,
) -> RewrittenBags:
    """Rewrite bags on the device of ``ids_L`` without a host sync.

    Args:
        ids_L: int32 or int64, raw ids in any order; -1 is padding.
        offsets_B1: int32 or int64 ``[B + 1]``, may start above 0.
        weights_L: float32 parallel to ``ids_L``, or None.
        item_code_N: int32 or int64 packed codes ``block * 8 + slot``, -1 in no cluster; or
            empty: the ids are only checked.
        num_rows: Rows N of the table.
        num_sums: Stored rows R of all clusters.
        policy: RAISE (bad ids are counted and left out), DROP or ZERO_ROW of reference.py.
        bad_ids: int32 ``[1]``, grows by the number of bad ids under RAISE.
        piece: Ids that are sorted together, a power of two; None: twice the mean length.
        subsets: Where clusters store some of their subsets, what splits their masks; codes are
            then ``start * 8 + slot``.

    Raises:
        ValueError: a type, a size or the piece is not one of the above.
    """
    num_bags, log = check_bags(ids_L, offsets_B1, weights_L, item_code_N, bad_ids, piece)
    num_blocks = num_sums if subsets is None else subsets.num_entries
    parts, marks = (None, None) if subsets is None else subsets.kernel_tensors()
    wide_rows = num_rows + num_sums >= 2**31
    rows = torch.empty_like(ids_L, dtype=torch.int64 if wide_rows else torch.int32)
    lengths = torch.empty(num_bags, dtype=torch.int32, device=ids_L.device)
    asked = torch.empty_like(lengths)
    bits = None if weights_L is None else weights_L.view(torch.int32)
    row_bits = None if bits is None else torch.empty_like(bits)
    if num_bags:
        rewrite_clusters_kernel[(num_bags,)](
            ids_L, offsets_B1, bits, item_code_N, parts, marks, num_rows,
            rows, row_bits, lengths, asked, bad_ids,
            LOG=log, NARROW=is_narrow(log, num_blocks, bits is not None), POLICY=policy,
            WEIGHTED=bits is not None, CODED=item_code_N.numel() > 0, SUBSETS=parts is not None,
            num_warps=piece_warps(1 << log),
        )  # fmt: skip
    weights = None if row_bits is None else row_bits.view(torch.float32)
    return RewrittenBags(rows, lengths, asked, weights)
