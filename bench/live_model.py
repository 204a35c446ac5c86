"""A model of one table and the bags that are asked of it, as the case ``drift`` serves them."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

from grace_torchrec.traces.trace import Trace

TABLE, FEATURE, BATCH = "t_item", "item", 256


def live_model(num_rows: int, dim: int, seed: int) -> nn.Module:
    """Return a stock model of one table."""
    torch.manual_seed(seed)
    table = EmbeddingBagConfig(
        name=TABLE, num_embeddings=num_rows, embedding_dim=dim, feature_names=[FEATURE]
    )
    return nn.Sequential(EmbeddingBagCollection(tables=[table])).eval()


def requests(trace: Trace) -> Iterator[KeyedJaggedTensor]:
    """Yield the bags of a trace in batches."""
    for first in range(0, trace.num_bags, BATCH):
        part = trace.take(np.arange(first, min(first + BATCH, trace.num_bags)))
        yield KeyedJaggedTensor(
            keys=[FEATURE],
            values=torch.from_numpy(part.ids_L).long(),
            lengths=torch.from_numpy(part.offsets_B1).diff(),
        )
