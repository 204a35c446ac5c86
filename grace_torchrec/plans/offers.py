"""Offers: what one table could store, before all tables share the memories.

Flow: finalists of a Choice -> *Offer*, their sums in several sizes -> pricing -> settling, which takes
one of them or none by time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from grace_torchrec.plans.candidates import Bags, Choice, Finalist
from grace_torchrec.plans.ordering import one_by_one
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the sums, tried where HBM is contested
SETS = "set_merge"  # the method whose code holds any sets
FEW_SHARES, MANY_TABLES = (1 / 8, 1 / 2, 1.0), 100  # one of many tables matters little


@dataclass(frozen=True, eq=False)
class SumsOption:
    """Sums that a table could store.

    Attributes:
        method: Grouping method.
        parameter: Its parameter and size as text.
        held: Fitted on the fit bags, over the rows of the bags of the offer: held-out figures come
            from them.
        refit: Fits the same on all bags: these are shipped.
        refit_judged: As ``refit``, no more sums than were judged: where memory has no room for more.
    """

    method: str
    parameter: str
    held: StoredSums = field(repr=False)
    refit: Callable[[], StoredSums] = field(repr=False)
    refit_judged: Callable[[], StoredSums] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Offer:
    """One table and all it could store.

    Attributes:
        spec: The table.
        bags: What options were fitted and are judged on; fit and validation bags over the rows
            that are asked for (``Bags.few``), or over all.
        options: Sums that it could store; none is always possible too.
        reason: Why there are no options; empty where there are.
        cut: Cut of the best option by cut, on the validation bags.
    """

    spec: TableSpec
    bags: Bags
    options: tuple[SumsOption, ...]
    reason: str
    cut: float


def offer_of(
    spec: TableSpec,
    choice: Choice,
    finalists: Sequence[Finalist],
    shares: Sequence[float],
    refused: str = "",
    by_row: bool = False,
) -> Offer:
    """Offer the sums of finalists, all of them or the first few.

    Args:
        spec: The table.
        choice: Its bags, and why there are no sums if so.
        finalists: Those of its finalists that may be taken.
        shares: Of the sums, see :func:`shares_for`.
        refused: Why there are no finalists after all; mostly empty.
        by_row: Offer sums of clusters as sets too: each may be in another memory than the others
            of its cluster, for bags that arrive rewritten.
    """
    few = choice.bags.few
    options: dict[tuple[str, str, int], SumsOption] = {}
    for one in finalists:
        apart = _Apart(one, few.all.counts()) if by_row else None
        for share in shares:
            sums = one.first_held(share)
            if not sums.num_sums:
                continue
            size = f" first={share:g}" if share < 1 else ""
            name, key = f"{one.parameter}{size}".strip(), (one.method, "", sums.num_sums)
            # Several sizes: rows compete for HBM. There, the more sums that more bags make would push
            # rows out that were judged in it.
            judged = partial(one.first, share, sums.num_sums)
            first = judged if len(shares) > 1 else partial(one.first, share, None)
            options[key] = SumsOption(one.method, name, sums, first, judged)
            if apart and not isinstance(sums.code, SetCode):
                refits = (partial(_apart, fit, choice.bags.all) for fit in (first, judged))
                key, name = (SETS, one.method, sums.num_sums), f"from={one.picked}{size}"
                options[key] = SumsOption(SETS, name, apart.first(sums), *refits)
    cut = max((one.reads.cut for one in finalists), default=0.0)
    bags = replace(few, all=choice.bags.all)
    return Offer(spec, bags, tuple(options.values()), refused or choice.reason, cut)


class _Apart:
    """Sums of one finalist, each with a place of its own: smaller sizes are the first of them."""

    def __init__(self, one: Finalist, counts_A: npt.NDArray[np.int64]) -> None:
        """Keep what all sizes are made of.

        Args:
            one: The finalist.
            counts_A: How often each asked row is requested.
        """
        self.counts_A = counts_A
        in_order = isinstance(one.held_ranked, StoredSums)
        self.all = one_by_one(one.held_sums, counts_A) if in_order else None

    def first(self, sums: StoredSums) -> StoredSums:
        """Return ``sums``, the first ones of the finalist, one by one."""
        return self.all.first(sums.num_sums) if self.all else one_by_one(sums, self.counts_A)


def _apart(first: Callable[[], StoredSums], bags: Trace) -> StoredSums:
    """Fit sums of clusters on all bags and let each have its own place."""
    return one_by_one(first(), bags.counts())


def shares_for(num_tables: int, contested: bool) -> tuple[float, ...]:
    """Return the shares of the sums that are worth trying.

    Args:
        num_tables: Tables that share the memories.
        contested: Sums and rows compete for HBM: only then may fewer sums be faster.
    """
    if not contested:
        return SHARES[-1:]
    return FEW_SHARES if num_tables > MANY_TABLES else SHARES
