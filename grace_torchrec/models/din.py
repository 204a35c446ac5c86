"""Deep Interest Network: histories pooled by attention to a target item.

Flow: history and target rows -> weights -> weighted sums beside pooled features -> a score.
Source: Zhou et al., 2018.  Shapes: B samples, T items of a history, D dimension.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from grace_torchrec.models.parts import Features, Mlp


class Din(nn.Module):
    """Attention over each history, pooled features, layers.

    Args:
        collection: Maps the features to pooled rows ``[B, D]`` by name.
        names: Features to use.
        histories: Names of the histories; each has a table shared with its target.
        num_rows: Rows of the tables of items.
        dim: Dimension D.
        length: Items T of a history.
        hidden: Hidden widths of the last layers.
    """

    def __init__(
        self,
        collection: nn.Module,
        names: Sequence[str],
        histories: Sequence[str],
        num_rows: int,
        dim: int,
        length: int = 50,
        hidden: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        self.collection, self.names = collection, tuple(names)
        self.histories, self.length = tuple(histories), length
        self.items = nn.ModuleDict({name: nn.Embedding(num_rows, dim) for name in histories})
        self.attention = nn.ModuleDict({name: Mlp([4 * dim, 36, 1]) for name in histories})
        width = (len(self.names) + 2 * len(self.histories)) * dim
        self.layers = Mlp([width, *hidden, 1])

    def forward(
        self, history: Mapping[str, Tensor], target: Mapping[str, Tensor], features: Features
    ) -> Tensor:
        """Return scores ``[B, 1]``.

        Args:
            history: int64 ids ``[B, T]`` by name of history.
            target: int64 ids ``[B]`` by name of history.
            features: Bags of the other features.
        """
        parts = []
        for name in self.histories:
            seen, wanted = self.items[name](history[name]), self.items[name](target[name])
            asked = wanted.unsqueeze(1).expand(-1, self.length, -1)
            both = torch.cat([seen, asked, seen - asked, seen * asked], -1)
            weights = torch.sigmoid(self.attention[name](both))
            parts += [(weights * seen).sum(1), wanted]
        pooled = self.collection(features)
        parts += [pooled[name] for name in self.names]
        return torch.sigmoid(self.layers(torch.cat(parts, 1)))
