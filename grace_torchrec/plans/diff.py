"""Diff: what moved between two plans, and what that costs in bytes and time.

Flow: two PlanSummaries -> *PlanDiff* -> the command ``diff``.  Plans of ours and of TorchRec can be
compared with each other: what one of them does not say is not compared.
Times of two plans say which is better only where both are of one machine and of the same bags; where
they are not, *apart* says so and nobody should divide them.
Derived: sums are told apart by a 64-bit hash of their items, which two different sums share once in
2**64 tries; so plans with millions of sums are compared in seconds.
Shapes: R sums, S items of all sets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_sharding.shards import Sharding
from grace_torchrec.plans.summary import (
    LOOKUP,
    RATE,
    TIMES,
    Contents,
    PlanSummary,
    TableSummary,
    TierPart,
)
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.hashed import hashed

Hashes = npt.NDArray[np.uint64]
COMPARED = (
    "verdict",
    "method",
    "lookup",
    "num_rows",
    "row_bytes",
    "cut",
    "in_line_cut",
    "ahead_cut",
)
OF_A_TIER = ("originals", "sums", "hot_rows", "bytes", "reads", "time_s")


@dataclass(frozen=True)
class Change:
    """One value that differs."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Swap:
    """How many stored rows of one kind came and went; the others stayed."""

    kind: str
    added: int
    removed: int
    kept: int


@dataclass(frozen=True)
class TableDiff:
    """One table that differs.

    Attributes:
        table: Dotted path.
        changes: Values that differ.
        tiers: Memory -> values that differ there.
        swaps: Sums and hot rows that came and went.
    """

    table: str
    changes: tuple[Change, ...]
    tiers: Mapping[str, tuple[Change, ...]]
    swaps: tuple[Swap, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.changes or self.tiers or self.swaps)


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans.

    Attributes:
        before: Where the first plan is.
        after: Where the second plan is.
        settings: Machine, options and other values that differ.
        added: Tables that only the second plan has.
        removed: Tables that only the first plan has.
        tables: Tables of both that differ.
        same: Tables of both that do not.
        totals: Memory -> what all tables together cost there, where it differs.
        time_s: Seconds of the slower memory before and after, where it differs.
        ranks: Tables of the swapped model that other ranks hold, or hold otherwise.
        apart: Why times before and after cannot be compared, a sentence each; empty where they can.
        against_stock: Claimed speed over that of the stock model, each on its own machine and bags.
    """

    before: str
    after: str
    settings: tuple[Change, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    tables: tuple[TableDiff, ...]
    same: int
    totals: Mapping[str, tuple[Change, ...]]
    time_s: Change | None
    ranks: tuple[Change, ...] = ()
    apart: tuple[str, ...] = ()
    against_stock: Change | None = None

    @property
    def differs(self) -> bool:
        """Whether anything differs; places of the plans do not count."""
        return bool(self.settings or self.added or self.removed or self.tables or self.ranks)

    def document(self) -> dict[str, Any]:
        """Return the JSON object of ``diff --json``."""
        kind = {"times": TIMES, "times_compare": not self.apart}
        return {"differs": self.differs, **kind, **asdict(self)}


def diff_plans(before: PlanSummary, after: PlanSummary) -> PlanDiff:
    """Compare two plans.

    Args:
        before: The first plan.
        after: The second plan.
    """
    old = {table.table: table for table in before.tables}
    new = {table.table: table for table in after.tables}
    both = [key for key in old if key in new]
    tables = [_table(old[key], new[key]) for key in both]
    changed = tuple(table for table in tables if table)
    return PlanDiff(
        before=before.source,
        after=after.source,
        settings=tuple(_settings(before, after)),
        added=tuple(key for key in new if key not in old),
        removed=tuple(key for key in old if key not in new),
        tables=changed,
        same=len(both) - len(changed),
        totals=_by_tier(before.tiers, after.tiers),
        time_s=next(_changes(before, after, ("time_s",)), None),
        ranks=tuple(_ranks(before.sharding, after.sharding)),
        apart=tuple(_apart(before, after)),
        against_stock=next(_changes(before, after, ("time_ratio",)), None)
        if before.claimed_s is not None and after.claimed_s is not None
        else None,
    )


def _apart(before: PlanSummary, after: PlanSummary) -> Iterator[str]:
    """Yield why the times of two plans of ours say nothing of which plan is better."""
    if before.kind != after.kind or before.kind != "grace":
        return
    rates = [
        {
            name: value
            for name, value in plan.settings.items()
            if name.endswith(RATE) or name.startswith(LOOKUP)
        }
        for plan in (before, after)
    ]
    if before.machine != after.machine:
        yield (
            f"the plans are for different machines, {before.machine} and {after.machine}: their times "
            "say nothing of which plan is better"
        )
    elif rates[0] != rates[1]:
        yield (
            f"the plans are for different bandwidths or costs of lookups of {before.machine}: their times "
            "say nothing of which plan is better"
        )
    if before.settings.get("profile") != after.settings.get("profile"):
        yield (
            "the plans were made from different profiles: their times are of different held-out bags "
            "and cannot be compared"
        )


def _ranks(before: Sharding | None, after: Sharding | None) -> Iterator[Change]:
    """Yield which tables of the swapped model ranks hold otherwise."""
    old, new = _held(before), _held(after)
    for name in dict.fromkeys([*old, *new]):
        pair = old.get(name, "on no rank"), new.get(name, "on no rank")
        if pair[0] != pair[1]:
            yield Change(name, *pair)


def _held(sharding: Sharding | None) -> dict[str, str]:
    """Return dotted path of a table -> how it is held; modelled times are not compared."""
    if sharding is None:
        return {}
    numbers = f"{sharding.world_size} ranks, {sharding.local_world_size} a host"
    of_tables = {f"{table.module}.{table.table}": table.told for table in sharding.tables}
    return {"world": f"{numbers}, {sharding.batch_size} bags of a feature a rank", **of_tables}


def set_hashes(sums: StoredSums) -> Hashes:
    """Return a 64-bit hash of the items of every sum, whatever their order.

    Args:
        sums: R stored sums.

    Returns:
        uint64 ``[R]``.

    >>> a = StoredSums.from_clusters(9, np.array([0, 2]), np.array([3, 7]))
    >>> b = StoredSums.from_clusters(9, np.array([0, 2]), np.array([7, 3]))
    >>> bool(set_hashes(a) == set_hashes(b))
    True
    """
    if not sums.num_sums:
        return np.zeros(0, np.uint64)
    hashed_S = hashed(sums.set_items_S)
    return hashed(np.add.reduceat(hashed_S, sums.set_indptr_R1[:-1]))


def _settings(before: PlanSummary, after: PlanSummary) -> Iterator[Change]:
    """Yield what the plans were made for and from, where both say it and it differs."""
    if before.kind != after.kind:
        yield Change("kind", before.kind, after.kind)
        return
    yield from _changes(before, after, ("machine",))
    for tier in before.rooms:
        if before.rooms[tier] != after.rooms.get(tier):
            yield Change(f"{tier} bytes", before.rooms[tier], after.rooms.get(tier))
    for name in dict.fromkeys([*before.settings, *after.settings]):
        old, new = before.settings.get(name), after.settings.get(name)
        if old != new:
            yield Change(name, old, new)


def _table(old: TableSummary, new: TableSummary) -> TableDiff:
    """Compare one table; reasons follow from the rest and are not compared."""
    swaps: tuple[Swap, ...] = ()
    if old.contents is not None and new.contents is not None:
        swaps = tuple(_swaps(old.contents, new.contents))
    return TableDiff(
        old.table, tuple(_changes(old, new, COMPARED)), _by_tier(old.tiers, new.tiers), swaps
    )


def _by_tier(old: tuple[TierPart, ...], new: tuple[TierPart, ...]) -> dict[str, tuple[Change, ...]]:
    """Compare memory by memory; one that a plan does not use holds nothing in it."""
    before, after = ({part.tier: part for part in parts} for parts in (old, new))
    found = {}
    for tier in dict.fromkeys([*before, *after]):
        nothing = TierPart(tier, 0, bytes=0)
        pair = before.get(tier, nothing), after.get(tier, nothing)
        found[tier] = tuple(_changes(*pair, OF_A_TIER))
    return {tier: changes for tier, changes in found.items() if changes}


def _changes(old: object, new: object, names: tuple[str, ...]) -> Iterator[Change]:
    """Yield the attributes that differ, of those that both sides know."""
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before is not None and after is not None and before != after:
            yield Change(name, before, after)


def _swaps(old: Contents, new: Contents) -> Iterator[Swap]:
    """Yield which kinds of stored rows are not the same rows any more."""
    sums = [np.zeros(0, np.uint64) if c.sums is None else set_hashes(c.sums) for c in (old, new)]
    pairs: tuple[tuple[str, npt.NDArray[Any], npt.NDArray[Any]], ...] = (
        ("sums", sums[0], sums[1]),
        ("hot rows", old.hot_items, new.hot_items),
    )
    for kind, before, after in pairs:
        kept = int(np.intersect1d(before, after).size)
        if before.size != kept or after.size != kept:
            yield Swap(kind, int(after.size) - kept, int(before.size) - kept, kept)
