"""Summarise: what a plan of ours says of each table and memory.

Flow: Plan -> *PlanSummary* -> inspect, diff, report.
"""

from collections.abc import Sequence
from dataclasses import asdict

from grace_torchrec.plans.claims import Claim, claims_of, told_verdict
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.summary import LOOKUP, RATE, Contents, PlanSummary, TableSummary, TierPart


def summarise(plan: Plan, source: str = "") -> PlanSummary:
    """Return what a plan of ours says.

    Args:
        plan: The plan.
        source: Where it was read, for people.
    """
    memory, claims = plan.memory, claims_of(plan.tables.values(), plan.memory)
    names = [tier.name for tier in memory.tiers]
    costs = asdict(memory.lookup_costs) if memory.lookup_costs else {}
    return PlanSummary(
        kind="grace",
        source=source,
        machine=memory.machine,
        rooms={tier.name: tier.num_bytes for tier in memory.tiers},
        tables=tuple(_table(t, names, claims.tables[key]) for key, t in plan.tables.items()),
        settings={
            **asdict(plan.options),
            "uvm": memory.uvm,
            "beta": memory.beta,
            "cache_bytes": memory.cache_bytes,
            "launch_s": memory.launch_s,
            **{f"{LOOKUP}{name}": cost for name, cost in costs.items()},
            **{f"{tier.name}{RATE}": tier.bytes_per_s for tier in memory.tiers},
            "profile": plan.profile_fingerprint,
        },
        sharding=plan.sharding,
        ids_for_a_launch=claims.ids_for_a_launch,
        claimed_s=claims.claimed_s,
    )


def _table(table: TablePlan, tier_names: Sequence[str], claim: Claim) -> TableSummary:
    """Read one table of our plan."""
    placed, told = table.placement, table.predicted
    seconds = {"hbm": told.hbm_s, "host": told.host_s}
    claimed = {"hbm": claim.hbm_s, "host": claim.host_s}
    stock = {"hbm": told.stock_hbm_s, "host": told.stock_host_s}
    sums = {"hbm": placed.num_hbm_sums, "host": placed.num_sums - placed.num_hbm_sums}
    tiers = []
    for name in tier_names:
        use = placed.hbm if name == "hbm" else placed.host
        tiers.append(
            TierPart(
                tier=name,
                originals=placed.num_rows if placed.originals == name else 0,
                sums=sums[name],
                hot_rows=int(placed.hot_items.size) if name == "hbm" else 0,
                bytes=use.bytes,
                reads=use.reads,
                time_s=seconds[name],
                stock_s=stock[name],
                claimed_s=claimed[name],
            )
        )
    return TableSummary(
        table=table.spec.key,
        verdict=table.verdict,
        method=table.picked,
        lookup=table.lookup,
        reason=table.reason,
        num_rows=table.spec.num_rows,
        row_bytes=table.spec.row_bytes,
        tiers=tuple(tiers),
        cut=told.cut,
        in_line_cut=table.curve[-1].in_line_cut if table.curve else None,
        ahead_cut=table.curve[-1].ahead_cut if table.curve else None,
        ids=told.ids,
        extra_bytes=told.extra_bytes,
        metadata_bytes=told.metadata_bytes,
        doubt=claim.doubt,
        verdict_told=told_verdict(table, claim),
        contents=Contents(table.sums, placed.hot_items),
    )
