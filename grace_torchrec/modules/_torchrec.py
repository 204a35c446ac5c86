"""Every touch of TorchRec, and of PyTorch's dispatcher, beyond their public API, in one place.

Flow: embedding_bag_collection.py, swap.py and verify.py build and read stock collections here.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

DATA_TYPES = {torch.float32: DataType.FP32, torch.float16: DataType.FP16}


def is_plain_eager(features: object) -> bool:
    """Tell whether a batch is real memory on the CPU that nobody traces, compiles or intercepts."""
    if not isinstance(features, KeyedJaggedTensor):
        return False
    ids = features.values()
    return (
        type(ids) is Tensor
        and ids.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._get_tracing_state()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not in_functorch()
    )


def in_functorch() -> bool:
    """Tell whether a function transform (vmap, functionalize ..) wraps the tensors of this call."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def adopt(
    configs: Sequence[EmbeddingBagConfig], weights: Mapping[str, nn.Parameter], is_weighted: bool
) -> EmbeddingBagCollection:
    """Return a stock collection whose tables are the given Parameters themselves.

    Args:
        configs: Tables in order.
        weights: Parameter of each table, by table name.
        is_weighted: As in the stock constructor.
    """
    collection = EmbeddingBagCollection(
        tables=list(configs), is_weighted=is_weighted, device=torch.device("meta")
    )
    for config in configs:
        collection.embedding_bags[config.name].weight = weights[config.name]
    # The constructor noted the meta device; DistributedModelParallel reads it.
    collection._device = next((w.device for w in weights.values()), torch.device("cpu"))
    return collection


def table_config(
    config: EmbeddingBagConfig,
    name: str,
    rows_ND: Tensor,
    features: Sequence[str],
) -> EmbeddingBagConfig:
    """Return the config of an inner table: it pools by SUM, MEAN is formed from whole bags.

    Args:
        config: The original table.
        name: Name of the inner table.
        rows_ND: Its rows, for their number and type.
        features: Features of the rewritten bags that read it.
    """
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows_ND.shape[0],
        embedding_dim=config.embedding_dim,
        feature_names=list(features),
        pooling=PoolingType.SUM,
        data_type=DATA_TYPES[rows_ND.dtype],
    )


def output_names(configs: Sequence[EmbeddingBagConfig]) -> list[str]:
    """Return the keys of the stock output in order (``feature@table`` where features repeat)."""
    return [name for names in get_embedding_names_by_table(list(configs)) for name in names]


@dataclass(frozen=True, eq=False)
class LocalShard:
    """The part of a sharded table that this rank holds, in place.

    Attributes:
        rows: ``[rows, columns]``: writing to it writes the table.
        first_row: Row of the table where it begins.
        first_column: Column where it begins.
    """

    rows: Tensor
    first_row: int
    first_column: int


def is_sharded(collection: nn.Module) -> bool:
    """Tell whether DistributedModelParallel put a sharded collection in the place of a stock one."""
    return type(collection) is not EmbeddingBagCollection and isinstance(collection, ShardedModule)


def local_shards(sharded: nn.Module) -> dict[str, list[LocalShard]]:
    """Return table name -> what this rank holds of it; an empty list where it holds nothing.

    Rows that a software cache holds are written back first (the state-dict hook does that).
    """
    shards: dict[str, list[LocalShard]] = {}
    for key, value in sharded.state_dict().items():
        _, name, part = key.split(".")
        if part == "weight":
            shards[name] = _shards_of(value)
    return shards


def _shards_of(value: Any) -> list[LocalShard]:
    """Return the local shards of a ShardedTensor, a DTensor over shards, or a whole tensor."""
    value = getattr(value, "_local_tensor", value)
    if not hasattr(value, "local_shards"):
        return [LocalShard(value, 0, 0)]  # data parallel: every rank holds all of it
    if hasattr(value, "local_offsets"):
        pairs = zip(value.local_shards(), value.local_offsets(), strict=True)
        return [LocalShard(rows, *offsets) for rows, offsets in pairs]
    shards = value.local_shards()
    return [LocalShard(shard.tensor, *shard.metadata.shard_offsets) for shard in shards]


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, sharded or not.

    PyTorch deprecates ShardedTensor, in which TorchRec holds its shards: asking for the shape of
    one warns of a choice that is TorchRec's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use DTensor instead", FutureWarning)
        return tuple(value.shape)


def forget_cached_rows(sharded: Any) -> None:
    """Drop what software caches hold of tables that were just written to."""
    for lookup in sharded._lookups:
        getattr(lookup, "module", lookup).purge()  # data-parallel ones are wrapped


def is_pipelined(sharded: nn.Module) -> bool:
    """Tell whether a train or eval pipeline has taken the forward of a sharded collection over."""
    forward = vars(sharded).get("forward")  # a pipeline that was detached leaves its own there
    return forward is not None and getattr(forward, "__self__", None) is not sharded


def most_of_all_ranks(sharded: Any, number: int) -> int:
    """Return the largest of the numbers that the ranks of a sharded collection bring (collective)."""
    group = sharded._env.process_group
    largest = torch.tensor([number], device=sharded._device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return int(largest)
