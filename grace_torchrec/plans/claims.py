"""Claims: how much of a gain that follows from bytes and bandwidths a plan says out loud.

Flow: TablePlans + MemoryModel -> *Claims* -> reasons of tables, inspect, report, demo.
Derived: a bandwidth is that of a memory, so it says nothing of a table that the last cache before the
memory holds whole, where the stock model reads it too: for such a table no gain in time is claimed.
Rewriting takes a kernel more than reading plain bags, so all held-out bags together, as one batch, must
gain more than one launch, and anything at all where launches are not known: else no gain is claimed of
any table.  On a CPU the time is that of
:mod:`grace_torchrec.plans.cpu_lookup_cost`, which knows caches and the cost of rewriting.  A table
without a claim counts with the time of the stock table or its own, whichever keeps a memory busy longer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.plans.cpu_lookup_cost import price_on_cpu
from grace_torchrec.plans.table_plan import TablePlan
from grace_torchrec.plans.table_spec import TableSpec


@dataclass(frozen=True)
class Claim:
    """The modelled time of one table that is claimed.

    Attributes:
        hbm_s: Seconds that held-out bags keep HBM busy.
        host_s: The same for host memory.
        stock_hbm_s: The same of the stock table.
        stock_host_s: The same of the stock table in host memory.
        doubt: Why no gain is claimed; empty where one may be.
    """

    hbm_s: float
    host_s: float
    stock_hbm_s: float
    stock_host_s: float
    doubt: str = ""

    @property
    def time_ratio(self) -> float:
        """Stock time over ours, both the slower memory (1 where nothing is read)."""
        time_s = max(self.hbm_s, self.host_s)
        return max(self.stock_hbm_s, self.stock_host_s) / time_s if time_s else 1.0

    @property
    def is_slower(self) -> bool:
        """Whether it is slower than stock by more than two digits leave unsaid."""
        return is_slower(self.time_ratio)

    def doubted(self, doubt: str) -> "Claim":
        """Return it without a gain in any memory; what it takes more than stock stays."""
        return replace(
            self,
            hbm_s=max(self.hbm_s, self.stock_hbm_s),
            host_s=max(self.host_s, self.stock_host_s),
            doubt=doubt,
        )


@dataclass(frozen=True)
class Claims:
    """What is claimed of all tables together.

    Attributes:
        tables: Table key -> its claim.
        claimed_s: Seconds of all tables, as far as a gain is claimed: never less than modelled.
        gain_s: Seconds that all tables together are claimed to gain; 0: no gain is claimed.
        ids_for_a_launch: Ids of a batch from which the gain of all tables is more than one kernel
            launch; None where launches are not known or nothing is gained.
    """

    tables: Mapping[str, Claim]
    claimed_s: float
    gain_s: float = 0.0
    ids_for_a_launch: int | None = None

    def reason(self, key: str, machine: str) -> str:
        """Say what is claimed of a table, as the end of a sentence."""
        claim = self.tables[key]
        if claim.is_slower:
            told = f"modelled slower alone, {claim.time_ratio:.2f} times the speed, on {machine}"
            return f"{told}; all tables together are faster" if self.gain_s > 0 else told
        if claim.doubt:
            return f"no gain in time is claimed, {claim.doubt}"
        if round(claim.time_ratio, 2) == 1:
            return f"modelled as fast as stock on {machine}"
        return f"modelled {claim.time_ratio:.2f} times faster on {machine}"


def is_slower(time_ratio: float) -> bool:
    """Tell whether stock time over ours says slower, in the two digits that are shown."""
    return round(time_ratio, 2) < 1


def told_verdict(table: TablePlan, claim: Claim) -> str:
    """Return the verdict as people read it: a bare ``use`` says that a gain in time is claimed.

    Args:
        table: A table.
        claim: What is claimed of it.
    """
    if table.verdict != "use":
        return table.verdict
    if claim.is_slower:
        return "use though slower alone"
    if claim.doubt:
        return "use for fewer reads only" if table.predicted.cut > 0 else "use without a claim"
    return "use" if round(claim.time_ratio, 2) > 1 else "use though no faster alone"


def cache_holds(spec: TableSpec, memory: MemoryModel) -> bool:
    """Tell whether the last cache before the memory holds a table whole; False if it is not known."""
    return memory.cache_bytes is not None and spec.num_rows * spec.row_bytes <= memory.cache_bytes


def claims_of(tables: Iterable[TablePlan], memory: MemoryModel) -> Claims:
    """Return what may be claimed of tables that share a machine.

    Args:
        tables: Their plans.
        memory: The machine.
    """
    plans = list(tables)
    modelled = {plan.spec.key: _modelled(plan, memory) for plan in plans}
    claims = {plan.spec.key: _claim(plan, modelled[plan.spec.key], memory) for plan in plans}
    stock_s = _slower_s(claims.values(), "stock_")
    most_s = max(stock_s, _slower_s(modelled.values(), ""))  # doubts alone make nothing slower
    claimed_s = min(_slower_s(claims.values(), ""), most_s)
    gain_s = stock_s - claimed_s
    if gain_s > 0 and gain_s >= (memory.launch_s or 0.0):
        if memory.launch_s is None:
            return Claims(claims, claimed_s, gain_s)
        ids = sum(plan.predicted.ids for plan in plans)
        return Claims(claims, claimed_s, gain_s, math.ceil(ids * memory.launch_s / gain_s))
    doubt = _doubt_of_all(gain_s, memory)
    used = {plan.spec.key for plan in plans if plan.verdict == "use"}
    without = {
        key: claim.doubted(claim.doubt or (doubt if key in used else ""))
        for key, claim in claims.items()
    }
    return Claims(without, most_s)


def _doubt_of_all(gain_s: float, memory: MemoryModel) -> str:
    """Say why nothing is claimed of any table: all together gain too little, nothing, or lose."""
    gain_us = round(gain_s * 1e6, 2)
    if gain_us < 0:
        return f"all tables together lose {-gain_us:,.2f} us on the held-out bags"
    if gain_s <= 0 or memory.launch_s is None:
        return "all tables together gain nothing on the held-out bags"
    return (
        f"the held-out bags gain {gain_us:.2f} us in all tables together, less than one kernel "
        f"launch ({memory.launch_s * 1e6:.1f} us)"
    )


def _modelled(plan: TablePlan, memory: MemoryModel) -> Claim:
    """Return the modelled time of one table: on a CPU, with what lookups cost there."""
    told = plan.predicted
    claim = Claim(told.hbm_s, told.host_s, told.stock_hbm_s, told.stock_host_s)
    if plan.verdict != "use" or memory.hbm is not None:
        return claim
    return replace(claim, host_s=max(claim.host_s, told.stock_host_s * _cpu_share(plan, memory)))


def _claim(plan: TablePlan, modelled: Claim, memory: MemoryModel) -> Claim:
    """Return what may be claimed of one table alone."""
    if plan.verdict != "use":
        return modelled
    if memory.hbm is None:
        whole_here = plan.lookup == "ahead"  # the cost of rewriting in line knows caches
    else:
        whole_here = modelled.stock_host_s == 0 < modelled.stock_hbm_s
    if whole_here and cache_holds(plan.spec, memory):
        return modelled.doubted(
            f"its {plan.spec.num_rows * plan.spec.row_bytes:,} bytes fit into the cache of {memory.machine} "
            f"({memory.cache_bytes:,} bytes), of which bandwidths say nothing"
        )
    return modelled


def _cpu_share(plan: TablePlan, memory: MemoryModel) -> float:
    """Return the time of a table on a CPU over that of the stock table, by the cost of lookups."""
    assert plan.sums is not None
    spec, cut, ahead = plan.spec, plan.predicted.cut, plan.lookup == "ahead"
    price = price_on_cpu(spec.num_rows, spec.row_bytes, plan.sums, cut, memory.lookup_costs, ahead)
    return price.share(ahead)


def _slower_s(claims: Iterable[Claim], of: str) -> float:
    """Return the time of the slower memory for all tables; ``of``: ``stock_`` or nothing."""
    kept = list(claims)
    times: list[float] = [
        sum(getattr(claim, f"{of}{tier}_s") for claim in kept) for tier in ("hbm", "host")
    ]
    return max(times)
