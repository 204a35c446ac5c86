"""Choose: which sums a table could store, by the rows they save or by the time that takes.

Flow: TableSpec + TableProfile + PlanOptions + memory -> *Choice*, for a table that has the memories
to itself also *TablePlan*.  Plans of whole models go through :mod:`grace_torchrec.plans.make`, where
the tables share the memories.  Derived: a method is priced as if its table had the memories, or a
share of HBM, to itself.
"""

from dataclasses import replace

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.table_reads import DoesNotFit
from grace_torchrec.grouping.candidates import Judged
from grace_torchrec.grouping.choose import best_of
from grace_torchrec.plans.candidates import (
    Choice,
    Shortlist,
    held,
    judge_all,
    no_sums,
    refitted,
    split_validation,
)
from grace_torchrec.plans.cpu_lookup_cost import in_line_on_cpu, rewrite_ns_of
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.pricing import Candidate, place_candidates, price
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import TableProfile
from grace_torchrec.traces.trace import Trace


def choose(
    spec: TableSpec,
    table_profile: TableProfile,
    options: PlanOptions,
    memory: MemoryModel,
    seed: int = 0,
    in_order: bool = False,
) -> TablePlan:
    """Decide what one table stores and where.

    Args:
        spec: The table; its profile was checked against it.
        table_profile: Its recorded bags.
        options: What the caller asked for.
        memory: The machine.
        seed: Order of the bags; the last fifth of it is validation.
        in_order: The bags are in random order already: their last fifth is validation.

    Raises:
        NoPlan: the table fits in no memory.
    """
    choice = choose_sums(spec, table_profile, options, seed, in_order, memory)
    return settle([spec], [choice], memory, options)[0]


def choose_sums(
    spec: TableSpec,
    table_profile: TableProfile | None,
    options: PlanOptions,
    seed: int = 0,
    in_order: bool = False,
    memory: MemoryModel | None = None,
) -> Choice:
    """Choose the sums of one table on its validation bags.

    Args:
        spec: The table.
        table_profile: Its recorded bags; None if it was not recorded.
        options: What the caller asked for.
        seed: See :func:`choose`.
        in_order: See :func:`choose`.
        memory: What the table has to itself, for the objective ``time``; None: by cut.
    """
    if table_profile is None:
        empty = Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), spec.num_rows)
        return no_sums(split_validation(empty), "the profile does not hold this table")
    trace = _as_served(table_profile.trace, spec)
    bags = split_validation(trace, seed, in_order)
    if spec.is_weighted and trace.weights_L is None and trace.num_ids:
        return no_sums(bags, "its bags were recorded without weights")
    shortlist = judge_all(bags, options)
    picked = best_of(shortlist.finalists, options.min_gain)
    if options.objective == "time" and memory is not None and len(shortlist.finalists) > 1:
        picked = fastest(spec, shortlist, memory, options) or picked
    return refitted(shortlist, picked)


def fastest(
    spec: TableSpec, shortlist: Shortlist, memory: MemoryModel, options: PlanOptions
) -> Judged | None:
    """Return the finalist whose validation bags take the least time; None if none fits.

    Ties go to the one that comes first: the simpler code.

    Args:
        spec: The table.
        shortlist: Its finalists.
        memory: What it has to itself.
        options: How bags arrive.
    """
    seconds = {
        one.candidate.method: time_of(spec, held(shortlist, one), memory, options)
        for one in shortlist.finalists
    }
    fitting = [one for one in shortlist.finalists if seconds[one.candidate.method] is not None]
    return min(fitting, key=lambda one: seconds[one.candidate.method] or 0.0, default=None)


def time_of(
    spec: TableSpec, choice: Choice, memory: MemoryModel, options: PlanOptions
) -> float | None:
    """Return the modelled seconds of the validation bags with all sums of a choice.

    Args:
        spec: The table.
        choice: What it would store.
        memory: What it has to itself.
        options: How bags arrive.

    Returns:
        The time of the slower memory; on a CPU that rewrites in line with the time of rewriting;
        None where it does not fit.
    """
    if memory.hbm is None and options.rewriting == "in_line":
        sums, reads = choice.held_sums, choice.reads
        in_line = in_line_on_cpu(
            spec.num_rows, spec.row_bytes, sums.num_sums, reads.cut, rewrite_ns_of(sums)
        )
        return in_line.ours_ns * reads.rows_before * 1e-9
    candidate = Candidate(spec, choice, "sums", "")
    try:
        (placement,) = place_candidates([candidate], memory, "fit")
    except DoesNotFit:
        return None
    return price(candidate, placement, memory).time_s


def share_of_hbm(memory: MemoryModel, share: float) -> MemoryModel:
    """The machine with a share of its HBM, as one of several tables sees it."""
    tiers = [
        replace(tier, num_bytes=int(share * tier.num_bytes)) if tier.name == "hbm" else tier
        for tier in memory.tiers
    ]
    return replace(memory, tiers=tuple(tiers))


def _as_served(trace: Trace, spec: TableSpec) -> Trace:
    """The bags over all rows of the table, with weights only where the model uses them."""
    weights = trace.weights_L if spec.is_weighted else None
    if trace.num_items == spec.num_rows and weights is trace.weights_L:
        return trace
    return Trace(trace.offsets_B1, trace.ids_L, spec.num_rows, weights)
