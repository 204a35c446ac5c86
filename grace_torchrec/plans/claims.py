"""Claims: how much of a gain that follows from bytes and bandwidths a plan says out loud.

Flow: TablePlans + MemoryModel -> *Claims* -> reasons of tables, inspect, report, demo.
Derived: a bandwidth is that of a memory, so it says nothing of a table that the last cache before the
memory holds whole, where the stock model reads it too: for such a table no gain in time is claimed.
Rewriting takes a kernel more than reading plain bags, so all held-out bags together, as one batch, must
gain more than one launch: else no gain is claimed at all.  On a CPU the time is that of
:mod:`grace_torchrec.plans.cpu_lookup_cost`, which knows caches and the cost of rewriting.  A table
without a claim counts with the time of the stock table.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.plans.cpu_lookup_cost import in_line_on_cpu, rewrite_ns_of
from grace_torchrec.plans.table_plan import TablePlan


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

    def doubted(self, doubt: str) -> "Claim":
        """Return it without a gain: with the time of the stock table."""
        if max(self.hbm_s, self.host_s) > max(self.stock_hbm_s, self.stock_host_s):
            return replace(self, doubt=doubt)  # slower than stock is no gain
        return replace(self, hbm_s=self.stock_hbm_s, host_s=self.stock_host_s, doubt=doubt)

    def reason(self, machine: str) -> str:
        """Say what is claimed, as the end of a sentence."""
        if self.doubt:
            return f"no gain in time is claimed, {self.doubt}"
        if self.time_ratio < 1:
            return f"modelled slower alone, {self.time_ratio:.2f} times the speed, on {machine}"
        return f"modelled {self.time_ratio:.2f} times faster on {machine}"


@dataclass(frozen=True)
class Claims:
    """What is claimed of all tables together.

    Attributes:
        tables: Table key -> its claim.
        ids_for_a_launch: Ids of a batch from which the gain of all tables is more than one kernel
            launch; None where launches are not known or nothing is gained.
    """

    tables: Mapping[str, Claim]
    ids_for_a_launch: int | None = None


def claims_of(tables: Iterable[TablePlan], memory: MemoryModel) -> Claims:
    """Return what may be claimed of tables that share a machine.

    Args:
        tables: Their plans.
        memory: The machine.
    """
    plans = list(tables)
    claims = {plan.spec.key: _claim(plan, memory) for plan in plans}
    gain_s = _slower_s(claims.values(), "stock_") - _slower_s(claims.values(), "")
    if memory.launch_s is None or gain_s <= 0:
        return Claims(claims)
    if gain_s >= memory.launch_s:
        ids = sum(plan.predicted.ids for plan in plans)
        return Claims(claims, math.ceil(ids * memory.launch_s / gain_s))
    doubt = (
        f"the held-out bags gain {gain_s * 1e6:.2f} us in all tables together, less than one kernel "
        f"launch ({memory.launch_s * 1e6:.1f} us)"
    )
    used = {plan.spec.key for plan in plans if plan.verdict == "use"}
    return Claims(
        {
            key: claim.doubted(claim.doubt or (doubt if key in used else ""))
            for key, claim in claims.items()
        }
    )


def _claim(plan: TablePlan, memory: MemoryModel) -> Claim:
    """Return what may be claimed of one table alone."""
    told = plan.predicted
    claim = Claim(told.hbm_s, told.host_s, told.stock_hbm_s, told.stock_host_s)
    if plan.verdict != "use":
        return claim
    table_bytes, on_cpu = plan.spec.num_rows * plan.spec.row_bytes, memory.hbm is None
    if on_cpu:
        claim = replace(claim, host_s=max(claim.host_s, told.stock_host_s * _cpu_share(plan)))
        whole_here = plan.lookup == "ahead"  # the cost of rewriting in line knows caches
    else:
        whole_here = told.stock_host_s == 0 < told.stock_hbm_s
    if whole_here and memory.cache_bytes is not None and table_bytes <= memory.cache_bytes:
        return claim.doubted(
            f"its {table_bytes:,} bytes fit into the cache of {memory.machine} "
            f"({memory.cache_bytes:,} bytes), of which bandwidths say nothing"
        )
    return claim


def _cpu_share(plan: TablePlan) -> float:
    """Return the time of a table on a CPU over that of the stock table, by the cost of lookups."""
    assert plan.sums is not None
    cost = in_line_on_cpu(
        plan.spec.num_rows, plan.spec.row_bytes, plan.num_sums, plan.predicted.cut,
        rewrite_ns_of(plan.sums),
    )  # fmt: skip
    ours_ns = cost.ours_ns - (cost.rewrite_ns if plan.lookup == "ahead" else 0.0)
    return ours_ns / cost.stock_ns


def _slower_s(claims: Iterable[Claim], of: str) -> float:
    """Return the time of the slower memory for all tables; ``of``: ``stock_`` or nothing."""
    kept = list(claims)
    times: list[float] = [
        sum(getattr(claim, f"{of}{tier}_s") for claim in kept) for tier in ("hbm", "host")
    ]
    return max(times)
