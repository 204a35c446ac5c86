"""Offers: what one table could store, before all tables share the memories.

Flow: Choice (or candidates of several methods) -> *Offer*, sums of several sizes -> pricing ->
settling, which takes one of them or none by time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from grace_torchrec.plans.candidates import Bags, Choice
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the sums, tried where HBM is contested
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


def offer_of(spec: TableSpec, choice: Choice, shares: Sequence[float], refused: str = "") -> Offer:
    """Offer the sums of a choice, all of them or the first few.

    Args:
        spec: The table.
        choice: Its best sums by cut.
        shares: Of the sums, see :func:`shares_for`.
        refused: Why its sums are out of the question; mostly empty.
    """
    if refused:
        return Offer(spec, choice.bags, (), refused, 0.0)
    if choice.method == "none" or not choice.held_sums.num_sums:
        return Offer(spec, choice.bags, (), choice.reason, 0.0)
    options: dict[int, SumsOption] = {}
    for share in shares:
        held = _first(choice.held_sums, share)
        if held.num_sums:
            refit = partial(_first, choice.sums, share)
            options[held.num_sums] = SumsOption(choice.method, f"share={share:g}", held, refit)
    return Offer(spec, choice.bags, tuple(options.values()), choice.reason, choice.reads.cut)


def shares_for(num_tables: int, contested: bool) -> tuple[float, ...]:
    """Return the shares of the sums that are worth trying.

    Args:
        num_tables: Tables that share the memories.
        contested: Sums and rows compete for HBM: only then may fewer sums be faster.
    """
    if not contested:
        return SHARES[-1:]
    return FEW_SHARES if num_tables > MANY_TABLES else SHARES


def _first(sums: StoredSums, share: float) -> StoredSums:
    """The first sums, the most valuable ones, at most ``share`` of them."""
    return sums.first(int(round(share * sums.num_sums, 6)))
