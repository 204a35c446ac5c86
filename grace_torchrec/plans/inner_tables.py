"""Inner tables: the stock tables that a swapped model is made of, by the plan alone.

Flow: TablePlans -> *InnerTables* -> skeleton for TorchRec's planner, checks of a sharding, and the
names that modules/ gives.  A collection that uses a table becomes one collection for each memory,
``<path>.host`` and ``<path>.hbm``; rows that are stored beside a table are a table of their own.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from grace_sharding.memory_tiers import TierName
from grace_sharding.shards import Sharding, TableShards
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.held import stored_sets

if TYPE_CHECKING:
    from grace_torchrec.plans.plan import TablePlan

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


def check_sharding(sharding: Sharding, tables: Iterable["TablePlan"]) -> None:
    """Refuse a sharding that is not that of these tables, each of them whole.

    Args:
        sharding: Which rank holds what.
        tables: All tables of a plan.

    Raises:
        GraceError: names the table.
    """
    wanted = {(inner.path, inner.name): inner for inner in inner_tables(tables)}
    held = {(table.module, table.table): table for table in sharding.tables}
    for path, name in wanted.keys() ^ held.keys():
        where = "the plan has no such table" if (path, name) in held else "no rank holds it"
        raise GraceError(f"plan: sharding of table {name!r} in {path!r}: {where}")
    for key, table in held.items():
        inner = wanted[key]
        shape = inner.num_rows, inner.table.spec.dim
        if not _is_whole(table, shape, sharding.world_size):
            raise GraceError(
                f"plan: sharding of table {table.table!r}: its shards are not the "
                f"{shape[0]} x {shape[1]} values of the table"
            )


def _is_whole(table: TableShards, shape: tuple[int, int], world_size: int) -> bool:
    """Tell whether the shards of a table are inside it and as large as it together."""
    rows, columns = shape
    inside = all(
        shard.first_row + shard.rows <= rows and shard.first_column + shard.columns <= columns
        for shard in table.shards
    )
    cells = sum(shard.rows * shard.columns for shard in table.shards)
    if table.sharding_type == "data_parallel":  # every rank has all of it
        ranks = {shard.rank for shard in table.shards}
        return inside and len(ranks) == len(table.shards) and cells == len(ranks) * rows * columns
    starts = {(shard.first_row, shard.first_column) for shard in table.shards if shard.rows}
    filled = sum(1 for shard in table.shards if shard.rows)
    return inside and len(starts) == filled and cells == rows * columns
