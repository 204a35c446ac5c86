"""Shards: which rank holds which part of which table, as plain values.

Flow: TorchRec's planner -> *TableShards* -> plan files, views; no TorchRec is needed to read them.
Shapes: S shards of a table, W ranks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


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
        pooling_factors = tuple(float(factor) for factor in value["pooling_factors"])
        return cls(**{**value, "shards": shards, "pooling_factors": pooling_factors})


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
