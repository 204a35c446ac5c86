"""Offers: what one table could store, before all tables share the memories.

Flow: finalists of a Choice -> *Offer*, their sums in several sizes -> pricing -> settling, which takes
one of them or none by time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from grace_torchrec.plans.candidates import Bags, Choice, Finalist
from grace_torchrec.plans.ordering import one_by_one
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the sums, tried where HBM is contested
SETS = "set_merge"  # the method whose code holds any sets
FEW_SHARES, MANY_TABLES = (1 / 8, 1 / 2, 1.0), 100  # one of many tables matters little


@dataclass(frozen=True, eq=False)
class SumsOption:
    """Sums that a table could store.

    Attributes:
        method: Grouping method.
        parameter: Its parameter and size as text.
        held: Fitted on the fit bags: held-out figures come from them.
        refit: Fits the same on all bags: these are shipped.
    """

    method: str
    parameter: str
    held: StoredSums = field(repr=False)
    refit: Callable[[], StoredSums] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Offer:
    """One table and all it could store.

    Attributes:
        spec: The table.
        bags: What options were fitted and are judged on.
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
    options: dict[tuple[str, str, int], SumsOption] = {}
    for one in finalists:
        for share in shares:
            held = one.first_held(share)
            if not held.num_sums:
                continue
            size = f" first={share:g}" if share < 1 else ""
            name, key = f"{one.parameter}{size}".strip(), (one.method, "", held.num_sums)
            options[key] = SumsOption(one.method, name, held, partial(one.first, share))
            if by_row and not isinstance(held.code, SetCode):
                counts_N = choice.bags.all.counts()
                apart = partial(_apart, partial(one.first, share), counts_N)
                key, name = (SETS, one.method, held.num_sums), f"from={one.picked}{size}"
                options[key] = SumsOption(SETS, name, one_by_one(held, counts_N), apart)
    cut = max((one.reads.cut for one in finalists), default=0.0)
    return Offer(spec, choice.bags, tuple(options.values()), refused or choice.reason, cut)


def _apart(first: Callable[[], StoredSums], counts_N: npt.NDArray[np.int64]) -> StoredSums:
    """Fit sums of clusters on all bags and let each have its own place."""
    return one_by_one(first(), counts_N)


def shares_for(num_tables: int, contested: bool) -> tuple[float, ...]:
    """Return the shares of the sums that are worth trying.

    Args:
        num_tables: Tables that share the memories.
        contested: Sums and rows compete for HBM: only then may fewer sums be faster.
    """
    if not contested:
        return SHARES[-1:]
    return FEW_SHARES if num_tables > MANY_TABLES else SHARES
