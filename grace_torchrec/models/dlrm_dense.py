"""DLRM's dense part in plain torch over any collection of pooled rows.

Flow: dense features and pooled rows -> pairwise products -> a score in (0, 1).
Source: Naumov et al., 2019.  Shapes: B samples, F features, D dimension, P pairs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grace_torchrec.models.parts import Features, Mlp


class Dlrm(nn.Module):
    """Bottom layers, dot products of every pair of features, top layers.

    Args:
        collection: Maps the features to pooled rows ``[B, D]`` by name.
        names: Features to use.
        dim: Dimension D.
        num_dense: Dense inputs.
        bottom: Hidden widths of the bottom layers.
        top: Hidden widths of the top layers.
    """

    def __init__(
        self,
        collection: nn.Module,
        names: Sequence[str],
        dim: int,
        num_dense: int = 13,
        bottom: Sequence[int] = (256, 128),
        top: Sequence[int] = (512, 256),
    ) -> None:
        super().__init__()
        self.collection, self.names = collection, tuple(names)
        self.bottom = Mlp([num_dense, *bottom, dim], relu_last=True)
        vectors = len(self.names) + 1
        row, column = torch.tril_indices(vectors, vectors, -1)
        self.pairs_P: Tensor
        self.register_buffer("pairs_P", row * vectors + column, persistent=False)
        self.top = Mlp([row.numel() + dim, *top, 1])

    def forward(self, dense: Tensor, features: Features) -> Tensor:
        """Return scores ``[B, 1]`` of ``dense`` ``[B, num_dense]`` and the bags of features."""
        bottom = self.bottom(dense)
        pooled = self.collection(features)
        vectors = torch.stack([bottom] + [pooled[name] for name in self.names], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = products.index_select(1, self.pairs_P)
        return torch.sigmoid(self.top(torch.cat([bottom, pairs], 1)))
