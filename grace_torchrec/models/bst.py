"""Behaviour Sequence Transformer: one transformer block over a history.

Flow: rows of the history and positions -> attention and layers -> beside pooled features -> a score.
Source: Chen et al., 2019.  Shapes: B samples, T items of a history, D dimension, H heads.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace_torchrec.models.parts import Features, Mlp


class Bst(nn.Module):
    """A transformer block, pooled features, layers.

    Args:
        collection: Maps the features to pooled rows ``[B, D]`` by name.
        names: Features to use.
        num_rows: Rows of the table of items.
        dim: Dimension D.
        length: Items T of the history, the target last.
        heads: Heads H; D is a multiple of it.
        hidden: Hidden widths of the last layers.
    """

    def __init__(
        self,
        collection: nn.Module,
        names: Sequence[str],
        num_rows: int,
        dim: int,
        length: int = 21,
        heads: int = 4,
        hidden: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        self.collection, self.names = collection, tuple(names)
        self.dim, self.length, self.heads = dim, length, heads
        self.items, self.places = nn.Embedding(num_rows, dim), nn.Embedding(length, dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.mixed = nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm_attention, self.norm_layers = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.register_buffer("places_T", torch.arange(length), persistent=False)
        self.layers = Mlp([len(self.names) * dim + length * dim, *hidden, 1])

    def forward(self, history: Tensor, features: Features) -> Tensor:
        """Return scores ``[B, 1]`` of int64 ids ``history`` ``[B, T]`` and the bags of features."""
        rows = self.items(history) + self.places(self.places_T)
        attended = F.scaled_dot_product_attention(
            self._by_head(self.query(rows)),
            self._by_head(self.key(rows)),
            self._by_head(self.value(rows)),
        )
        joined = attended.transpose(1, 2).reshape(-1, self.length, self.dim)
        rows = self.norm_attention(rows + self.mixed(joined))
        rows = self.norm_layers(rows + self.narrow(F.leaky_relu(self.widen(rows))))
        pooled = self.collection(features)
        parts = [rows.flatten(1)] + [pooled[name] for name in self.names]
        return torch.sigmoid(self.layers(torch.cat(parts, 1)))

    def _by_head(self, rows: Tensor) -> Tensor:
        """Return ``[B, H, T, D / H]`` of ``[B, T, D]``."""
        return rows.view(-1, self.length, self.heads, self.dim // self.heads).transpose(1, 2)
