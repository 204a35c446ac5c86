"""Remedies: why there is no plan, and the least change after which there is one.

Flow: a planner that found nothing -> *explain* -> NoShardingPlan.
Derived.  Changes are tried from small to large with the planner itself, and only one that gave a
plan is told: more ways of sharding, then the other kernels of the tier, then the other tier, for
the table in the way, for the largest tables beside it, for all; then more ranks; then more memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

from grace_sharding import _torchrec
from grace_sharding.errors import GraceError
from grace_sharding.memory_tiers import MemoryModel, Tier, TierName
from grace_sharding.obstacles import Obstacle, Table, find_obstacle, tables_of

MOST_RANKS = 64
MOST_MEMORY = 1 << 12  # times the host memory there is
FIELDS = ("sharding_types", "compute_kernels", "min_partition", "device_group", "pooling_factors")

Solved = Callable[["Setting", nn.Module, list[Any]], "dict[str, tuple[str, str]] | None"]


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a planner goes by; fields as in GraceShardingPlanner.

    Raises:
        GraceError: a number is out of range.
    """

    memory: MemoryModel
    world_size: int
    local_world_size: int
    batch_size: int
    reserved: dict[TierName, int]
    constraints: dict[str, ParameterConstraints]

    def __post_init__(self) -> None:
        """Check the numbers once."""
        for name in ("world_size", "local_world_size", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GraceError(f"planner: {name} must be an integer >= 1, got {value!r}")
        if self.world_size % self.local_world_size:
            raise GraceError(
                f"planner: {self.world_size} ranks do not fill hosts of {self.local_world_size}; "
                "world_size must be a multiple of local_world_size"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of all memories together."""
        hbm = self.memory.hbm.num_bytes if self.memory.hbm else 0
        hosts = self.world_size // self.local_world_size
        return self.world_size * hbm + hosts * self.memory.host.num_bytes

    def changing(self, changes: dict[str, ParameterConstraints]) -> "Setting":
        """Return the same with other constraints for some tables."""
        return replace(self, constraints={**self.constraints, **changes})


class NoShardingPlan(PlannerError):  # type: ignore[misc]
    """There is no plan; the message names the table, the numbers and what helps.

    Attributes:
        table: The table in the way.
        need_bytes: What it needs.
        have_bytes: What there is for it.
        remedy: Keywords of GraceShardingPlanner with which the same model has a plan; empty where
            none was found.
    """

    def __init__(self, obstacle: Obstacle, remedy: dict[str, Any], told: str) -> None:
        super().__init__(f"table {obstacle.table!r}: {obstacle.reason}; {told}")
        self.table = obstacle.table
        self.need_bytes, self.have_bytes = obstacle.need_bytes, obstacle.have_bytes
        self.remedy = remedy


def explain(
    setting: Setting, module: nn.Module, sharders: list[Any], solved: Solved, cause: str
) -> NoShardingPlan:
    """Say why a model has no plan, and what helps.

    Args:
        setting: What the planner went by.
        module: The model.
        sharders: TorchRec's sharders.
        solved: Returns table -> (sharding type, kernel) in a setting, None where there is no plan.
        cause: What the stock planner said.
    """
    tables = tables_of(module, sharders, setting.constraints)
    obstacle = find_obstacle(setting, module, sharders, tables, cause)
    num_bytes = sum(table.num_bytes for table in tables)
    for tried, changes, told in _changes(setting, obstacle, tables):
        if num_bytes > tried.num_bytes or (found := solved(tried, module, sharders)) is None:
            continue
        pinned = {
            name: _torchrec.changed(
                c, sharding_types=[found[name][0]], compute_kernels=[found[name][1]]
            )
            for name, c in changes.items()
        }
        if pinned and solved(tried.changing(pinned), module, sharders) is not None:
            tried, changes = tried.changing(pinned), pinned
        remedy: dict[str, Any] = {"constraints": tried.constraints}
        if tried.world_size != setting.world_size:
            remedy |= {"world_size": tried.world_size, "local_world_size": tried.local_world_size}
        if tried.memory is not setting.memory:
            remedy["memory"] = tried.memory
        parts = [told] if told else []
        if changes:
            parts.append(f"constraints={{{', '.join(_written(n, c) for n, c in changes.items())}}}")
        return NoShardingPlan(obstacle, remedy, f"this works: {', '.join(parts)}")
    return NoShardingPlan(obstacle, {}, "no change of constraints, ranks or host memory helps")


def _changes(
    setting: Setting, obstacle: Obstacle, tables: Sequence[Table]
) -> Iterator[tuple[Setting, dict[str, ParameterConstraints], str]]:
    """Yield (setting, changed constraints, what else is changed) from small to large."""
    others = sorted((t for t in tables if t.name != obstacle.table), key=lambda t: -t.num_bytes)
    by_size = [t for t in tables if t.name == obstacle.table] + others
    counts = sorted({1, *(2**k for k in range(1, 12) if 2**k < len(tables)), len(tables)})
    for count in counts:
        for loosen in (_any_sharding, _tier_kernels, _any_kernel):
            changes = {t.name: loosen(setting, t) for t in by_size[:count]}
            yield setting.changing(changes), changes, ""
    loosest = {t.name: _any_kernel(setting, t) for t in tables}
    ranks = setting.world_size * 2
    while ranks <= MOST_RANKS:
        more = replace(setting, world_size=ranks)
        told = f"world_size={ranks}, local_world_size={setting.local_world_size}"
        yield more, {}, told
        yield more.changing(loosest), loosest, told
        ranks *= 2
    times = 2
    while times <= MOST_MEMORY:
        larger = _more_host_memory(setting.memory, times)
        told = f"host memory of {larger.host.num_bytes:,} bytes"
        yield replace(setting, memory=larger), {}, told
        yield replace(setting, memory=larger).changing(loosest), loosest, told
        times *= 4


def _any_sharding(setting: Setting, table: Table) -> ParameterConstraints:
    """Allow every way of sharding, and mend what no planner accepts."""
    given = setting.constraints.get(table.name)
    factors = given.pooling_factors if given else [1.0]
    if len(factors) != table.num_features:
        factors = [sum(factors) / max(1, len(factors))] * table.num_features
    return _torchrec.changed(
        given, sharding_types=None, min_partition=None, device_group=None,
        pooling_factors=factors, num_poolings=None, batch_sizes=None,
    )  # fmt: skip


def _tier_kernels(setting: Setting, table: Table) -> ParameterConstraints:
    """Allow every kernel of the tier, too."""
    kernels = _torchrec.kernels_of(table.tier, setting.memory)
    return _torchrec.changed(_any_sharding(setting, table), compute_kernels=kernels)


def _any_kernel(setting: Setting, table: Table) -> ParameterConstraints:
    """Allow the kernels of both tiers."""
    tiers: tuple[TierName, ...] = ("hbm", "host")
    kernels = {k: None for tier in tiers for k in _torchrec.kernels_of(tier, setting.memory)}
    return _torchrec.changed(_any_sharding(setting, table), compute_kernels=[*kernels])


def _more_host_memory(memory: MemoryModel, times: int) -> MemoryModel:
    """Return the machine with more host memory (at least a gigabyte)."""
    num_bytes = max(memory.host.num_bytes, 1 << 30) * times
    tiers = tuple(
        Tier("host", num_bytes, tier.bytes_per_s) if tier.name == "host" else tier
        for tier in memory.tiers
    )
    return replace(memory, tiers=tiers)


def _written(name: str, constraints: ParameterConstraints) -> str:
    """Return constraints as they are typed."""
    default = ParameterConstraints()
    fields = [
        f"{field}={getattr(constraints, field)!r}"
        for field in FIELDS
        if getattr(constraints, field) != getattr(default, field)
    ]
    return f"{name!r}: ParameterConstraints({', '.join(fields)})"
