"""GraceShardingPlanner: TorchRec's planner with the memories and the traffic of a grace plan.

Flow: meta skeleton (or the swapped model) + MemoryModel + tiers and pooling factors of its tables
-> *GraceShardingPlanner* -> ShardingPlan, and the same as plain values in ``tables``.
It is the stock planner on its own extension points: constraints, estimators, performance model and
stats.  Where it finds no plan it looks for the least change that has one, and says it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import (
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, ShardingOption

from grace_sharding import _torchrec
from grace_sharding.estimator import TierPerfModel, calibrated_estimators
from grace_sharding.memory_tiers import MemoryModel, TierName
from grace_sharding.obstacles import tables_of, wrong_factors
from grace_sharding.planner_stats import ShardStats
from grace_sharding.remedies import NoShardingPlan, Setting, explain
from grace_sharding.shards import Sharding, TableShards

__all__ = ["GraceShardingPlanner", "NoShardingPlan"]

FAILURES = (PlannerError, RuntimeError, AssertionError)  # of the stock planner; it has no one class


MOST_GRID = 400  # plans of a grid search; larger grids are left out
# On one host these shard as row_wise and column_wise do, and take the partitioner most of its time.
WITHIN_A_HOST = ("table_row_wise", "table_column_wise", "grid_shard")


class _Enumerator(EmbeddingEnumerator):  # type: ignore[misc]
    """Leaves out the ways of sharding that are others by another name where there is one host."""

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[ShardingOption]:
        """Return the ways to shard every table; never none for a table that has some."""
        options: list[ShardingOption] = super().enumerate(module, sharders)
        if self._world_size != self._local_world_size:
            return options
        kept = [option for option in options if option.sharding_type not in WITHIN_A_HOST]
        have = {option.fqn for option in kept}
        return kept + [option for option in options if option.fqn not in have]


class GraceShardingPlanner(EmbeddingShardingPlanner):  # type: ignore[misc]
    """Plans the shards of a swapped model; give it to DistributedModelParallel's users as any planner.

    Args:
        memory: HBM of each rank and host memory of each host, and how fast a rank reads them.
        world_size: Ranks.
        local_world_size: Ranks of a host (default: all); hosts share nothing.
        batch_size: Bags of a feature in the batch of a rank.
        tiers: Table -> memory of its rows; a table left out may go to either.
        pooling_factors: Table -> rows read for a bag, by feature, measured with sums applied.
        constraints: TorchRec's constraints by table; what they say goes before ``tiers``.
        reserved: Bytes of each tier that are taken on every rank already, such as codes.
        thorough: Compare more plans; without it the first ones that come to hand.

    Attributes:
        tables: The last plan as plain values.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        memory: MemoryModel,
        *,
        world_size: int = 1,
        local_world_size: int | None = None,
        batch_size: int = 512,
        tiers: Mapping[str, TierName] | None = None,
        pooling_factors: Mapping[str, Sequence[float]] | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        reserved: Mapping[TierName, int] | None = None,
        thorough: bool = True,
    ) -> None:
        self.setting = Setting(
            memory=memory,
            world_size=world_size,
            local_world_size=world_size if local_world_size is None else local_world_size,
            batch_size=batch_size,
            reserved=dict(reserved or {}),
            constraints=merged_constraints(memory, tiers, pooling_factors, constraints),
        )
        setting = self.setting
        self._shard_stats = ShardStats()
        with _torchrec.quiet():
            topology = _torchrec.topology(
                memory, world_size, setting.local_world_size, setting.reserved
            )
            super().__init__(
                topology=topology,
                batch_size=batch_size,
                enumerator=_Enumerator(
                    topology=topology,
                    batch_size=batch_size,
                    constraints=setting.constraints,
                    estimator=calibrated_estimators(memory, topology, setting.constraints),
                ),
                storage_reservation=FixedPercentageStorageReservation(0.0),
                proposer=_proposers(thorough),
                performance_model=TierPerfModel(world_size),
                stats=self._shard_stats,
                constraints=setting.constraints,
                debug=False,
            )

    @property
    def tables(self) -> tuple[TableShards, ...]:
        """The last plan, table by table."""
        return self._shard_stats.tables

    @property
    def sharding(self) -> Sharding:
        """The last plan as one value."""
        setting = self.setting
        return Sharding(
            setting.world_size, setting.local_world_size, setting.batch_size, self.tables
        )

    def plan(self, module: nn.Module, sharders: list[Any]) -> Any:
        """Return TorchRec's ShardingPlan of a model.

        Args:
            module: A meta skeleton, or the model itself.
            sharders: TorchRec's sharders.

        Raises:
            NoShardingPlan: names the table, what it needs, what there is, and what helps.
        """
        try:
            return self._solve(module, sharders)
        except FAILURES as error:
            cause = error
        raise explain(self.setting, module, sharders, self._solved, str(cause)) from cause

    def _solve(self, module: nn.Module, sharders: list[Any]) -> Any:
        """Return the plan of the stock planner, which says nothing on the way."""
        tables = tables_of(module, sharders, self.setting.constraints)
        for table in tables:
            if wrong_factors(table, self.setting.constraints):
                raise RuntimeError(f"table {table.name!r} has other than one factor a feature")
        with _torchrec.quiet():
            plan = super().plan(module, sharders)
        planned = {table.table for table in self.tables}
        for table in tables:
            if table.name not in planned:  # its device group is another
                raise RuntimeError(f"table {table.name!r} was left out of the plan")
        return plan

    @classmethod
    def _solved(
        cls, setting: Setting, module: nn.Module, sharders: list[Any]
    ) -> dict[str, tuple[str, str]] | None:
        """Return table -> (sharding type, kernel) in another setting, None where nothing fits."""
        planner = cls(
            setting.memory,
            world_size=setting.world_size,
            local_world_size=setting.local_world_size,
            batch_size=setting.batch_size,
            constraints=setting.constraints,
            reserved=setting.reserved,
            thorough=False,
        )
        try:
            planner._solve(module, sharders)
        except FAILURES:
            return None
        return {table.table: (table.sharding_type, table.kernel) for table in planner.tables}


def _proposers(thorough: bool) -> list[Any]:
    """Return who proposes plans: the stock ones, with a smaller grid (theirs takes minutes)."""
    few = [GreedyProposer(), UniformProposer()]
    if not thorough:
        return few
    return [GridSearchProposer(MOST_GRID), *few, GreedyProposer(use_depth=False)]


def merged_constraints(
    memory: MemoryModel,
    tiers: Mapping[str, TierName] | None,
    pooling_factors: Mapping[str, Sequence[float]] | None,
    constraints: Mapping[str, ParameterConstraints] | None,
) -> dict[str, ParameterConstraints]:
    """Return TorchRec's constraints: kernels by tier, measured pooling factors, and the caller's.

    Args:
        memory: The machine.
        tiers: Table -> memory of its rows.
        pooling_factors: Table -> rows read for a bag, by feature.
        constraints: By table; a field that is set there is kept.
    """
    tiers, pooling_factors, constraints = tiers or {}, pooling_factors or {}, constraints or {}
    merged: dict[str, ParameterConstraints] = {}
    for name in {**tiers, **pooling_factors, **constraints}:
        given = constraints.get(name)
        fields: dict[str, Any] = {}
        if name in tiers and not (given and given.compute_kernels):
            fields["compute_kernels"] = _torchrec.kernels_of(tiers[name], memory)
        default = ParameterConstraints().pooling_factors
        if name in pooling_factors and (given is None or given.pooling_factors == default):
            fields["pooling_factors"] = [float(factor) for factor in pooling_factors[name]]
        merged[name] = _torchrec.changed(given, **fields)
    return merged
