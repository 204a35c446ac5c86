"""Sharding: the part of a plan that says which rank holds what.

Flow: TablePlans + Profile + MemoryModel of a rank and host -> skeleton of the swapped model on the
meta device -> TorchRec's planner (grace_sharding.planner) -> *Sharding* in the plan.
The rows of all ranks together are placed first, as on one machine of that size; then tables are
given to ranks.  Derived: codes are on every rank, so their bytes count on each; where the ranks
cannot hold what was placed, less of HBM is given to rows that are stored beside the tables.
TorchRec is imported when a plan for several ranks is asked for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grace_sharding.memory_tiers import MemoryModel, Tier, TierName
from grace_sharding.shards import Sharding
from grace_torchrec.errors import GraceError, NoPlan
from grace_torchrec.plans.choose import as_served
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.inner_tables import inner_tables, stored_name
from grace_torchrec.plans.make import choose_all
from grace_torchrec.plans.options import PlanOptions
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.settle import settle
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.profile import Profile, TableProfile

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints

HBM_SHARES = (0.98, 0.9, 0.75, 0.5)  # of all HBM, given to rows until the ranks can hold them


@dataclass(frozen=True)
class Ranks:
    """Where a model will run.

    Attributes:
        world_size: Ranks, each with the HBM of the memory model.
        local_world_size: Ranks of a host, which share its host memory (default: all).
        batch_size: Bags of a feature in the batch of a rank.
        constraints: TorchRec's ParameterConstraints by inner table; what they say goes before what
            the plan would do.

    Raises:
        GraceError: a number is out of range.
    """

    world_size: int
    local_world_size: int | None = None
    batch_size: int = 512
    constraints: "Mapping[str, ParameterConstraints]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every number once."""
        for name in ("world_size", "local_world_size", "batch_size"):
            value = getattr(self, name)
            if value is None and name == "local_world_size":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GraceError(f"plan: {name} must be an integer >= 1, got {value!r}")
        if self.world_size % self.on_a_host:
            raise GraceError(
                f"plan: {self.world_size} ranks do not fill hosts of {self.on_a_host}; "
                "world_size must be a multiple of local_world_size"
            )

    @property
    def on_a_host(self) -> int:
        """Ranks of a host."""
        return self.world_size if self.local_world_size is None else self.local_world_size


def make_sharded_plan(
    specs: Sequence[TableSpec],
    profile: Profile,
    memory: MemoryModel,
    options: PlanOptions,
    ranks: Ranks,
    *,
    seed: int = 0,
    in_order: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plan every table of a model that runs on several ranks.

    Args:
        specs: Tables of the model, names unique (``table_specs(model)``).
        profile: Recorded bags by table name.
        memory: HBM of each rank, host memory of each host.
        options: What is asked for.
        ranks: Where the model will run.
        seed: Order of the bags; the last fifth of it is validation.
        in_order: The bags are in random order already.
        progress: Called with one line of text before each step.

    Raises:
        PlanMismatch: the profile does not belong to these tables.
        NoPlan: names the table, what it needs, what there is, and constraints that help.
    """
    choices = choose_all(specs, profile, options, seed, in_order, progress)
    refused: NoPlan | None = None
    for share in HBM_SHARES if memory.hbm is not None else HBM_SHARES[:1]:
        whole = _of_all_ranks(memory, ranks, share)
        if progress is not None:
            progress(f"placing {len(specs)} tables on {whole.machine}")
        try:
            tables = settle(specs, choices, whole, options)
            sharding = shard_tables(tables, profile.tables, memory, ranks)
        except NoPlan as error:
            refused = refused or error
            continue
        by_key = {table.spec.key: table for table in tables}
        return Plan(by_key, whole, options, profile.fingerprint(), sharding)
    assert refused is not None
    raise refused


def shard_tables(
    tables: Sequence[TablePlan],
    profiles: Mapping[str, TableProfile],
    memory: MemoryModel,
    ranks: Ranks,
) -> Sharding:
    """Give the tables of a plan to ranks.

    Args:
        tables: As they were placed.
        profiles: Recorded bags by table name.
        memory: HBM of each rank, host memory of each host.
        ranks: Where the model will run.

    Raises:
        NoPlan: names the table, what it needs, what there is, and constraints that help.
        GraceError: constraints are given for a table that is not there.
    """
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    from grace_sharding.planner import GraceShardingPlanner, NoShardingPlan

    inner = inner_tables(tables)
    unknown = sorted({*ranks.constraints} - {each.name for each in inner})
    if unknown:
        raise GraceError(
            f"plan: constraints are given for {unknown[0]!r}, the swapped model has "
            f"{', '.join(sorted(each.name for each in inner))}"
        )
    factors: dict[str, tuple[float, ...]] = {}
    for table in tables:
        profile = profiles.get(table.spec.name)
        if profile is not None:
            factors |= pooling_factors(table, profile)
    planner = GraceShardingPlanner(
        memory,
        world_size=ranks.world_size,
        local_world_size=ranks.on_a_host,
        batch_size=ranks.batch_size,
        tiers={each.name: each.tier for each in inner},
        pooling_factors={each.name: factors[each.name] for each in inner if each.name in factors},
        constraints=ranks.constraints,
        reserved=_on_every_rank(tables),
    )
    try:
        planner.plan(skeleton(tables), [EmbeddingBagCollectionSharder()])
    except NoShardingPlan as error:
        raise NoPlan(str(error)) from error
    return planner.sharding


def skeleton(tables: Iterable[TablePlan]) -> "nn.Module":
    """Return the collections of the swapped model on the meta device, where it has them.

    Args:
        tables: Of a plan.
    """
    import torch
    from torch import nn
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs: dict[str, list[Any]] = {}
    for inner in inner_tables(tables):
        spec = inner.table.spec
        config = EmbeddingBagConfig(
            name=inner.name,
            num_embeddings=inner.num_rows,
            embedding_dim=spec.dim,
            feature_names=[f"{feature}@{inner.name}" for feature in spec.features],
            data_type=DataType[spec.dtype.upper()],
        )
        configs.setdefault(inner.path, []).append(config)
    root = nn.Module()
    for path, held in configs.items():
        parent = root
        *parents, last = path.split(".")
        for name in parents:
            if not hasattr(parent, name):
                setattr(parent, name, nn.Module())
            parent = getattr(parent, name)
        collection = EmbeddingBagCollection(tables=held, device=torch.device("meta"))
        setattr(parent, last, collection)
    return root


def pooling_factors(table: TablePlan, profile: TableProfile) -> dict[str, tuple[float, ...]]:
    """Return the rows that a bag reads of a table and of what may be stored beside it, by feature.

    The bags of all features of a table are recorded together: each feature has their mean.

    Args:
        table: As it was placed.
        profile: Its recorded bags.
    """
    sums = table.sums if table.sums is not None else StoredSums.none(table.spec.num_rows)
    reads = count_reads(as_served(profile.trace, table.spec), sums)
    placement = table.placement
    split = placement.num_hbm_sums
    hot = int(reads.plain_reads_N[placement.hot_items].sum())
    rows_read = {
        table.spec.name: int(reads.plain_reads_N.sum()) - hot,
        stored_name(table.spec.name, "hbm"): int(reads.stored_reads_R[:split].sum()) + hot,
        stored_name(table.spec.name, "host"): int(reads.stored_reads_R[split:].sum()),
    }
    bags, features = max(1, profile.trace.num_bags), len(table.spec.features)
    return {name: (rows / bags,) * features for name, rows in rows_read.items()}


def _of_all_ranks(memory: MemoryModel, ranks: Ranks, hbm_share: float) -> MemoryModel:
    """Return all ranks as one machine: each reads its own HBM and its own link."""
    hosts = ranks.world_size // ranks.on_a_host

    def whole(tier: Tier) -> Tier:
        """Return the tier of all ranks."""
        rate = tier.bytes_per_s * (ranks.world_size if memory.hbm else hosts)
        if tier.name == "host":
            return Tier("host", tier.num_bytes * hosts, rate)
        return Tier("hbm", int(tier.num_bytes * ranks.world_size * hbm_share), rate)

    name = f"{ranks.world_size} ranks of {memory.machine}"
    return replace(memory, machine=name, tiers=tuple(whole(tier) for tier in memory.tiers))


def _on_every_rank(tables: Iterable[TablePlan]) -> dict[TierName, int]:
    """Return the bytes of codes and maps by tier: every rank rewrites its own bags."""
    taken: dict[TierName, int] = {"hbm": 0, "host": 0}
    for table in tables:
        extra = extra_of(table.sums, table.placement)
        hot_map = table.placement.hot_map_bytes if table.sums is not None else 0
        taken["hbm"] += hot_map
        taken["host"] += extra.kept_bytes
        taken[table.placement.metadata] += extra.metadata_bytes - hot_map
    return taken
