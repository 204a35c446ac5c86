"""Shipping: what was picked for each table is fitted on all bags, and placed by what they read.

Flow: decision of :mod:`sharing` -> *place_taken* -> sums and placement of each table.  More bags make
more sums than were judged; where memory has no room for them, those that were judged are shipped, or none.
Derived: HBM is filled at least to the byte at which the validation bags took the least time, and until
host memory is left no larger share of the counted reads than then: of the two ways to carry the stop over
to more bags the later one, since host memory that is read too much costs 1 / beta of what it costs when it
is read too little.
Shapes: N items, R sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace_sharding.joint import Decision
from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement, place_tables
from grace_sharding.table_reads import DoesNotFit, Layout, TableReads
from grace_sharding.variants import Variant
from grace_torchrec.errors import NoPlan
from grace_torchrec.plans.offers import Offer, SumsOption
from grace_torchrec.plans.ordering import in_order_of
from grace_torchrec.plans.pricing import Priced, Way, code_in_host
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums


@dataclass(eq=False)
class Taken:
    """What was picked for one table; its sums are given up where they fit nowhere.

    Attributes:
        offer: The table and all it could store.
        way: What was picked.
        variant: The same, as it was judged.
        source: What it reads: with the sums that were taken, or plain.
        note: Why its sums were given up, or it has none; mostly empty.
        few: No more sums than were judged.
    """

    offer: Offer
    way: Way
    variant: Variant
    source: Priced
    note: str = ""
    few: bool = False

    @property
    def option(self) -> SumsOption | None:
        """The sums that were taken."""
        return self.offer.options[self.way.option] if self.way.option >= 0 else None


def take(
    offer: Offer, way: Way, variant: Variant, plain: Priced, with_sums: Sequence[Priced]
) -> Taken:
    """Return what was picked for one table, with what it reads.

    Args:
        offer: The table and all it could store.
        way: What was picked.
        variant: The same, as it was judged.
        plain: The table without sums.
        with_sums: The table with the sums of each option.
    """
    source = with_sums[way.option] if way.option >= 0 else plain
    return Taken(offer, way, variant, source)


def place_taken(
    taken: Sequence[Taken],
    plain: Sequence[Priced],
    best: Decision,
    memory: MemoryModel,
    ahead: bool,
    contested: bool,
) -> list[tuple[StoredSums | None, Placement]]:
    """Refit what was taken on all bags and place it by what they read.

    Args:
        taken: What was picked; tables whose sums fit nowhere are changed.
        plain: The tables without sums.
        best: What served the validation bags best.
        memory: The machine.
        ahead: Bags arrive rewritten.
        contested: Sums and rows compete for HBM.

    Raises:
        NoPlan: tables fit in no memory, without sums either.
    """
    made = [_refitted(one, code_in_host(memory, ahead), contested) for one in taken]
    wanted = sum(one.variant.hbm_bytes + float(one.variant.bytes_K.sum()) for one in taken)
    fill_bytes = None if best.hbm_bytes >= int(wanted) else best.hbm_bytes
    while (
        placements := _try_place(
            taken, made, plain, memory, fill_bytes, best.slow_share, code_in_host(memory, ahead)
        )
    ) is None:
        pass  # a table has given its sums up
    return [(sums, placement) for (sums, _), placement in zip(made, placements, strict=True)]


def _try_place(
    taken: Sequence[Taken],
    made: list[tuple[StoredSums | None, TableReads]],
    plain: Sequence[Priced],
    memory: MemoryModel,
    fill_bytes: int | None,
    slow_share: float,
    ahead: bool,
) -> tuple[Placement, ...] | None:
    """Place all tables, or return None: the table in the way has fewer sums now, or none.

    More bags make more sums than were judged: these go first.
    """
    try:
        return place_tables([table for _, table in made], memory, fill_bytes, slow_share)
    except DoesNotFit as error:  # more sums than on the fit bags
        t = next(t for t, one in enumerate(taken) if one.offer.spec.key == error.table)
        if taken[t].option is None:
            raise NoPlan(str(error)) from error
        if not taken[t].few:
            taken[t].few = True
            made[t] = _refitted(taken[t], ahead, contested=True)
            return None
        need, have = f"{error.need_bytes:,}", f"{error.have_bytes:,}"
        taken[t].note = f"its stored sums need {need} bytes of memory, {have} are left"
        taken[t].way = Way("hot" if taken[t].variant.split else "stock")
        taken[t].source = plain[t]
        made[t] = _refitted(taken[t], ahead=False, contested=True)
        return None


def _refitted(taken: Taken, ahead: bool, contested: bool) -> tuple[StoredSums | None, TableReads]:
    """Fit the sums of one table on all bags, order them, and count what all bags read."""
    whole, variant, source = taken.offer.bags.all, taken.variant, taken.source
    scale = taken.offer.bags.fit.num_ids / max(1, whole.num_ids)
    option, sums = taken.option, None
    if option is not None:
        sums = option.refit_judged() if taken.few else option.refit()
    if sums is None:
        plain_N, sum_reads_R = whole.counts(), np.zeros(0, np.int64)
    else:
        reads = count_reads(whole, sums)
        if contested or not isinstance(sums.code, SetCode):  # tied sets would read other rows
            sums = in_order_of(sums, source.stored_outlook.expected(reads.stored_reads_R, scale))
            reads = count_reads(whole, sums)
        plain_N, sum_reads_R = reads.plain_reads_N, reads.stored_reads_R
    layout: Layout = "split" if variant.split else "apart"
    if variant.originals == "hbm":
        layout = "whole" if taken.option is None or not variant.is_whole else "all"
    table = TableReads(
        name=taken.offer.spec.key,
        plain_reads_N=plain_N,
        sum_reads_R=sum_reads_R,
        row_bytes=taken.offer.spec.row_bytes,
        metadata_bytes=sums.metadata_bytes if sums is not None else 0,
        stock=taken.way.mode == "stock" and not variant.split,
        layout=layout,
        code_in_host=ahead,
        plain_outlook=source.plain_outlook,
        sum_outlook=source.stored_outlook if sums is not None else None,
        outlook_scale=scale,
    )
    return sums, table
