"""Make: the plan of a whole model, tables sharing one HBM and one host memory.

Flow: table specs + Profile + MemoryModel + PlanOptions -> checks -> a Choice per table -> settling
-> *Plan*.  Everything is checked before anything is counted.
"""

from collections.abc import Callable, Sequence

from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.plans.candidates import Choice
from grace_torchrec.plans.choose import choose_sums
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.traces.profile import Profile


def make_plan(
    specs: Sequence[TableSpec],
    profile: Profile,
    memory: MemoryModel,
    options: PlanOptions | None = None,
    *,
    seed: int = 0,
    in_order: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plan every table of a model.

    Args:
        specs: Tables of the model, names unique (``table_specs(model)``).
        profile: Recorded bags by table name; a table that is missing is left stock.
        memory: The machine the plan is for.
        options: What is asked for (default: ``PlanOptions()``).
        seed: Order of the bags; the last fifth of it is validation.
        in_order: The bags are in random order already: their last fifth is validation.
        progress: Called with one line of text before each table.

    Raises:
        PlanMismatch: the profile does not belong to these tables.
        NoPlan: the original tables fit in no memory.
    """
    options = options or PlanOptions()
    choices = choose_all(specs, profile, options, seed, in_order, progress)
    if progress is not None:
        progress(f"placing {len(specs)} tables on {memory.machine}")
    tables = settle(specs, choices, memory, options)
    return Plan({table.spec.key: table for table in tables}, memory, options, profile.fingerprint())


def choose_all(
    specs: Sequence[TableSpec],
    profile: Profile,
    options: PlanOptions,
    seed: int,
    in_order: bool,
    progress: Callable[[str], None] | None,
) -> list[Choice]:
    """Return what each table could store; arguments as in :func:`make_plan`.

    Raises:
        PlanMismatch: the profile does not belong to these tables.
    """
    check_profile_fits(profile, specs)
    choices = []
    for spec in specs:
        if progress is not None:
            progress(f"table {spec.key}: choosing sums")
        choices.append(choose_sums(spec, profile.tables.get(spec.name), options, seed, in_order))
    return choices


def check_profile_fits(profile: Profile, specs: Sequence[TableSpec]) -> None:
    """Refuse a profile that was not recorded on these tables.

    Raises:
        PlanMismatch: names the table and both values.
        GraceError: two specs have the same table name.
    """
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) != len(specs):
        raise GraceError("plan: two tables have the same name; rename one of them")
    for name, table in profile.tables.items():
        if name not in by_name:
            raise PlanMismatch(
                f"profile: table {name!r} is not in the model, which has {', '.join(sorted(by_name)) or 'none'}; "
                "profile this model again"
            )
        spec = by_name[name]
        if table.trace.num_items > spec.num_rows:
            raise PlanMismatch(
                f"profile: table {name!r} has ids up to {table.trace.num_items - 1}, "
                f"in the model it has {spec.num_rows} rows; profile this model again"
            )
        if sorted(table.features) != sorted(spec.features):
            raise PlanMismatch(
                f"profile: table {name!r} was read by the features {', '.join(table.features)}, "
                f"in the model by {', '.join(spec.features)}; profile this model again"
            )
