"""Shards: which rank holds which part of which table, as plain values.

Flow: TorchRec's planner -> *TableShards* -> plan files, views; no TorchRec is needed to read them.
Shapes: S shards of a table, W ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_RANKS = 65_536
COUNTS = ("rank", "first_row", "first_column", "rows", "columns", "hbm_bytes", "host_bytes")


@dataclass(frozen=True)
class Shard:
    """One shard of a table.

    Attributes:
        rank: Who holds it.
        first_row: Row of the table where it begins.
        first_column: Column where it begins.
        rows: Rows it holds.
        columns: Columns it holds.
        hbm_bytes: Bytes it takes of the HBM of its rank.
        host_bytes: Bytes it takes of the host memory of its rank.
        busy_ms: Modelled milliseconds that a batch keeps the memory of its kernel busy.
        comms_ms: Modelled milliseconds of exchange with other ranks for it.
    """

    rank: int
    first_row: int
    first_column: int
    rows: int
    columns: int
    hbm_bytes: int
    host_bytes: int
    busy_ms: float
    comms_ms: float


@dataclass(frozen=True)
class TableShards:
    """One table of the model as the ranks hold it.

    Attributes:
        module: Dotted path of its collection.
        table: Its name.
        sharding_type: As TorchRec names it, e.g. ``row_wise``.
        kernel: Compute kernel, e.g. ``fused_uvm``.
        tier: Memory that the kernel reads rows from: ``hbm`` or ``host``.
        pooling_factors: Rows read for a bag, by feature, that the plan was made with.
        shards: In order of rows and columns; a data-parallel table has one for each rank.
    """

    module: str
    table: str
    sharding_type: str
    kernel: str
    tier: str
    pooling_factors: tuple[float, ...]
    shards: tuple[Shard, ...]

    @property
    def told(self) -> str:
        """How it is held, on one line: way, kernel, and ``rows x columns`` by rank."""
        held = ", ".join(f"{s.rows:,} x {s.columns} on rank {s.rank}" for s in self.shards)
        return f"{self.sharding_type}, {self.kernel}: {held}"

    def check(self, world_size: int) -> None:
        """Refuse fields that no planner writes.

        Raises:
            ValueError: names the table and the field.
        """
        where = f"sharding: table {self.table!r}"
        texts = (self.module, self.table, self.sharding_type, self.kernel)
        if not all(isinstance(text, str) for text in texts) or self.tier not in ("hbm", "host"):
            raise ValueError(f"{where}: names must be text, and tier hbm or host")
        if not all(_is_number(factor) for factor in self.pooling_factors):
            raise ValueError(f"{where}: pooling factors must be numbers >= 0")
        for shard in self.shards:
            counts = [getattr(shard, name) for name in COUNTS]
            if not all(type(count) is int and count >= 0 for count in counts):
                raise ValueError(f"{where}: {shard} holds other than integers >= 0")
            if shard.rank >= world_size:
                raise ValueError(f"{where}: {shard} is on no rank of {world_size}")
            if not (_is_number(shard.busy_ms) and _is_number(shard.comms_ms)):
                raise ValueError(f"{where}: {shard} takes no such time")

    def to_json(self) -> dict[str, Any]:
        """Return lists, dictionaries, numbers and text."""
        return asdict(self) | {
            "pooling_factors": list(self.pooling_factors),
            "shards": [asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TableShards":
        """Read what :meth:`to_json` returned.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is unknown.
        """
        shards = tuple(Shard(**shard) for shard in value["shards"])
        factors = tuple(value["pooling_factors"])
        return cls(**{**value, "shards": shards, "pooling_factors": factors})


def _is_number(value: object) -> bool:
    """Tell finite numbers >= 0 from all else."""
    plain = isinstance(value, float | int) and not isinstance(value, bool)
    return plain and 0 <= value < math.inf  # type: ignore[operator]


@dataclass(frozen=True)
class Sharding:
    """How the ranks hold a whole model.

    Attributes:
        world_size: Ranks.
        local_world_size: Ranks of a host.
        batch_size: Bags of a feature in the batch of a rank, for the modelled times.
        tables: Every table, in order of module and name.

    Raises:
        ValueError: numbers are out of range, a table is there twice, or a shard has no such rank.
    """

    world_size: int
    local_world_size: int
    batch_size: int
    tables: tuple[TableShards, ...]

    def __post_init__(self) -> None:
        """Check once: shardings also come from files."""
        numbers = (self.world_size, self.local_world_size, self.batch_size)
        if not all(type(number) is int and number >= 1 for number in numbers):
            raise ValueError(f"sharding: ranks and batch size must be integers >= 1, got {numbers}")
        if self.world_size > MOST_RANKS:
            raise ValueError(f"sharding: {self.world_size} ranks, at most {MOST_RANKS} are known")
        if self.world_size % self.local_world_size:
            raise ValueError(
                f"sharding: {self.world_size} ranks do not fill hosts of {self.local_world_size}"
            )
        if len({(table.module, table.table) for table in self.tables}) != len(self.tables):
            raise ValueError("sharding: a table is there twice")
        for table in self.tables:
            table.check(self.world_size)

    @property
    def rank_ms(self) -> tuple[float, ...]:
        """Modelled milliseconds of a batch on every rank."""
        return rank_ms(self.tables, self.world_size)

    def to_json(self) -> dict[str, Any]:
        """Return lists, dictionaries, numbers and text."""
        return {**vars(self), "tables": [table.to_json() for table in self.tables]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Sharding":
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: a field is missing, unknown, or out of range.
        """
        try:
            tables = tuple(TableShards.from_json(table) for table in value["tables"])
            return cls(**{**value, "tables": tables})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"sharding: {error} is missing, unknown or of another type") from error


def rank_ms(tables: Sequence[TableShards], world_size: int) -> tuple[float, ...]:
    """Return the modelled milliseconds of a batch on every rank.

    Both memories are read at the same time, so the slower one counts, never the sum; the exchange
    comes after (GRACE, ASPLOS'23, for one device; ranks are derived).
    """
    busy = [{"hbm": 0.0, "host": 0.0} for _ in range(world_size)]
    comms = [0.0] * world_size
    for table in tables:
        for shard in table.shards:
            busy[shard.rank][table.tier] += shard.busy_ms
            comms[shard.rank] += shard.comms_ms
    return tuple(max(tiers.values()) + c for tiers, c in zip(busy, comms, strict=True))
