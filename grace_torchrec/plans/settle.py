"""Settling: which tables use what they could store, once all of them share the memories.

Flow: Choice per table + memory -> priced candidates -> verdict per table -> placement on all bags
-> *TablePlan* per table.  Derived: tables that gain nothing step down from sums and hot rows to hot
rows alone to stock as long as that costs the model no time; this is tried with several shares of
the sums, and the way with the least time is taken.  Time is that of all tables together: the slower
memory first, then the sum of both.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement, TierUse
from grace_sharding.table_reads import DoesNotFit
from grace_torchrec.errors import NoPlan
from grace_torchrec.plans.candidates import Choice, trimmed
from grace_torchrec.plans.cpu_lookup_cost import InLine, in_line_on_cpu, rewrite_ns_of
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Prediction, TableLookup, TablePlan
from grace_torchrec.plans.pricing import Busy, Candidate, Mode, Part, place_candidates, price
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import sum_reads
from grace_torchrec.sums.stored_sums import StoredSums

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the sums, tried where HBM is contested
BEST_SHARES = 2  # shares whose tables may still step down
LEAST_TIME_GAIN = 0.01  # of the stock time: for less, nothing is stored beside a table (derived)
MOST_ALONE, LEAST_ALONE, ALONE_WORK = 16, 3, 800  # tables that step down one by one, see _alone


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
    stock = [Candidate(spec, choice, "stock", choice.reason) for spec, choice in pairs]
    stock_busy = _price_all(stock, memory)
    hot = [Candidate(spec, choice, "hot", choice.reason) for spec, choice in pairs]
    ways = [(stock, stock_busy), (hot, _step_down(hot, memory, stock_busy, stock_busy))]
    shares = SHARES if _contested(pairs, memory) else SHARES[-1:]
    full = [
        [_with_sums(spec, trimmed(choice, share)) for spec, choice in pairs] for share in shares
    ]
    full.sort(key=lambda way: _cost(_price_all(way, memory)))
    ways += [(way, _step_down(way, memory, stock_busy, ways[1][1])) for way in full[:BEST_SHARES]]
    best, busy = min(ways, key=lambda way: _cost(way[1]))  # equal: what stores least
    for candidate, tried in zip(best, full[0], strict=True):
        candidate.reason = candidate.reason or tried.reason or _no_faster(candidate, memory)
    modes = [candidate.mode for candidate in best]
    for candidate in best:
        in_line = _in_line(candidate, memory, options)
        if in_line is not None and not in_line.pays:
            candidate.mode, candidate.reason = "stock", in_line.reason
    placements = _place(best, memory, "all")
    if modes != [
        candidate.mode for candidate in best
    ]:  # the refit stores more, or rewriting costs too much
        busy = _price_all(best, memory)
    return tuple(
        _table_plan(*parts, memory, options)
        for parts in zip(best, placements, busy, stock_busy, strict=True)
    )


def _contested(pairs: Sequence[tuple[TableSpec, Choice]], memory: MemoryModel) -> bool:
    """Tell whether sums and rows compete for HBM: only then may fewer sums be faster."""
    rows = sum((spec.num_rows + choice.sums.num_sums) * spec.row_bytes for spec, choice in pairs)
    metadata = sum(choice.sums.metadata_bytes for _, choice in pairs)
    return memory.hbm is not None and 0 < memory.hbm.num_bytes < rows + metadata


def _with_sums(spec: TableSpec, choice: Choice) -> Candidate:
    """A table that stores all it can."""
    mode: Mode = "sums" if choice.held_sums.num_sums and choice.sums.num_sums else "hot"
    return Candidate(spec, choice, mode, choice.reason)


def _step_down(
    candidates: list[Candidate], memory: MemoryModel, stock: Sequence[Busy], hot: Sequence[Busy]
) -> list[Busy]:
    """Step tables down that are no faster by themselves, where the whole model loses nothing by it.

    Args:
        candidates: Tables; their modes and reasons are written.
        memory: The machine they share.
        stock: Times of the stock tables.
        hot: Times with hot rows only.

    Returns:
        The times of the modes that are left.
    """
    busy = _price_all(candidates, memory)
    for mode, bars in (("sums", hot), ("hot", stock)):
        losses = {
            t: busy[t].time_s
            - min(bars[t].time_s, stock[t].time_s)
            + LEAST_TIME_GAIN * stock[t].time_s
            for t, candidate in enumerate(candidates)
            if candidate.mode == mode
        }
        losers = sorted((t for t in losses if losses[t] >= 0), key=lambda t: -losses[t])
        alone = _alone(len(candidates))
        groups = [[t] for t in losers[:alone]] + [losers[alone:]]
        for group in filter(None, groups):
            slack_s = LEAST_TIME_GAIN * sum(stock[t].time_s for t in group)
            busy = _try_lower(candidates, group, memory, busy, slack_s)
    return busy


def _try_lower(
    candidates: list[Candidate],
    group: list[int],
    memory: MemoryModel,
    busy: list[Busy],
    slack_s: float,
) -> list[Busy]:
    """Step the tables of ``group`` down, unless the model gets slower by more than ``slack_s``."""
    before = [(candidate.mode, candidate.reason) for candidate in candidates]
    for t in group:
        candidates[t].reason = candidates[t].reason or _no_faster(candidates[t], memory)
        candidates[t].mode = _lower(candidates[t].mode)
    lower = _price_all(candidates, memory)
    if _cost(lower)[0] <= _cost(busy)[0] + slack_s:
        return lower
    for candidate, (mode, reason) in zip(candidates, before, strict=True):
        candidate.mode, candidate.reason = mode, reason
    return busy


def _alone(num_tables: int) -> int:
    """How many tables step down one by one, the others together: each trial places all tables."""
    return min(MOST_ALONE, max(LEAST_ALONE, ALONE_WORK // max(1, num_tables)))


def _cost(busy: Sequence[Busy]) -> tuple[float, float]:
    """Time of all tables together, then what both memories do, to tell equal times apart."""
    total = sum(busy, Busy())
    return total.time_s, total.hbm_s + total.host_s


def _price_all(candidates: Sequence[Candidate], memory: MemoryModel) -> list[Busy]:
    """Price every table where it is."""
    placements = _place(candidates, memory, "fit")
    return [price(c, p, memory) for c, p in zip(candidates, placements, strict=True)]


def _place(
    candidates: Sequence[Candidate], memory: MemoryModel, part: Part
) -> tuple[Placement, ...]:
    """Place all tables; sums that fit nowhere are given up, originals that do not end it."""
    while (placements := _try_place(candidates, memory, part)) is None:
        pass  # a table has given its sums up
    return placements


def _try_place(
    candidates: Sequence[Candidate], memory: MemoryModel, part: Part
) -> tuple[Placement, ...] | None:
    """Place all tables, or make the table in the way give its sums up and return None."""
    try:
        return place_candidates(candidates, memory, part)
    except DoesNotFit as error:
        if error.what == "originals":
            raise NoPlan(str(error)) from error
        refused = next(c for c in candidates if c.spec.key == error.table)
        need, have = f"{error.need_bytes:,}", f"{error.have_bytes:,}"
        refused.reason = f"its stored sums need {need} bytes of memory, {have} are left"
        refused.mode = _lower(refused.mode)
        return None


def _lower(mode: Mode) -> Mode:
    """The mode that stores one kind of row less."""
    return "hot" if mode == "sums" else "stock"


def _no_faster(candidate: Candidate, memory: MemoryModel) -> str:
    """Say that the cut is there and the time is not."""
    cut = candidate.choice.cuts.get(candidate.choice.picked, 0.0)  # of all its sums
    return f"sums cut {cut:.1%} of row reads on held-out bags, but are modelled no faster on {memory.machine}"


def _table_plan(
    candidate: Candidate,
    placement: Placement,
    busy: Busy,
    stock: Busy,
    memory: MemoryModel,
    options: PlanOptions,
) -> TablePlan:
    """Write the decision over one table down, with its reason."""
    sums = candidate.sums("all")
    used = candidate.mode != "stock" and bool(placement.hot_items.size or (sums and sums.num_sums))
    in_line = _in_line(candidate, memory, options) if used else None
    if not used:
        placement, sums = _without_hot_rows(placement), None
    elif sums is None:
        sums = StoredSums.none(candidate.spec.num_rows)
    reads = candidate.reads("validation")
    extra = extra_of(sums, placement)
    predicted = Prediction(
        ids=reads.rows_before,
        rows_read=reads.rows_after,
        cut=reads.cut,
        extra_rows=extra.rows,
        extra_bytes=extra.bytes,
        metadata_bytes=extra.metadata_bytes,
        kept_bytes=extra.kept_bytes,
        hbm_s=busy.hbm_s,
        host_s=busy.host_s,
        stock_s=stock.time_s,
    )
    lookup = _lookup(placement.num_sums if used else 0, options)
    choice, has_sums = candidate.choice, candidate.mode == "sums" and used
    return TablePlan(
        spec=candidate.spec,
        verdict="use" if used else "leave stock",
        reason=_reason(candidate, placement, predicted, memory) if used else candidate.reason,
        method=choice.method if has_sums else "none",
        sums=sums,
        placement=placement,
        lookup=lookup,
        lookup_reason=in_line.reason if used and in_line else _lookup_reason(used, lookup, options),
        predicted=predicted,
        parameter=choice.parameter if has_sums else "",
        cuts=choice.cuts,
        curve=choice.curve,
        sum_reads_R=sum_reads(choice.bags.validation, sums),
    )


def _in_line(candidate: Candidate, memory: MemoryModel, options: PlanOptions) -> InLine | None:
    """Price rewriting on a CPU where it is in the way of every id, and nobody insists on it."""
    sums, spec = candidate.sums("all"), candidate.spec
    if memory.hbm is not None or sums is None or options.lookup != "auto":
        return None
    if options.rewriting != "in_line":
        return None
    cut = candidate.reads("validation").cut
    return in_line_on_cpu(spec.num_rows, spec.row_bytes, sums.num_sums, cut, rewrite_ns_of(sums))


def _reason(
    candidate: Candidate, placement: Placement, predicted: Prediction, memory: MemoryModel
) -> str:
    """Say what a used table gains by what."""
    parts = []
    if candidate.mode == "sums":
        parts.append(f"sums cut {predicted.cut:.1%} of row reads on validation bags")
    else:
        parts.append(candidate.reason)
    if placement.hot_items.size:
        parts.append(f"its {placement.hot_items.size:,} most read rows are copied to HBM")
    if candidate.choice.counted_share < 1:
        parts.append(f"pairs were counted on {candidate.choice.counted_share:.1%} of the bags")
    stored = "; ".join(parts)
    if predicted.time_ratio < 1:
        return f"{stored}: slower alone, all tables together are faster on {memory.machine}"
    return f"{stored}: modelled {predicted.time_ratio:.2f} times faster on {memory.machine}"


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
