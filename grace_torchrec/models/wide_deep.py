"""Wide & Deep over any two collections of pooled rows.

Flow: wide rows (one number an id) are summed, deep rows feed layers; both meet in a score.
Source: Cheng et al., 2016.  Shapes: B samples, D dimension.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace_torchrec.models.parts import Features, Mlp


class WideDeep(nn.Module):
    """A linear model over ids beside deep layers over their embeddings.

    Args:
        deep: Collection of pooled rows ``[B, D]`` by feature name.
        wide: Collection of pooled rows ``[B, 1]`` by feature name.
        names: Features to use.
        dim: Dimension D.
        num_dense: Dense inputs.
        hidden: Hidden widths of the deep layers.
    """

    def __init__(
        self,
        deep: nn.Module,
        wide: nn.Module,
        names: Sequence[str],
        dim: int,
        num_dense: int = 13,
        hidden: Sequence[int] = (512, 256, 128),
    ) -> None:
        super().__init__()
        self.deep, self.wide, self.names = deep, wide, tuple(names)
        self.wide_dense = nn.Linear(num_dense, 1)
        self.layers = Mlp([len(self.names) * dim + num_dense, *hidden, 1])

    def forward(self, dense: Tensor, features: Features) -> Tensor:
        """Return scores ``[B, 1]`` of ``dense`` ``[B, num_dense]`` and the bags of features."""
        deep, wide = self.deep(features), self.wide(features)
        embedded = [F.relu(deep[name]) for name in self.names]
        linear = torch.cat([wide[name] for name in self.names], 1).sum(1, keepdim=True)
        linear = linear + self.wide_dense(dense)
        return torch.sigmoid(linear + self.layers(torch.cat([*embedded, dense], 1)))
