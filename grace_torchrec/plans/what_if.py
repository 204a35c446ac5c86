"""What if: the same sums on a machine with another HBM size or another host bandwidth.

Flow: Plan + Profile -> rows placed anew for every machine of a grid -> *WhatIf* -> report.
The sums and the verdicts stay those of the plan, only the rows move: what a new plan would choose
for that machine is not known here.  The bags are those of the profile.
Source: GRACE, ASPLOS'23 (both memories are read at once, so time is that of the slower one).
Derived: HBM is filled up to where the slower memory is fastest, out of :data:`FILLS` levels and the
placement of the plan itself; the stock model keeps as many whole tables in HBM as fit.  Where rows
fit in no way that is tried, the size of HBM is left out.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.placement import Placement, TierUse, place_tables
from grace_sharding.table_reads import DoesNotFit, TableReads
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.choose import as_served
from grace_torchrec.plans.make import check_profile_fits
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.trace import Trace

BETAS = (0.013, 0.036, 0.1, 0.294, 1.0)
SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of what all rows and sums take
FILLS = 16


@dataclass(frozen=True)
class Cell:
    """One machine of the grid.

    Attributes:
        hbm_s: Seconds the bags keep HBM busy.
        host_s: The same for host memory.
        stock_s: Seconds of the slower memory for the stock model on this machine.
    """

    hbm_s: float
    host_s: float
    stock_s: float

    @property
    def time_s(self) -> float:
        """The slower memory."""
        return max(self.hbm_s, self.host_s)

    @property
    def ratio(self) -> float:
        """Stock time over ours (1 where nothing is read)."""
        return self.stock_s / self.time_s if self.time_s else 1.0


@dataclass(frozen=True)
class WhatIf:
    """The plan's sums on many machines.

    Attributes:
        hbm_bytes: HBM sizes, rising; that of the plan is one of them.
        betas: Host bandwidth over HBM bandwidth, rising.
        cells: HBM size -> beta -> what the bags take.
        here: Which HBM size and which beta are those of the plan.
        bags: How many bags of all tables were counted.
        seen: Whether these are the bags that the plan was made from.
        left_out: HBM sizes with which the rows do not fit, rising.
    """

    hbm_bytes: tuple[int, ...]
    betas: tuple[float, ...]
    cells: tuple[tuple[Cell, ...], ...]
    here: tuple[int, int]
    bags: int
    seen: bool
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class _Read:
    """One table, what the bags read of it, and how many ids they look up in its code."""

    table: TableReads
    code_reads: int
    ours: bool

    def tier_bytes(self, placed: Placement, memory: MemoryModel) -> dict[str, float]:
        """Bytes that the bags read in each memory."""
        rows = placed.reads_by_tier(self.table.plain_reads_N, self.table.sum_reads_R)
        row_bytes = memory.read_bytes(placed.row_bytes)
        found: dict[str, float] = {"hbm": rows["hbm"] * row_bytes, "host": rows["host"] * row_bytes}
        found[placed.metadata] += self.code_reads * memory.sector_bytes
        if self.ours and placed.hot_items.size:
            found["hbm"] += int(self.table.plain_reads_N.sum()) * memory.sector_bytes
        return found


@dataclass(frozen=True)
class _Layout:
    """Rows of all tables in the memories: HBM they may take, bytes that the bags read in each."""

    hbm_bytes: int
    read_bytes: dict[str, float]


def what_if(plan: Plan, profile: Profile, betas: Sequence[float] = BETAS) -> WhatIf:
    """Place the rows of a plan for a grid of machines.

    Args:
        plan: The plan; its own HBM size and beta are added to the grid.
        profile: Bags to count: those the plan was made from, or later ones.
        betas: Host bandwidth over HBM bandwidth; the HBM bandwidth stays.

    Raises:
        PlanMismatch: the profile does not belong to these tables.
        GraceError: the plan is for a machine with one memory.
    """
    if plan.memory.hbm is None:
        raise GraceError(f"what if: {plan.memory.machine} has one memory, nothing can move")
    tables = list(plan.tables.values())
    check_profile_fits(profile, [table.spec for table in tables])
    bags = [_bags(profile.tables.get(table.spec.name), table.spec) for table in tables]
    ours = [_read(*pair, ours=True) for pair in zip(tables, bags, strict=True)]
    stock = [_read(*pair, ours=False) for pair in zip(tables, bags, strict=True)]
    everything = sum(t.placement.hbm.bytes + t.placement.host.bytes for t in tables)
    own = min(plan.memory.hbm.num_bytes, everything)
    sizes = sorted({*(round(share * everything) for share in SHARES), own})
    grid = sorted({*betas, plan.memory.beta})
    levels = sorted({*(round(n / FILLS * everything) for n in range(FILLS + 1)), *sizes})
    filled = [*_placed(ours, plan.memory, levels), _as_planned(ours, tables, plan.memory)]
    whole = [*_placed(stock, plan.memory, sizes), _as_planned(stock, tables, plan.memory)]
    cells = {
        size: tuple(_cell(here, before[0], _machine(plan.memory, size, beta)) for beta in grid)
        for size in sizes
        if (here := _within(filled, size)) and (before := _within(whole, size))
    }
    return WhatIf(
        hbm_bytes=tuple(cells),
        betas=tuple(grid),
        cells=tuple(cells.values()),
        here=(list(cells).index(own), grid.index(plan.memory.beta)),
        bags=sum(table.trace.num_bags for table in profile.tables.values()),
        seen=profile.fingerprint() == plan.profile_fingerprint,
        left_out=tuple(size for size in sizes if size not in cells),
    )


def _bags(recorded: TableProfile | None, spec: TableSpec) -> Trace:
    """The bags of a table over all its rows; none where they were not recorded as it is served."""
    bags = recorded.trace if recorded is not None else None
    if bags is None or (spec.is_weighted and bags.weights_L is None):
        return Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), spec.num_rows)
    return as_served(bags, spec)


def _read(table: TablePlan, bags: Trace, ours: bool) -> _Read:
    """Count what the bags read of one table, as planned or as the stock table."""
    sums = table.sums if ours and table.sums is not None else StoredSums.none(bags.num_items)
    reads = count_reads(bags, sums)
    in_line = sums.num_sums > 0 and table.lookup != "ahead"
    return _Read(
        TableReads(
            name=table.spec.key,
            plain_reads_N=reads.plain_reads_N,
            sum_reads_R=reads.stored_reads_R,
            row_bytes=table.spec.row_bytes,
            metadata_bytes=sums.metadata_bytes,
            stock=not ours or table.sums is None,
        ),
        code_reads=reads.rows_before if in_line else 0,
        ours=ours,
    )


def _placed(reads: Sequence[_Read], memory: MemoryModel, sizes: Iterable[int]) -> list[_Layout]:
    """Place the rows anew for each size of HBM with which they fit."""
    found = []
    for size in sizes:
        machine = _machine(memory, size, memory.beta)
        with suppress(DoesNotFit):
            placed = place_tables([read.table for read in reads], machine)
            found.append(_layout(reads, placed, machine, size))
    return found


def _as_planned(
    reads: Sequence[_Read], tables: Sequence[TablePlan], memory: MemoryModel
) -> _Layout:
    """Leave the rows where the plan has them, the whole tables of the stock model too."""
    placed = [
        table.placement if read.ours else _whole(table.placement)
        for read, table in zip(reads, tables, strict=True)
    ]
    return _layout(reads, placed, memory, sum(one.hbm.bytes for one in placed))


def _whole(placed: Placement) -> Placement:
    """The original table alone, in the memory it is in."""
    nothing = TierUse(0, 0, 0)
    table = TierUse(placed.num_rows, placed.num_rows * placed.row_bytes, 0)
    in_hbm = placed.originals == "hbm"
    return replace(
        placed, num_hbm_sums=0, num_sums=0, hot_items=placed.hot_items[:0],
        hbm=table if in_hbm else nothing, host=nothing if in_hbm else table,
    )  # fmt: skip


def _layout(
    reads: Sequence[_Read], placed: Sequence[Placement], memory: MemoryModel, hbm_bytes: int
) -> _Layout:
    """Add up what all tables read in each memory."""
    parts = [read.tier_bytes(one, memory) for read, one in zip(reads, placed, strict=True)]
    return _Layout(hbm_bytes, {tier: sum(p[tier] for p in parts) for tier in ("hbm", "host")})


def _within(layouts: Sequence[_Layout], hbm_bytes: int) -> list[_Layout]:
    """Layouts for so much HBM, those that need most of it first."""
    fits = [one for one in layouts if one.hbm_bytes <= hbm_bytes]
    return sorted(fits, key=lambda one: one.hbm_bytes, reverse=True)


def _machine(memory: MemoryModel, hbm_bytes: int, beta: float) -> MemoryModel:
    """The machine of the plan with another HBM size and host bandwidth."""
    assert memory.hbm is not None
    host = Tier("host", memory.host.num_bytes, memory.hbm.bytes_per_s * beta)
    return replace(memory, tiers=(replace(memory.hbm, num_bytes=hbm_bytes), host))


def _cell(ours: Sequence[_Layout], stock: _Layout, machine: MemoryModel) -> Cell:
    """Take the layout with which the slower memory is fastest."""
    best = machine.tier_s(min((one.read_bytes for one in ours), key=machine.time_s))
    return Cell(best["hbm"], best["host"], machine.time_s(stock.read_bytes))
