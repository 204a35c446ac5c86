"""Triton rewriting with a subset code: the mask of a cluster is split, an item a lane.

Flow: clusters.py joins the masks of a piece and asks which part each item stands in.
Meaning: ``rewrite_subsets_reference``; numba twin: _merge_subsets.py.

Derived: parts are as many rows as lanes have to emit, at most one an item, so the lane of a part's
lowest item emits it and nothing moves between lanes. All items of a cluster walk down the
same entries, and one load serves them; a lane that knows its part waits for the slowest.
Single bytes are not loaded: four entries share a word.
Shapes: E entries, W = ceil(E / 32) words of marks.
"""

# mypy: disable-error-code="no-untyped-def, import-untyped"

import triton
import triton.language as tl

__all__ = ["own_part", "rank_of_part"]


@triton.jit
def own_part(parts_ptr, start, mask, bit):
    """Return the part of ``mask`` that holds the item ``bit``, 0 where the mask is 0.

    ``parts_ptr`` points to words of four entries; a mask of one item is its own part.
    """
    several = (mask & (mask - 1)) != 0
    part = tl.where(several, 0, mask)
    left = tl.where(several, mask, 0)
    while tl.max(left, 0) != 0:
        entry = start + left
        word = tl.load(parts_ptr + (entry >> 2), mask=left != 0, other=0)
        first = (word >> ((entry & 3) << 3).to(tl.int32)) & 255
        mine = (first & bit) != 0
        part = tl.where(mine, first, part)
        # the lowest item is always in the first part: so it ends, whatever a table holds
        left = tl.where(mine, 0, left & ~(first | (left & -left)))
    return part


@triton.jit
def rank_of_part(marks_ptr, start, part, stored):
    """Return the rank of every entry ``start + part`` that is ``stored`` among all stored ones."""
    entry = start + part
    word = tl.load(marks_ptr + (entry >> 5), mask=stored, other=0)
    below = word.to(tl.int32) & ((1 << (entry & 31).to(tl.int32)) - 1)
    bits = below.to(tl.uint32, bitcast=True)
    bits = bits - ((bits >> 1) & 0x55555555)  # how many are set, as LLVM knows it
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    count = (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24
    return (word >> 32) + count.to(tl.int64)
