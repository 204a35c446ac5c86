"""Obstacles: which table is in the way of a plan, what it needs and what there is.

Flow: a planner that found nothing -> *find_obstacle* -> remedies.  Derived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.utils import sharder_name

from grace_sharding import _torchrec
from grace_sharding.estimator import calibrated_estimators
from grace_sharding.memory_tiers import TierName

if TYPE_CHECKING:
    from grace_sharding.remedies import Setting

ATTRIBUTES = {"hbm": "hbm", "host": "ddr"}  # tier -> what TorchRec calls it


@dataclass(frozen=True)
class Table:
    """One table of a model.

    Attributes:
        name: Its name.
        num_bytes: Bytes of its rows.
        num_features: Features that read it.
        tier: Where its constraints want it.
    """

    name: str
    num_bytes: int
    num_features: int
    tier: TierName


@dataclass(frozen=True)
class Obstacle:
    """What is in the way of a plan.

    Attributes:
        table: Name of the table.
        reason: Why, with the numbers.
        need_bytes: What it needs at least.
        have_bytes: What there is for it.
    """

    table: str
    reason: str
    need_bytes: int
    have_bytes: int


def tables_of(
    module: nn.Module, sharders: Sequence[Any], constraints: Mapping[str, ParameterConstraints]
) -> list[Table]:
    """Return the tables that the sharders find in a model.

    Args:
        module: The model.
        sharders: TorchRec's sharders.
        constraints: By table.
    """
    known = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    found: list[Table] = []

    def walk(child: nn.Module) -> None:
        """Collect the tables at and below a module."""
        sharder = known.get(sharder_name(type(child)))
        if sharder is None:
            for grandchild in child.children():
                walk(grandchild)
            return
        configs: list[Any] = getattr(child, "embedding_bag_configs", list)()
        features = {config.name: len(config.feature_names) for config in configs}
        for name, rows in sharder.shardable_parameters(child).items():
            given = constraints.get(name)
            kernels = given.compute_kernels if given else None
            host = bool(kernels) and all(_torchrec.reads_host(kernel) for kernel in kernels or ())
            num_bytes = rows.numel() * rows.element_size()
            found.append(Table(name, num_bytes, features.get(name, 1), "host" if host else "hbm"))

    walk(module)
    return found


def wrong_factors(table: Table, constraints: Mapping[str, ParameterConstraints]) -> bool:
    """Tell whether a table has other than one pooling factor a feature; TorchRec looks away."""
    given = constraints.get(table.name)
    if given is None or given.pooling_factors == ParameterConstraints().pooling_factors:
        return False
    return len(given.pooling_factors) != table.num_features


def find_obstacle(
    setting: "Setting", module: nn.Module, sharders: list[Any], tables: Sequence[Table], cause: str
) -> Obstacle:
    """Return the table in the way.

    Args:
        setting: What the planner went by.
        module: The model.
        sharders: TorchRec's sharders.
        tables: Of :func:`tables_of`.
        cause: What the stock planner said.
    """
    with _torchrec.quiet():
        topology = _torchrec.topology(
            setting.memory, setting.world_size, setting.local_world_size, setting.reserved
        )
        options: dict[str, list[Any]] = {}
        for table in tables:
            options[table.name] = _options(setting, module, sharders, table, topology)
            if not options[table.name]:
                return _no_way(setting, table, cause)
        alone = [
            t for t in tables if not any(_fits([option], topology) for option in options[t.name])
        ]
        if alone:
            worst = max(alone, key=lambda table: table.num_bytes)
            return _too_large(setting, worst, options[worst.name], topology)
        return _crowded(setting, tables, options, topology)


def _options(
    setting: "Setting", module: nn.Module, sharders: list[Any], table: Table, topology: Any
) -> list[Any]:
    """Return the ways to shard one table, none where its constraints leave none."""
    constraints = setting.constraints
    others = {
        name: _torchrec.changed(None, device_group="another")
        for name in {t.name for t in tables_of(module, sharders, constraints)} - {table.name}
    }
    only = {**others, **{n: c for n, c in constraints.items() if n == table.name}}
    if wrong_factors(table, constraints):
        return []
    try:
        enumerator = EmbeddingEnumerator(
            topology=topology, batch_size=setting.batch_size, constraints=only,
            estimator=calibrated_estimators(setting.memory, topology, only),
        )  # fmt: skip
        found: list[Any] = enumerator.enumerate(module, sharders)
    except (PlannerError, RuntimeError, AssertionError, ValueError):
        return []
    return found


def _fits(options: list[Any], topology: Any) -> bool:
    """Tell whether the ranks hold these options together."""
    try:
        GreedyPerfPartitioner().partition(options, topology)
    except PlannerError:
        return False
    finally:
        for option in options:
            for shard in option.shards:
                shard.rank = None
    return True


def _no_way(setting: "Setting", table: Table, cause: str) -> Obstacle:
    """Say that the constraints of a table leave nothing to choose from."""
    given = setting.constraints.get(table.name, ParameterConstraints())
    if wrong_factors(table, setting.constraints):
        reason = (
            f"{len(given.pooling_factors)} pooling factors are given for its "
            f"{table.num_features} features"
        )
    elif given.device_group is not None:
        reason = f"its device group is {given.device_group!r}, the ranks are of another"
    elif given.num_poolings or given.batch_sizes:
        reason = (
            f"num_poolings or batch_sizes are not one for each of its {table.num_features} features"
        )
    elif given.sharding_types or given.compute_kernels:
        reason = (
            f"sharding types {given.sharding_types} and kernels {given.compute_kernels} leave no "
            "way to shard it"
        )
    else:
        reason = cause.splitlines()[0]
    return Obstacle(table.name, f"{reason} ({table.num_bytes:,} bytes)", table.num_bytes, 0)


def _too_large(setting: "Setting", table: Table, options: list[Any], topology: Any) -> Obstacle:
    """Say that a table does not fit, though nothing else is there."""
    room = topology.devices[0].storage
    over = [(tier, *_over(options, attribute, room)) for tier, attribute in ATTRIBUTES.items()]
    tier, need, have = max(over, key=lambda each: each[1] - each[2])
    given = setting.constraints.get(table.name)
    pinned = bool(given and given.sharding_types)
    ways = " or ".join(sorted({o.sharding_type for o in options})) if pinned else "in any way"
    reason = (
        f"its {table.num_bytes:,} bytes, sharded {ways}, need {need:,} bytes of {tier} memory on a "
        f"rank, {_each(setting.world_size)} has {have:,}"
    )
    return Obstacle(table.name, reason, need, have)


def _each(ranks: int) -> str:
    """Return who has it."""
    return "the one rank" if ranks == 1 else f"each of the {ranks} ranks"


def _over(options: list[Any], attribute: str, room: Any) -> tuple[int, int]:
    """Return what the least option asks of one rank in a memory, and what a rank has of it."""
    needs = [max(getattr(shard.storage, attribute) for shard in o.shards) for o in options]
    return min(needs), getattr(room, attribute)


def _crowded(
    setting: "Setting", tables: Sequence[Table], options: dict[str, list[Any]], topology: Any
) -> Obstacle:
    """Say which table finds no room beside the others: the first that does not, largest first."""
    placed: list[Any] = []
    by_size = sorted(tables, key=lambda table: -table.num_bytes)
    last = by_size[-1]
    for table in by_size:
        smallest = min(options[table.name], key=_largest_shard)
        if not _fits([*placed, smallest], topology):
            last = table
            break
        placed.append(smallest)
    tier = last.tier if setting.memory.hbm else "host"
    attribute = ATTRIBUTES[tier]
    taken = sum(getattr(s.storage, attribute) for option in placed for s in option.shards)
    whole = sum(getattr(device.storage, attribute) for device in topology.devices)
    smallest = min(options[last.name], key=_largest_shard)
    need = sum(getattr(shard.storage, attribute) for shard in smallest.shards)
    have = max(0, whole - taken)
    reason = (
        f"it needs {need:,} bytes of {tier} memory beside the other tables, {have:,} of the "
        f"{whole:,} bytes of {setting.world_size} rank(s) are left, maybe on several of them"
    )
    return Obstacle(last.name, reason, need, have)


def _largest_shard(option: Any) -> tuple[int, int]:
    """Order of options by what they ask of one rank, then of all."""
    sizes = [shard.storage.hbm + shard.storage.ddr for shard in option.shards]
    return max(sizes), sum(sizes)
