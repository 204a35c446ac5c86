"""Planner stats: the plan that TorchRec's planner settled on, as plain values and not as a log.

Flow: GraceShardingPlanner -> *ShardStats* -> TableShards -> plan files, views; and back:
*sharding_plan* makes of them what DistributedModelParallel takes.
"""

from typing import Any

from torchrec.distributed.planner.types import ShardingOption, Stats
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from grace_sharding._torchrec import reads_host
from grace_sharding.shards import Shard, Sharding, TableShards


class ShardStats(Stats):  # type: ignore[misc]
    """Keeps the last plan; prints nothing.

    Attributes:
        tables: Every table of the plan, in order of module and name; empty where none was found.
        num_proposals: How many proposals were looked at.
    """

    def __init__(self) -> None:
        self.tables: tuple[TableShards, ...] = ()
        self.num_proposals = 0

    def log(
        self,
        sharding_plan: Any,
        topology: Any,
        batch_size: int,
        storage_reservation: Any,
        num_proposals: int,
        num_plans: int,
        run_time: float,
        best_plan: list[ShardingOption],
        constraints: Any = None,
        sharders: Any = None,
        enumerator: Any = None,
        debug: bool = False,
        debug_stats: Any = None,
    ) -> None:
        """Keep a plan; the planner calls this once a plan, with an empty one where it found none."""
        self.num_proposals = num_proposals
        on_gpu = topology.compute_device != "cpu"
        found = [_table(option, on_gpu) for option in best_plan] if sharding_plan.plan else []
        self.tables = tuple(sorted(found, key=lambda table: (table.module, table.table)))


def _table(option: ShardingOption, on_gpu: bool) -> TableShards:
    """Return one table of a plan; a CPU has no memory but that of the host."""
    shards = sorted((_shard(shard) for shard in option.shards), key=_place)
    return TableShards(
        module=option.path,
        table=option.name,
        sharding_type=option.sharding_type,
        kernel=option.compute_kernel,
        tier="hbm" if on_gpu and not reads_host(option.compute_kernel) else "host",
        pooling_factors=tuple(float(factor) for factor in option.input_lengths),
        shards=tuple(shards),
    )


def _place(shard: Shard) -> tuple[int, int, int]:
    """Order of shards."""
    return shard.first_row, shard.first_column, shard.rank


def _shard(shard: Any) -> Shard:
    """Return one shard of a plan."""
    return Shard(
        rank=shard.rank,
        first_row=shard.offset[0],
        first_column=shard.offset[1],
        rows=shard.size[0],
        columns=shard.size[1],
        hbm_bytes=shard.storage.hbm,
        host_bytes=shard.storage.ddr,
        busy_ms=shard.perf.fwd_compute + shard.perf.prefetch_compute,
        comms_ms=shard.perf.fwd_comms + shard.perf.input_dist_comms,
    )


def sharding_plan(sharding: Sharding, device: str = "cuda") -> ShardingPlan:
    """Return the ShardingPlan that DistributedModelParallel takes.

    Args:
        sharding: Of a plan.
        device: Type of the ranks' device, ``cuda`` or ``cpu``.
    """
    modules: dict[str, Any] = {}
    for table in sharding.tables:
        module = modules.setdefault(table.module, EmbeddingModuleShardingPlan())
        shards = [
            ShardMetadata(
                shard_offsets=[shard.first_row, shard.first_column],
                shard_sizes=[shard.rows, shard.columns],
                placement=placement(device, shard.rank, sharding.local_world_size),
            )
            for shard in table.shards
        ]
        whole = table.sharding_type == "data_parallel"
        module[table.table] = ParameterSharding(
            sharding_type=table.sharding_type,
            compute_kernel=table.kernel,
            ranks=[shard.rank for shard in table.shards],
            sharding_spec=None if whole else EnumerableShardingSpec(shards),
        )
    return ShardingPlan(modules)
