"""Set merging: the pair of items or sets that is most worth a row becomes a stored set, repeatedly.

Flow: trace -> ranked bags, best partners -> *StoredSums* with a SetCode (bags rewritten ahead).
Derived, not in the paper: byte-pair encoding on bags instead of sequences. Sets may overlap and
grow out of one another; they are stored in the order in which they were made, so the first ones
are the best for a smaller budget.
Shapes: N items, N1 = N + 1, R sets, R1 = R + 1, S items of all sets.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import _set_merge_core, _token_core
from grace_torchrec.grouping._heap_core import HALF, LOWER_HALF
from grace_torchrec.grouping.budgets import check_budget
from grace_torchrec.grouping.partners import (
    LEAST_SUPPORT,
    Partners,
    RankedBags,
    best_partners,
    ranked_bags,
)
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

MAX_SET = 8
FEWEST_PARTNERS, MOST_PARTNERS = 32, 512
PAIRS_KEPT = 1 << 20  # dense tables of few items keep more partners each: they are cheap there
MOST_NEW_PARTNERS = 256


@dataclass(frozen=True)
class Rule:
    """Which candidate is merged next; both terms are derived and were tuned on held-out bags.

    The key of a candidate is ``count + popularity * sqrt(expected) - size_price * (size - 2)``:
    ``count`` bags hold both tokens, ``expected`` would if items were independent. A count is a
    random draw: of two equal low counts the one of frequent items is the safer, by about the
    spread of such counts; a set of many items recurs less than a pair of the same count.

    Attributes:
        popularity: Weight of the spread, 0 or more.
        size_price: Price of each item past the second, in bags, 0 or more.
        max_size: Most items of a set, 2..8.

    Raises:
        GraceError: a value is outside its range.
    """

    popularity: float = 0.3
    size_price: float = 0.3
    max_size: int = MAX_SET

    def __post_init__(self) -> None:
        """Check the ranges once."""
        if not 0 <= self.popularity < float("inf") or not 0 <= self.size_price < float("inf"):
            raise GraceError(
                f"grouping: popularity {self.popularity} and size_price {self.size_price}, "
                f"give numbers of 0 or more"
            )
        if not 2 <= self.max_size <= MAX_SET:
            raise GraceError(f"grouping: max_size {self.max_size}, give 2..{MAX_SET}")


DEFAULT_RULE = Rule()


def fit(trace: Trace, budget: int, seed: int = 0, *, rule: Rule = DEFAULT_RULE) -> StoredSums:
    """Choose sets for ``trace``.

    Args:
        trace: The train bags.
        budget: Most sums to store, 0 or more.
        seed: Taken by every method; this one draws nothing.
        rule: What is merged next.

    Returns:
        At most ``budget`` sums, in the order in which they were made.

    Raises:
        GraceError: an argument is outside its range.

    >>> sums = fit(Trace.from_bags([[0, 1, 2], [0, 1], [2, 3], [1, 0]]), 4)
    >>> sums.set_items_S.tolist()
    [0, 1]
    """
    check_budget(budget)
    bags = ranked_bags(trace)
    return merge_sets(bags, best_partners(bags, set_partners(bags.num_items)), budget, rule)


def set_partners(num_items: int) -> int:
    """Return how many partners of each item are first candidates.

    >>> set_partners(3_706), set_partners(1_000_000)
    (282, 32)
    """
    return min(max(PAIRS_KEPT // max(num_items, 1), FEWEST_PARTNERS), MOST_PARTNERS)


def merge_sets(
    bags: RankedBags, partners: Partners, budget: int, rule: Rule = DEFAULT_RULE
) -> StoredSums:
    """Merge on counted bags; see :func:`fit` for the result."""
    indptr_N1, ranks = np.arange(bags.num_items + 1), np.arange(bags.num_items)
    indptr, ranks = merge_tokens(bags, partners, indptr_N1, ranks, budget, rule)
    counts_N = np.empty(bags.num_items, np.int64)
    counts_N[bags.item_of_rank_N] = np.diff(bags.indptr_N1)
    return StoredSums.from_sets(bags.num_items, indptr, bags.item_of_rank_N[ranks], counts_N)


def merge_tokens(
    bags: RankedBags,
    partners: Partners,
    indptr_N1: npt.NDArray[np.int64],
    items_S: npt.NDArray[np.int64],
    budget: int,
    rule: Rule,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Merge tokens that may stand for several items already.

    Args:
        bags: Bags of tokens.
        partners: Their first candidates.
        indptr_N1: CSR of the items that each token stands for.
        items_S: Those items.
        budget: Most merges.
        rule: What is merged next.

    Returns:
        CSR of the made sets in order: (indptr ``[R + 1]``, items).
    """
    made, _ = _set_merge_core.merge(
        bags.offsets_B1,
        bags.ranks_L,
        bags.indptr_N1,
        bags.bags_L,
        partners.partners_NK,
        partners.counts_NK,
        np.diff(indptr_N1).astype(np.int32),
        min(budget, bags.ranks_L.size),  # every merge takes an id out of a bag
        rule.max_size,
        LEAST_SUPPORT,
        bags.pair_scale,
        rule.popularity,
        rule.size_price,
        min(partners.partners_NK.shape[1], MOST_NEW_PARTNERS),
    )
    indptr, items = _token_core.expand(indptr_N1, items_S, made >> HALF, made & LOWER_HALF, MAX_SET)
    return indptr, items
