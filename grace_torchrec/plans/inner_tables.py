"""Inner tables: the stock tables that a swapped model is made of, by the plan alone.

Flow: TablePlans -> *inner_tables* -> skeleton for TorchRec's planner, the tables that a sharding
holds, and the names that modules/ gives.  A collection that uses a table becomes one collection for
each memory, ``<path>.host`` and ``<path>.hbm``; rows that are stored beside a table are a table of
their own.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from grace_sharding.memory_tiers import TierName
from grace_torchrec.plans.held import stored_sets

if TYPE_CHECKING:
    from grace_torchrec.plans.table_plan import TablePlan

TIERS: tuple[TierName, ...] = ("hbm", "host")


class InnerTable(NamedTuple):
    """One stock table of a swapped model.

    Attributes:
        name: Its name.
        path: Dotted path of its collection.
        tier: Memory of its rows.
        num_rows: Its rows.
        table: The plan it comes from.
    """

    name: str
    path: str
    tier: TierName
    num_rows: int
    table: "TablePlan"


def stored_name(table: str, tier: str) -> str:
    """Return the name of the table of stored rows beside ``table`` in a tier."""
    return f"{table}__{tier}_rows"


def inner_tables(tables: Iterable["TablePlan"]) -> list[InnerTable]:
    """Return the tables of a swapped model; originals stand before what is stored beside them.

    Args:
        tables: All tables of a plan.
    """
    tables = list(tables)
    swapped = {table.spec.module for table in tables if table.sums is not None}
    found: list[InnerTable] = []
    for table in tables:
        spec, sets = table.spec, stored_sets(table)
        held = [(spec.name, table.placement.originals, spec.num_rows)]
        held += [
            (stored_name(spec.name, tier), tier, sets[tier][0].size - 1)
            for tier in TIERS
            if tier in sets
        ]
        for name, tier, num_rows in held:
            path = f"{spec.module}.{tier}" if spec.module in swapped else spec.module
            found.append(InnerTable(name, path, tier, num_rows, table))
    return found
