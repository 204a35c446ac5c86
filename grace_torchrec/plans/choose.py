"""Choose: which sums a table could store; the decision for one that has the memories to itself.

Flow: TableSpec + TableProfile + PlanOptions -> *Choice*; with a memory -> *TablePlan*.  Plans of
whole models go through :mod:`grace_torchrec.plans.make`, where the tables share the memories.
"""

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.plans.candidates import Choice, judge_all, no_sums, split_validation
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.texts import NO_WEIGHTS, NOT_HELD
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
    choice = choose_sums(spec, table_profile, options, seed, in_order)
    return settle([spec], [choice], memory, options)[0]


def choose_sums(
    spec: TableSpec,
    table_profile: TableProfile | None,
    options: PlanOptions,
    seed: int = 0,
    in_order: bool = False,
) -> Choice:
    """Judge the sums that one table could store on its validation bags.

    Args:
        spec: The table.
        table_profile: Its recorded bags; None if it was not recorded.
        options: What the caller asked for.
        seed: See :func:`choose`.
        in_order: See :func:`choose`.
    """
    if table_profile is None:
        empty = Trace(np.zeros(1, np.int64), np.zeros(0, np.int64), spec.num_rows)
        return no_sums(split_validation(empty), NOT_HELD)
    trace = as_served(table_profile.trace, spec)
    bags = split_validation(trace, seed, in_order)
    if spec.is_weighted and trace.weights_L is None and trace.num_ids:
        return no_sums(bags, NO_WEIGHTS)
    return judge_all(bags, options)


def as_served(trace: Trace, spec: TableSpec) -> Trace:
    """Return recorded bags as the model serves them: over all rows of the table, its weights only.

    Weights of a table that is not weighted change no sum, but which sums its bags may share.

    Args:
        trace: Recorded bags of the table.
        spec: The table.
    """
    weights = trace.weights_L if spec.is_weighted else None
    if trace.num_items == spec.num_rows and weights is trace.weights_L:
        return trace
    return Trace(trace.offsets_B1, trace.ids_L, spec.num_rows, weights)
