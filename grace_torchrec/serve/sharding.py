"""Sharding: which kernel of fbgemm holds a table, and table batches spread over devices.

Flow: tier of each inner table + *Spread* -> kernels -> TorchRec's own sharding plan -> sharded
collections, whose rows are assigned afterwards (TorchRec leaves them uninitialised).
On the CPU every kernel's memory is host memory; the kernels' names only take effect with CUDA.
Bad ids are dealt with by rewriting, for all kernels alike, so table batches check none.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import nn
from torchrec.distributed import global_settings
from torchrec.distributed.fused_params import (
    FUSED_PARAM_BOUNDS_CHECK_MODE,
    FUSED_PARAM_LENGTHS_TO_OFFSETS_LOOKUP,
    FUSED_PARAM_QUANT_STATE_DICT_SPLIT_SCALE_BIAS,
    FUSED_PARAM_REGISTER_TBE_BOOL,
)
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import BoundsCheckMode, ShardingEnv
from torchrec.modules.embedding_configs import DataType
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.serve.row_types import packed_bytes
from grace_torchrec.serve.table_batch_collection import TableBatchCollection
from grace_torchrec.serve.table_pieces import batches_of

Family = Literal["quant", "fused"]
HostMemory = Literal["uvm", "uvm_caching"]


@dataclass(frozen=True)
class Spread:
    """How tables are spread; checked when it is made.

    Attributes:
        world_size: Devices of this process.
        device: ``cpu``, or ``cuda`` (written for it and not yet run on one).
        row_wise: Names of tables whose rows are divided over all devices.
        host_memory: How a GPU reads tables planned for host memory: in place (``uvm``) or through
            a cache of rows in HBM (``uvm_caching``); None: as the memory of the plan says.
        cache_load_factor: Share of a cached table's rows that the cache holds.
        uvm_host_mapped: Allocate host memory mapped (True) or managed by the driver; None: as the
            memory of the plan says.

    Raises:
        GraceError: a value is unknown or out of range.
    """

    world_size: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    row_wise: tuple[str, ...] = ()
    host_memory: HostMemory | None = None
    cache_load_factor: float = 0.2
    uvm_host_mapped: bool | None = None

    def __post_init__(self) -> None:
        """Check every field once."""
        if not isinstance(self.world_size, int) or self.world_size < 1:
            raise GraceError(f"sharding: world_size must be 1 or more, got {self.world_size!r}")
        if self.device not in ("cpu", "cuda"):
            raise GraceError(f"sharding: device must be 'cpu' or 'cuda', got {self.device!r}")
        if self.host_memory not in (None, *get_args(HostMemory)):
            raise GraceError(
                f"sharding: host_memory must be one of {get_args(HostMemory)}, got {self.host_memory!r}"
            )
        if not 0 < self.cache_load_factor <= 1:
            raise GraceError(
                f"sharding: cache_load_factor must be in 0..1, got {self.cache_load_factor!r}"
            )

    def as_planned(self, uvm: str) -> "Spread":
        """Fill in what was left to the plan.

        Args:
            uvm: Of the plan's memory: ``managed``, ``host_mapped`` or ``cached``.
        """
        mapped = uvm != "managed" if self.uvm_host_mapped is None else self.uvm_host_mapped
        planned: HostMemory = "uvm_caching" if uvm == "cached" else "uvm"
        return replace(self, host_memory=self.host_memory or planned, uvm_host_mapped=mapped)

    def kernel(self, tier: str, family: Family = "quant") -> str:
        """Return fbgemm's kernel for a table of a tier.

        Args:
            tier: ``hbm`` or ``host``.
            family: ``quant`` for inference, ``fused`` for DistributedModelParallel.
        """
        return family if tier == "hbm" else f"{family}_{self.host_memory or 'uvm'}"

    def fused_params(self, *, split_scale: bool) -> dict[str, Any]:
        """Return what TorchRec hands on to the table batches.

        Args:
            split_scale: Keep scale and bias apart in state dicts: row-wise shards need it, rows
                without a scale do not bear it.
        """
        return {
            FUSED_PARAM_REGISTER_TBE_BOOL: True,
            FUSED_PARAM_QUANT_STATE_DICT_SPLIT_SCALE_BIAS: split_scale,
            FUSED_PARAM_BOUNDS_CHECK_MODE: BoundsCheckMode.NONE,
            FUSED_PARAM_LENGTHS_TO_OFFSETS_LOOKUP: False,
            "uvm_host_mapped": self.uvm_host_mapped is not False,
            "cache_load_factor": self.cache_load_factor,
            "gather_uvm_cache_stats": self.host_memory == "uvm_caching" and self.device == "cuda",
        }


def check_spread(sharding: Spread, types: Mapping[str, str]) -> None:
    """Refuse what is no Spread, and row-wise sharding of what cannot be.

    Args:
        sharding: What is asked for.
        types: Table name -> type of its rows.

    Raises:
        GraceError: it is something else, or there is no such table.
        NotSupported: rows without a scale (fp16, fp32) cannot be sharded row-wise.
    """
    if not isinstance(sharding, Spread):
        raise GraceError(
            f"convert: sharding must be a grace_torchrec.serve.sharding.Spread, got "
            f"{type(sharding).__module__}.{type(sharding).__name__}"
        )
    for name in sharding.row_wise:
        if name not in types:
            raise GraceError(f"sharding: no table {name!r}; the model has {sorted(types)}")
        if types[name] not in ("int8", "int4"):
            raise NotSupported(
                f"table {name!r}: TorchRec shards {types[name]} rows by table only; convert it with "
                "row_dtype 'int8', or leave it out of row_wise"
            )


def shard_(collection: TableBatchCollection, sharding: Spread) -> None:
    """Spread the tables of a collection; their rows are to be assigned afterwards."""
    change: dict[str, nn.Module] = {}
    held = [0] * sharding.world_size  # bytes on each device, over all memories
    with devices_told():
        for name, inner in collection.inner_collections().items():
            assert isinstance(inner, QuantEmbeddingBagCollection)
            tiers = {c.name: name.partition("_")[0] for c in inner.embedding_bag_configs()}
            change[name] = shard_collection(inner, tiers, sharding, held)
    collection.replace_inner(change)


def shard_collection(
    inner: QuantEmbeddingBagCollection,
    tiers: Mapping[str, str],
    sharding: Spread,
    held: list[int] | None = None,
) -> nn.Module:
    """Shard one quantised collection by TorchRec's sharder.

    Args:
        inner: The collection.
        tiers: Table name -> its tier.
        sharding: How.
        held: Bytes on each device already, brought up to date; default: none.
    """
    configs = inner.embedding_bag_configs()
    split_scale = all(c.data_type in (DataType.INT8, DataType.INT4) for c in configs)
    sharder = QuantEmbeddingBagCollectionSharder(
        fused_params=sharding.fused_params(split_scale=split_scale)
    )
    rank_of = _ranks(inner, sharding, [0] * sharding.world_size if held is None else held)
    chosen = {
        name: row_wise(compute_kernel=sharding.kernel(tier))
        if name in sharding.row_wise
        else table_wise(rank_of[name], sharding.device, sharding.kernel(tier))
        for name, tier in tiers.items()
    }
    plan = construct_module_sharding_plan(
        inner, chosen, sharder=sharder, local_size=sharding.world_size,
        world_size=sharding.world_size, device_type=sharding.device,
    )  # fmt: skip
    env = ShardingEnv.from_local(sharding.world_size, 0)
    sharded: nn.Module = sharder.shard(inner, plan, env, torch.device(sharding.device))
    for batch in batches_of(sharded):
        if EmbeddingLocation.MANAGED_CACHING.value in batch.weights_physical_placements:
            # A lookup changes the cache: the scheduler keeps all of them on one stream.
            batch.mutable_resources = (f"cache:{batch.embedding_specs[0][0]}",)
    return sharded


def _ranks(inner: QuantEmbeddingBagCollection, sharding: Spread, held: list[int]) -> dict[str, int]:
    """Return a rank for each table that is not row-wise: the largest first, each to the emptiest."""
    kinds = {"FP32": "fp32", "FP16": "fp16", "INT8": "int8", "INT4": "int4"}
    size = {
        c.name: c.num_embeddings * packed_bytes(kinds[c.data_type.value], c.embedding_dim)
        for c in inner.embedding_bag_configs()
        if c.name not in sharding.row_wise
    }
    ranks: dict[str, int] = {}
    for name in sorted(size, key=lambda n: -size[n]):
        ranks[name] = min(range(sharding.world_size), key=held.__getitem__)
        held[ranks[name]] += size[name]
    return ranks


@contextmanager
def devices_told() -> Iterator[None]:
    """Let TorchRec hand the device on to what it builds: without, it asks for CUDA on any machine.

    Sharded collections build the last of their parts in their first forward.
    """
    before = global_settings.get_propogate_device()
    global_settings.set_propogate_device(True)
    try:
        yield
    finally:
        global_settings.set_propogate_device(before)
