"""Refining sets: the least used ones make room for what merging finds once bags are rewritten.

Flow: (ranked bags, merged sets) -> *StoredSums* with a SetCode.  Derived, not in the paper.
Merging decides once and for all which copy of an item a set takes; the op that serves packs
every bag anew. So after merging the train bags are rewritten as they will be served, the sets
that are read least are dropped, and merging goes on from the rewritten bags.
Also here: filling a budget with sets of two methods.
Shapes: N items, R sets, R1 = R + 1, S items of all sets, T = N + R tokens.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from grace_torchrec.grouping.partners import RankedBags, best_partners, rank_tokens
from grace_torchrec.grouping.set_merge import Rule, merge_tokens, set_partners
from grace_torchrec.sums.count_reads import reads_of
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

Int64s = npt.NDArray[np.int64]
PartnersOf = Callable[[int], int]
DROPPED = 0.3  # share of the sets that are given up; more or further rounds gained nothing


def refine(
    bags: RankedBags,
    sums: StoredSums,
    budget: int,
    rule: Rule,
    partners_of: PartnersOf | None = None,
) -> StoredSums:
    """Replace the least used sets.

    Args:
        bags: The train bags.
        sums: Sets that were merged on them, at most ``budget``.
        budget: Most sums to store.
        rule: What is merged next.
        partners_of: Tokens -> how many partners of each are first candidates; default: by the items.

    Returns:
        At most ``budget`` sums, by falling use on the train bags.
    """
    trace = Trace(bags.offsets_B1, bags.item_of_rank_N[bags.ranks_L], bags.num_items)
    uses_R = _uses(trace, sums)
    kept_R = np.argsort(-uses_R, kind="stable")[: int(sums.num_sums * (1 - DROPPED))]
    kept = _take(sums, np.sort(kept_R), trace)
    rewritten = rewrite(trace, kept)
    num_tokens = kept.num_items + kept.num_sums
    tokens = rank_tokens(rewritten.offsets_B1, rewritten.rows, num_tokens)
    indptr_T1 = np.concatenate([np.arange(kept.num_items), kept.num_items + kept.set_indptr_R1])
    items = np.concatenate([np.arange(kept.num_items), kept.set_items_S])
    by_rank = _rows(indptr_T1, items, tokens.item_of_rank_N)
    count = partners_of(num_tokens) if partners_of else set_partners(kept.num_items)
    partners = best_partners(tokens, count)
    new = merge_tokens(tokens, partners, *by_rank, budget - kept.num_sums, rule)
    both = _join((kept.set_indptr_R1, kept.set_items_S), new)
    found = StoredSums.from_sets(kept.num_items, *both, trace.counts())
    return _take(found, np.argsort(-_uses(trace, found), kind="stable"), trace)


def mix(first: StoredSums, second: StoredSums, budget: int, counts_N: Int64s) -> StoredSums:
    """Store the sets of one method, then those of another until the budget is full.

    Args:
        first: Sums of any code; all of them are stored, up to the budget.
        second: Sums that fill what is left, in their order.
        budget: Most sums to store.
        counts_N: How often each item is requested.
    """
    indptr, items = _join(
        (first.set_indptr_R1, first.set_items_S), (second.set_indptr_R1, second.set_items_S)
    )
    indptr = indptr[: budget + 1]
    return StoredSums.from_sets(first.num_items, indptr, items[: indptr[-1]], counts_N)


def _uses(trace: Trace, sums: StoredSums) -> Int64s:
    """Return how often each stored row is read."""
    bags = rewrite(trace, sums)
    return reads_of(bags, sums.num_items, sums.num_sums, trace.num_ids).stored_reads_R


def _take(sums: StoredSums, order: Int64s, trace: Trace) -> StoredSums:
    """Return the sets ``order`` of ``sums``, in that order."""
    indptr, items = _rows(sums.set_indptr_R1, sums.set_items_S, order)
    return StoredSums.from_sets(sums.num_items, indptr, items, trace.counts())


def _rows(indptr_R1: Int64s, items_S: Int64s, order: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows ``order`` of a CSR."""
    sizes = np.diff(indptr_R1)[order]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    source = np.repeat(indptr_R1[:-1][order] - indptr[:-1], sizes) + np.arange(indptr[-1])
    return indptr, items_S[source]


def _join(first: tuple[Int64s, Int64s], second: tuple[Int64s, Int64s]) -> tuple[Int64s, Int64s]:
    """Return both CSRs one after the other, of equal sets the earlier one only."""
    sizes = np.concatenate([np.diff(first[0]), np.diff(second[0])])
    items = np.concatenate([first[1], second[1]])
    owner = np.repeat(np.arange(sizes.size), sizes)
    slot = np.arange(items.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wide = np.full((sizes.size, int(sizes.max(initial=1))), -1, np.int64)
    order = np.lexsort((items, owner))
    wide[owner, slot] = items[order]
    _, earliest = np.unique(wide, axis=0, return_index=True)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return _rows(indptr, items, np.sort(earliest))
