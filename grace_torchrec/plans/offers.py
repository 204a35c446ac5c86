"""Offers: what one table could store, before all tables share the memories.

Flow: finalists of a Choice -> *Offer*, their sums in several sizes -> pricing -> settling, which takes
one of them or none by time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from grace_torchrec.plans.candidates import Bags, Choice, Finalist
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the sums, tried where HBM is contested


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
    contested: bool,
    refused: str = "",
) -> Offer:
    """Offer the sums of finalists, where HBM is contested also the first few of each.

    Args:
        spec: The table.
        choice: Its bags, and why there are no sums if so.
        finalists: Those of its finalists that may be taken.
        contested: Sums and rows compete for HBM: only then may fewer sums be faster.
        refused: Why there are no finalists after all; mostly empty.
    """
    options: dict[tuple[str, int], SumsOption] = {}
    for one in finalists:
        for share in SHARES if contested else SHARES[-1:]:
            held = one.first_held(share)
            if held.num_sums:
                size = f" first={share:g}" if share < 1 else ""
                options[one.method, held.num_sums] = SumsOption(
                    one.method, (one.parameter + size).strip(), held, partial(one.first, share)
                )
    cut = max((one.reads.cut for one in finalists), default=0.0)
    return Offer(spec, choice.bags, tuple(options.values()), refused or choice.reason, cut)
