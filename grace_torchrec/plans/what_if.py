"""What if: the same sums on a machine with another HBM size or another host bandwidth.

Flow: Plan + Profile -> rows placed anew for every machine of a grid -> *WhatIf* -> report.
The sums and the verdicts stay those of the plan, only the rows move: what a new plan would choose
for that machine is not known here and can only be better.  The bags are those of the profile.
Source: GRACE, ASPLOS'23 (time is that of the slower memory).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grace_sharding.memory_tiers import MemoryModel, Tier
from grace_sharding.table_reads import DoesNotFit
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.candidates import Bags, no_sums
from grace_torchrec.plans.make import check_profile_fits
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.pricing import Busy, Candidate, Mode, place_candidates, price
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.trace import Trace

BETAS = (0.013, 0.036, 0.1, 0.294, 1.0)
SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of what all rows and sums take


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
        hbm_bytes: HBM sizes, rising.
        betas: Host bandwidth over HBM bandwidth, rising.
        cells: HBM size -> beta -> what the bags take.
        here: Which HBM size and which beta are those of the plan.
        bags: How many bags of all tables were counted.
        seen: Whether these are the bags that the plan was made from.
    """

    hbm_bytes: tuple[int, ...]
    betas: tuple[float, ...]
    cells: tuple[tuple[Cell, ...], ...]
    here: tuple[int, int]
    bags: int
    seen: bool


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
    specs = [table.spec for table in plan.tables.values()]
    check_profile_fits(profile, specs)
    tables = list(plan.tables.values())
    ours = [_candidate(table, profile, _mode(table)) for table in tables]
    stock = [_candidate(table, profile, "stock") for table in tables]
    own = plan.memory.hbm.num_bytes
    everything = sum(t.placement.hbm.bytes + t.placement.host.bytes for t in tables)
    sizes = sorted({*(round(share * everything) for share in SHARES), min(own, everything)})
    grid = sorted({*betas, plan.memory.beta})
    found = {size: _row(ours, stock, plan.memory, size, grid) for size in sizes}
    cells = {size: row for size, row in found.items() if row is not None}
    if min(own, everything) not in cells:
        raise GraceError("what if: the rows do not fit the memories of the plan; plan again")
    return WhatIf(
        hbm_bytes=tuple(cells),
        betas=tuple(grid),
        cells=tuple(cells.values()),
        here=(list(cells).index(min(own, everything)), grid.index(plan.memory.beta)),
        bags=sum(table.trace.num_bags for table in profile.tables.values()),
        seen=profile.fingerprint() == plan.profile_fingerprint,
    )


def _row(
    ours: Sequence[Candidate],
    stock: Sequence[Candidate],
    memory: MemoryModel,
    hbm_bytes: int,
    betas: Sequence[float],
) -> tuple[Cell, ...] | None:
    """All host bandwidths with one HBM size; None where the rows do not fit such a machine."""
    try:
        return tuple(_cell(ours, stock, _machine(memory, hbm_bytes, beta)) for beta in betas)
    except DoesNotFit:
        return None


def _machine(memory: MemoryModel, hbm_bytes: int, beta: float) -> MemoryModel:
    """The machine of the plan with another HBM size and host bandwidth."""
    assert memory.hbm is not None
    host = Tier("host", memory.host.num_bytes, memory.hbm.bytes_per_s * beta)
    return replace(memory, tiers=(replace(memory.hbm, num_bytes=hbm_bytes), host))


def _mode(table: TablePlan) -> Mode:
    """What the plan stores for a table."""
    if table.sums is None:
        return "stock"
    return "sums" if table.sums.num_sums else "hot"


def _candidate(table: TablePlan, profile: Profile, mode: Mode) -> Candidate:
    """The sums of the plan over the bags of the profile."""
    recorded = profile.tables.get(table.spec.name)
    trace = _bags(recorded, table.spec)
    choice = no_sums(Bags(trace, trace, trace), "")
    if mode == "sums" and table.sums is not None:
        choice = replace(
            choice,
            method=table.method,
            held_sums=table.sums,
            sums=table.sums,
            reads=count_reads(trace, table.sums),
        )
    return Candidate(table.spec, choice, mode, "")


def _bags(recorded: TableProfile | None, spec: TableSpec) -> Trace:
    """The bags of a table over all its rows; none where they were not recorded as it is served."""
    bags = recorded.trace if recorded is not None else None
    if bags is None or (spec.is_weighted and bags.weights_L is None):
        return Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), spec.num_rows)
    weights = bags.weights_L if spec.is_weighted else None
    return Trace(bags.offsets_B1, bags.ids_L, spec.num_rows, weights)


def _cell(ours: Sequence[Candidate], stock: Sequence[Candidate], memory: MemoryModel) -> Cell:
    """Place and price both models on one machine."""
    busy, before = (_busy(candidates, memory) for candidates in (ours, stock))
    return Cell(busy.hbm_s, busy.host_s, before.time_s)


def _busy(candidates: Sequence[Candidate], memory: MemoryModel) -> Busy:
    """Seconds of all tables together."""
    placements = place_candidates(candidates, memory, "all")
    pairs = zip(candidates, placements, strict=True)
    return sum((price(table, placed, memory) for table, placed in pairs), Busy())
