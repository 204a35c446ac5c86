"""Sharing: one decision over all tables that share the memories, and the placement it leads to.

Flow: offers + memory -> variants -> joint choice on the validation bags -> shipping -> *Settled* per
table, placed by what all bags read.
Shapes: N items, R sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grace_sharding.filling import forced_to_hbm
from grace_sharding.joint import Decision
from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement
from grace_sharding.table_reads import DoesNotFit, TableReads
from grace_sharding.variants import RUNGS, Variant
from grace_torchrec.errors import NoPlan
from grace_torchrec.plans.host_use import decide_within, with_whole
from grace_torchrec.plans.offers import Offer, SumsOption
from grace_torchrec.plans.pricing import (
    Busy,
    Mode,
    Priced,
    Touched,
    Way,
    priced,
    variants_of,
)
from grace_torchrec.plans.shipping import place_taken, take
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums

ALL_RUNGS, LEAST_RUNGS = 20_000, 12  # of all tables together; of one kind of row of one table


@dataclass(frozen=True, eq=False)
class Settled:
    """What one table stores and where.

    Attributes:
        offer: The table and what it could store.
        mode: ``sums``, ``hot`` or ``stock``.
        option: The sums that were taken, None without.
        sums: Fitted on all bags, in the order in which they go to HBM; None without.
        placement: By what all bags read.
        judged: Read by the validation bags, with the sums of the fit bags.
        busy: How long they keep each memory busy.
        stock: The same of the stock model.
        note: Why sums that were picked are not stored after all; mostly empty.
    """

    offer: Offer
    mode: Mode
    option: SumsOption | None
    sums: StoredSums | None
    placement: Placement
    judged: Priced
    busy: Busy
    stock: Busy
    note: str = ""


def share(
    offers: Sequence[Offer], memory: MemoryModel, ahead: bool, contested: bool = True
) -> tuple[Settled, ...]:
    """Decide over all tables together.

    Args:
        offers: The tables.
        memory: The machine they share.
        ahead: Bags arrive rewritten.
        contested: Sums and rows compete for HBM; where they do not, sets keep the order of the fit.

    Raises:
        NoPlan: the original tables fit in no memory.
    """
    if not offers:
        return ()
    rungs = max(LEAST_RUNGS, min(RUNGS, ALL_RUNGS // (2 * len(offers))))
    plain, with_sums = [], []
    for offer in offers:
        touched = Touched.of(offer.bags.fit)
        plain.append(priced(offer.bags, None, rungs, touched))
        with_sums.append([priced(offer.bags, one.held, rungs, touched) for one in offer.options])
    forced = _forced(offers, memory)
    tables, ways = [], []
    for t, offer in enumerate(offers):
        variants, meant = with_whole(
            *variants_of(offer.spec, plain[t], with_sums[t], memory, ahead)
        )
        kept = [v for v, one in enumerate(variants) if t not in forced or one.originals == "hbm"]
        tables.append([variants[v] for v in kept])
        ways.append([meant[v] for v in kept])
    specs = [offer.spec for offer in offers]
    stock = _stock(tables, ways, specs, memory)
    while True:
        starts = [np.array([_first(meant, stage) for meant in ways]) for stage in ("hot", "sums")]
        best = decide_within(tables, specs, memory, [stock.picked_T, *starts])
        best, unread = _unread_to_hbm(best, offers, tables, ways, memory)
        taken = [
            take(offers[t], ways[t][v], tables[t][v], plain[t], with_sums[t])
            for t, v in enumerate(best.picked_T.tolist())
        ]
        for t in unread:
            taken[t].note = f"{offers[t].reason}; HBM has room for it"
        placed = place_taken(taken, plain, best, memory, ahead, contested)
        copies = [
            t for t, one in enumerate(taken) if one.way.mode == "hot" and _is_copy(placed[t][1])
        ]
        if not copies:
            break
        for t in copies:  # stock variants come first
            num_stock = sum(way.mode == "stock" for way in ways[t])
            tables[t], ways[t] = tables[t][:num_stock], ways[t][:num_stock]
    return tuple(
        Settled(
            one.offer, one.way.mode, one.option, sums, placement, one.source, busy, before, one.note
        )
        for one, (sums, placement), busy, before in zip(
            taken, placed, _busy(best, memory), _busy(stock, memory), strict=True
        )
    )


def _forced(offers: Sequence[Offer], memory: MemoryModel) -> set[int]:
    """Tables whose originals must be in HBM, because host memory cannot hold all.

    Raises:
        NoPlan: a table fits in no memory.
    """
    if sum(offer.spec.num_rows * offer.spec.row_bytes for offer in offers) <= memory.host.num_bytes:
        return set()
    sizes = [
        TableReads(offer.spec.key, offer.bags.all.counts(), row_bytes=offer.spec.row_bytes)
        for offer in offers
    ]
    hbm_bytes = memory.hbm.num_bytes if memory.hbm else 0
    try:
        return forced_to_hbm(sizes, hbm_bytes, memory.host.num_bytes)
    except DoesNotFit as error:
        raise NoPlan(str(error)) from error


def _stock(
    tables: Sequence[Sequence[Variant]],
    ways: Sequence[Sequence[Way]],
    specs: Sequence[TableSpec],
    memory: MemoryModel,
) -> Decision:
    """The best that stock tables can do: whole in one memory, or split by a software cache."""
    only = [
        [variant for variant, way in zip(own, meant, strict=True) if way.mode == "stock"]
        for own, meant in zip(tables, ways, strict=True)
    ]
    return decide_within(
        only, specs, memory
    )  # stock variants come first: their numbers are those of all


def _unread_to_hbm(
    decision: Decision,
    offers: Sequence[Offer],
    tables: Sequence[Sequence[Variant]],
    ways: Sequence[Sequence[Way]],
    memory: MemoryModel,
) -> tuple[Decision, list[int]]:
    """Move tables that the profile never reads to the HBM that nobody wants, small ones first.

    They cost no time where they are by any figure; but if they are read after all, HBM is faster.

    Returns:
        The decision, and the tables that moved.
    """
    left = (memory.hbm.num_bytes if memory.hbm else 0) - decision.hbm_bytes
    picked_T, moved = decision.picked_T.copy(), []
    for t in np.argsort(
        [offer.spec.num_rows * offer.spec.row_bytes for offer in offers], kind="stable"
    ).tolist():
        whole = [
            v
            for v, (variant, way) in enumerate(zip(tables[t], ways[t], strict=True))
            if way.mode == "stock" and variant.originals == "hbm" and variant.hbm_bytes <= left
        ]
        in_host = tables[t][picked_T[t]].originals == "host"
        if offers[t].bags.all.num_ids == 0 and in_host and whole:
            picked_T[t] = whole[0]
            left -= tables[t][whole[0]].hbm_bytes
            moved.append(t)
    hbm_bytes = (memory.hbm.num_bytes if memory.hbm else 0) - left
    return replace(decision, picked_T=picked_T, hbm_bytes=hbm_bytes), moved


def _is_copy(placement: Placement) -> bool:
    """Tell whether every row stands in HBM again: then the table itself takes fewer bytes there."""
    return placement.hot_items.size == placement.num_rows > 0


def _first(ways: Sequence[Way], mode: Mode) -> int:
    """Number of the first way of a mode, of the first way where there is none."""
    return next((v for v, way in enumerate(ways) if way.mode == mode), 0)


def _busy(decision: Decision, memory: MemoryModel) -> list[Busy]:
    """How long the validation bags of each table keep each memory busy."""
    hbm_rate = memory.hbm.bytes_per_s if memory.hbm else 1.0
    return [
        Busy(hbm / hbm_rate, host / memory.host.bytes_per_s)
        for hbm, host in zip(
            decision.hbm_read_T.tolist(), decision.host_read_T.tolist(), strict=True
        )
    ]
