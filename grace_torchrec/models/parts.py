"""Layers that the bundled models share: multi-layer perceptron, one bag of embeddings per table.

Flow: *parts* -> dlrm_dense, wide_deep, din, bst.  Plain torch: they run where TorchRec is absent.
The models take any collection that maps features to pooled rows by name: :class:`TableBags`
here, TorchRec's EmbeddingBagCollection (whose KeyedTensor answers ``[name]``) or ours.
Shapes: B samples, F features, D dimension, L ids of one feature.
"""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

# feature -> (ids int64 [L], offsets int64 [B], as torch.nn.EmbeddingBag takes them)
Features = Mapping[str, tuple[Tensor, Tensor]]


class Mlp(nn.Module):
    """Linear layers with ReLU between them.

    Args:
        sizes: Width of the input and of each layer.
        relu_last: Whether the last layer has a ReLU too.
    """

    def __init__(self, sizes: Sequence[int], relu_last: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place, (width_in, width_out) in enumerate(itertools.pairwise(sizes)):
            layers.append(nn.Linear(width_in, width_out))
            if relu_last or place < len(sizes) - 2:
                layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def forward(self, rows_BD: Tensor) -> Tensor:
        """Return ``[B, sizes[-1]]``."""
        out: Tensor = self.layers(rows_BD)
        return out


class TableBags(nn.Module):
    """One ``torch.nn.EmbeddingBag`` for each feature, each an operator of its own in a trace.

    Args:
        names: Features, one table each.
        num_rows: Rows of every table.
        dim: Dimension D.
        mode: ``sum`` or ``mean``.
    """

    def __init__(self, names: Sequence[str], num_rows: int, dim: int, mode: str = "sum") -> None:
        super().__init__()
        self.names = tuple(names)
        self.tables = nn.ModuleDict(
            {name: nn.EmbeddingBag(num_rows, dim, mode=mode) for name in names}
        )

    def forward(self, features: Features) -> dict[str, Tensor]:
        """Return pooled rows ``[B, D]`` of each feature."""
        return {
            name: self.tables[name](features[name][0], features[name][1]) for name in self.names
        }


def feature_names(count: int, stem: str = "f") -> tuple[str, ...]:
    """Return ``count`` names of features.

    >>> feature_names(3)
    ('f0', 'f1', 'f2')
    """
    return tuple(f"{stem}{place}" for place in range(count))


def random_features(
    names: Sequence[str], num_rows: int, batch: int, pooling: int, generator: torch.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return bags of ``pooling`` uniform ids for each feature.

    Args:
        names: Features.
        num_rows: Rows of every table.
        batch: Samples B.
        pooling: Ids of a bag.
        generator: Source of the ids.
    """
    offsets = torch.arange(0, batch * pooling, pooling)
    return {
        name: (torch.randint(num_rows, (batch * pooling,), generator=generator), offsets)
        for name in names
    }
