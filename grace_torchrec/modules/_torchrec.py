"""Every touch of TorchRec, and of PyTorch's dispatcher, beyond their public API, in one place.

Flow: embedding_bag_collection.py, swap.py and verify.py build and read stock collections here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
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
