"""Settling: the plan of every table, once all of them share the memories.

Flow: Choice per table + memory -> offers -> sharing (what is stored and where) -> *TablePlan* per
table, with its reason.  Derived: a table that gains next to nothing stays stock.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement, TierUse
from grace_torchrec.plans.candidates import Choice, Finalist
from grace_torchrec.plans.claims import Claims, claims_of
from grace_torchrec.plans.cpu_lookup_cost import CpuPrice, price_on_cpu
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.offers import SETS, offer_of, shares_for
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Prediction, TableLookup, TablePlan
from grace_torchrec.plans.sharing import Settled, share
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import sum_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.split import repeated_share

MANY_REPEATED = 0.1  # of the validation bags: then the plan says so


def settle(
    specs: Sequence[TableSpec], choices: Sequence[Choice], memory: MemoryModel, options: PlanOptions
) -> tuple[TablePlan, ...]:
    """Decide over all tables together.

    Args:
        specs: The tables.
        choices: What each could store.
        memory: The machine they share.
        options: What the caller asked for.

    Raises:
        NoPlan: the original tables fit in no memory.
    """
    pairs = list(zip(specs, choices, strict=True))
    contested = _contested(pairs, memory)
    shares = shares_for(len(pairs), contested)
    by_row = contested and SETS in options.usable_methods
    offers = []
    for spec, choice in pairs:
        finalists, refused = _may_be_taken(spec, choice, memory, options)
        offers.append(offer_of(spec, choice, finalists, shares, refused, by_row))
    settled = share(offers, memory, options.rewriting == "ahead", contested)
    tables = [
        _table_plan(one, choice, memory, options)
        for one, choice in zip(settled, choices, strict=True)
    ]
    claims = claims_of(tables, memory)
    return tuple(_with_claim(table, claims, memory) for table in tables)


def _contested(pairs: Sequence[tuple[TableSpec, Choice]], memory: MemoryModel) -> bool:
    """Tell whether sums and rows compete for HBM: only then may fewer sums be faster."""
    rows = sum(
        (spec.num_rows + choice.held_sums.num_sums) * spec.row_bytes for spec, choice in pairs
    )
    metadata = sum(choice.held_sums.metadata_bytes_of(spec.num_rows) for spec, choice in pairs)
    return memory.hbm is not None and 0 < memory.hbm.num_bytes < rows + metadata


def _may_be_taken(
    spec: TableSpec, choice: Choice, memory: MemoryModel, options: PlanOptions
) -> tuple[tuple[Finalist, ...], str]:
    """Return finalists by objective, the fastest where a CPU rewrites, or why there are none."""
    if choice.best is None:
        return (), ""
    finalists = choice.finalists if options.objective == "time" else (choice.best,)
    if not _rewrites_on_cpu(memory, options):
        return finalists, ""
    times = {one: _in_line(spec, one, memory) for one in finalists}
    fastest = max(finalists, key=lambda one: times[one].gain)
    if times[fastest].pays:
        return (fastest,), ""
    return (), times[fastest].reason


def _table_plan(
    settled: Settled, choice: Choice, memory: MemoryModel, options: PlanOptions
) -> TablePlan:
    """Write the decision over one table down, with its reason."""
    spec, placement, sums = settled.offer.spec, settled.placement, settled.sums
    used = settled.mode != "stock" and bool(placement.hot_items.size or placement.num_sums)
    if not used:
        placement, sums = _without_hot_rows(placement), None
    elif sums is None:
        sums = StoredSums.none(spec.num_rows)
    extra = extra_of(sums, placement)
    predicted = Prediction(
        ids=settled.judged.ids,
        rows_read=settled.judged.rows_read,
        cut=settled.judged.cut,
        extra_rows=extra.rows,
        extra_bytes=extra.bytes,
        metadata_bytes=extra.metadata_bytes,
        kept_bytes=extra.kept_bytes,
        hbm_s=settled.busy.hbm_s,
        host_s=settled.busy.host_s,
        stock_hbm_s=settled.stock.hbm_s,
        stock_host_s=settled.stock.host_s,
    )
    lookup = _lookup(placement.num_sums if used else 0, options)
    option = settled.option if used and placement.num_sums else None
    finalist = next((f for f in choice.finalists if option and f.method == option.method), None)
    in_line = finalist and _rewrites_on_cpu(memory, options) and _in_line(spec, finalist, memory)
    return TablePlan(
        spec=spec,
        verdict="use" if used else "leave stock",
        reason=_reason(settled, predicted, finalist, memory, choice.untried)
        if used
        else _refusal(settled, memory),
        method=option.method if option else "none",
        sums=sums,
        placement=placement,
        lookup=lookup,
        lookup_reason=in_line.reason if in_line else _lookup_reason(used, lookup, options),
        predicted=predicted,
        parameter=option.parameter if option else "",
        cuts=choice.cuts,
        curve=choice.curve,
        sum_reads_R=sum_reads(choice.bags.validation, sums),
    )


def _with_claim(table: TablePlan, claims: Claims, memory: MemoryModel) -> TablePlan:
    """End the reason of a used table with the gain that is claimed."""
    if table.verdict != "use":
        return table
    told = claims.reason(table.spec.key, memory.machine)
    return replace(table, reason=f"{table.reason}: {told}")


def _rewrites_on_cpu(memory: MemoryModel, options: PlanOptions) -> bool:
    """Tell whether rewriting is in the way of every id, on a CPU, and nobody insists on it."""
    return memory.hbm is None and options.lookup == "auto" and options.rewriting == "in_line"


def _in_line(spec: TableSpec, one: Finalist, memory: MemoryModel) -> CpuPrice:
    """Price the rewriting of a table's bags on a CPU."""
    return price_on_cpu(
        spec.num_rows, spec.row_bytes, one.held_sums, one.reads.cut, memory.lookup_costs
    )


def _refusal(settled: Settled, memory: MemoryModel) -> str:
    """Say why nothing is stored beside a table."""
    if settled.note or not settled.offer.options:
        return settled.note or settled.offer.reason
    least = min(settled.offer.options, key=lambda option: option.held.num_sums).held
    spec = settled.offer.spec
    need = least.num_sums * spec.row_bytes + least.metadata_bytes_of(spec.num_rows)
    left = memory.host.num_bytes - settled.placement.host.bytes
    left = max(left, (memory.hbm.num_bytes if memory.hbm else 0) - settled.placement.hbm.bytes)
    if need > left:
        return f"its stored sums need {need:,} bytes of memory, {left:,} are left"
    return (
        f"sums cut {settled.offer.cut:.1%} of row reads on held-out bags, but are modelled no "
        f"faster on {memory.machine}"
    )


def _reason(
    settled: Settled,
    predicted: Prediction,
    finalist: Finalist | None,
    memory: MemoryModel,
    untried: str,
) -> str:
    """Say by what a used table gains; how much comes when all tables are known."""
    if settled.option is not None:
        parts = [f"sums cut {predicted.cut:.1%} of row reads on validation bags"]
        again = repeated_share(settled.offer.bags.validation, settled.offer.bags.fit)
        if again >= MANY_REPEATED:
            parts.append(
                f"{again:.0%} of these are among the bags it was fitted on: others save less"
            )
    else:
        parts = [_refusal(settled, memory)]
    if settled.placement.hot_items.size:
        parts.append(f"its {settled.placement.hot_items.size:,} most read rows are copied to HBM")
    if finalist is not None and finalist.refit.counted_share < 1:
        share = finalist.refit.counted_share
        parts.append(f"pairs were counted on {share:.1%} of the bags")
    if finalist is not None and finalist.refit.is_judged:
        parts.append("all bags need more memory than those it was judged on, whose sums these are")
    if untried:
        parts.append(untried)
    return "; ".join(parts)


def _lookup(num_sums: int, options: PlanOptions) -> TableLookup:
    """Who reads the rows; without sums there is nothing to rewrite, ahead or in line."""
    if options.lookup != "auto":
        return options.lookup
    return "ahead" if options.rewriting == "ahead" and num_sums else "fused"


def _lookup_reason(used: bool, lookup: TableLookup, options: PlanOptions) -> str:
    """Say why that lookup."""
    if lookup == "ahead":
        return "bags arrive rewritten (rewriting 'ahead'); plain ones read the plain rows"
    if options.lookup == "auto" and not used:
        return "read in the same op as the tables beside it, where its collection is swapped"
    if options.lookup == "auto":
        return "one op reads originals, sums and hot rows of all memories"
    return f"lookup {options.lookup!r} was asked for"


def _without_hot_rows(placement: Placement) -> Placement:
    """The placement of a stock table: what a software cache holds is not ours to place."""
    if not placement.hot_items.size:
        return placement
    kept = TierUse(0, 0, 0)
    host = replace(placement.host, reads=placement.host.reads + placement.hbm.reads)
    return replace(placement, hot_items=np.zeros(0, np.int64), hbm=kept, host=host)
