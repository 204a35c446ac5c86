"""Shards: which rank holds which part of which table, as plain values.

Flow: TorchRec's planner -> *TableShards* -> plan files, views; no TorchRec is needed to read them.
Shapes: S shards of a table, W ranks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grace_sharding.errors import GraceError

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
            GraceError: names the table and the field.
        """
        where = f"sharding: table {self.table!r}"
        texts = (self.module, self.table, self.sharding_type, self.kernel)
        if not all(isinstance(text, str) for text in texts) or self.tier not in ("hbm", "host"):
            raise GraceError(f"{where}: names must be text, and tier hbm or host")
        if not all(_is_number(factor) for factor in self.pooling_factors):
            raise GraceError(f"{where}: pooling factors must be numbers >= 0")
        for shard in self.shards:
            counts = [getattr(shard, name) for name in COUNTS]
            if not all(type(count) is int and count >= 0 for count in counts):
                raise GraceError(f"{where}: {shard} holds other than integers >= 0")
            if shard.rank >= world_size:
                raise GraceError(f"{where}: {shard} is on no rank of {world_size}")
            if not (_is_number(shard.busy_ms) and _is_number(shard.comms_ms)):
                raise GraceError(f"{where}: {shard} takes no such time")

    def is_whole(self, shape: tuple[int, int], world_size: int) -> bool:
        """Tell whether the shards cover a table, each value once; data-parallel, on every rank.

        Args:
            shape: Rows and columns of the table.
            world_size: Ranks.
        """
        rows, columns = shape
        if self.sharding_type == "data_parallel":
            parts = {(s.first_row, s.first_column, s.rows, s.columns) for s in self.shards}
            ranks = sorted(s.rank for s in self.shards)
            return parts == {(0, 0, rows, columns)} and ranks == list(range(world_size))
        rows_by_columns: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for shard in self.shards:
            held = rows_by_columns.setdefault((shard.first_column, shard.columns), [])
            held.append((shard.first_row, shard.rows))
        return _covers(rows_by_columns, columns) and all(
            _covers(held, rows) for held in rows_by_columns.values()
        )

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


def _covers(spans: Iterable[tuple[int, int]], size: int) -> bool:
    """Tell whether spans (first, length) cover ``size`` places, each once and none beside them."""
    end = 0
    for first, length in sorted(spans):
        if first != end:
            return False
        end += length
    return end == size


@dataclass(frozen=True)
class Sharding:
    """How the ranks hold a whole model.

    Attributes:
        world_size: Ranks.
        local_world_size: Ranks of a host.
        batch_size: Bags of a feature in the batch of a rank, for the modelled times.
        tables: Every table, in order of module and name.

    Raises:
        GraceError: numbers are out of range, a table is there twice, or a shard has no such rank.
    """

    world_size: int
    local_world_size: int
    batch_size: int
    tables: tuple[TableShards, ...]

    def __post_init__(self) -> None:
        """Check once: shardings also come from files."""
        numbers = (self.world_size, self.local_world_size, self.batch_size)
        if not all(type(number) is int and number >= 1 for number in numbers):
            raise GraceError(f"sharding: ranks and batch size must be integers >= 1, got {numbers}")
        if self.world_size > MOST_RANKS:
            raise GraceError(f"sharding: {self.world_size} ranks, at most {MOST_RANKS} are known")
        if self.world_size % self.local_world_size:
            raise GraceError(
                f"sharding: {self.world_size} ranks do not fill hosts of {self.local_world_size}"
            )
        if len({(table.module, table.table) for table in self.tables}) != len(self.tables):
            raise GraceError("sharding: a table is there twice")
        for table in self.tables:
            table.check(self.world_size)

    @property
    def rank_ms(self) -> tuple[float, ...]:
        """Modelled milliseconds of a batch on every rank."""
        return rank_ms(self.tables, self.world_size)

    def check_tables(self, shapes: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        """Refuse to stand for other tables than these, or for parts of them.

        Args:
            shapes: Rows and columns of every table, by dotted path of its collection and its name.

        Raises:
            GraceError: names the table.
        """
        held = {(table.module, table.table): table for table in self.tables}
        for path, name in sorted(shapes.keys() ^ held.keys()):
            where = "the plan has no such table" if (path, name) in held else "no rank holds it"
            raise GraceError(f"sharding of table {name!r} in {path!r}: {where}")
        for key, table in held.items():
            rows, columns = shapes[key]
            if not table.is_whole((rows, columns), self.world_size):
                raise GraceError(
                    f"sharding of table {table.table!r}: its shards are not the "
                    f"{rows} x {columns} values of the table"
                )

    def to_json(self) -> dict[str, Any]:
        """Return lists, dictionaries, numbers and text."""
        return {**vars(self), "tables": [table.to_json() for table in self.tables]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Sharding":
        """Read what :meth:`to_json` returned.

        Raises:
            GraceError: a field is missing, unknown, or out of range.
        """
        try:
            tables = tuple(TableShards.from_json(table) for table in value["tables"])
            return cls(**{**value, "tables": tables})
        except (KeyError, TypeError, AttributeError) as error:
            raise GraceError(f"sharding: {error} is missing, unknown or of another type") from error


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
