"""Batches for the models: bags of a trace as KeyedJaggedTensors, with labels to train on.

Flow: Trace -> *history_batches* -> models; label 1: the candidate is an item of the bag that was
held out, 0: an item drawn by popularity.  Shapes: B bags of a batch, L ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grace_torchrec.models.dlrm import DENSE_FEATURES
from grace_torchrec.traces.trace import Trace

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True, eq=False)
class Batch:
    """What the model takes (``inputs``), and the label of each bag, float32 ``[B]``."""

    dense: Tensor
    bags: "KeyedJaggedTensor"
    labels: Tensor

    @property
    def inputs(self) -> tuple[Tensor, "KeyedJaggedTensor"]:
        """Arguments of the model."""
        return self.dense, self.bags


def history_batches(
    trace: Trace, batch_size: int = 512, *, hold_out: bool = False, seed: int = 0
) -> Iterator[Batch]:
    """Yield the bags of ``trace`` in order, ids in source order.

    Args:
        trace: Whole bags.
        batch_size: Bags of a batch; the last one may be smaller.
        hold_out: Take the positive candidate out of its bag (for training); else bags stay whole.
        seed: Of candidates and dense features.
    """
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    rng = np.random.default_rng(seed)
    for first in range(0, trace.num_bags, batch_size):
        part = trace.take(np.arange(first, min(first + batch_size, trace.num_bags)))
        lengths = np.diff(part.offsets_B1)
        positive = (rng.random(part.num_bags) < 0.5) & (lengths > 0)
        # A negative candidate is any id of the trace: popular items are drawn more often.
        candidates = (
            trace.ids_L[rng.integers(0, max(trace.num_ids, 1), part.num_bags)]
            if trace.num_ids
            else np.zeros(part.num_bags, np.int64)
        )
        last = part.offsets_B1[1:] - 1
        candidates[positive] = part.ids_L[last[positive]]
        keep = np.ones(part.num_ids, np.bool_)
        if hold_out:
            keep[last[positive]] = False
            lengths = lengths - positive
        dense = torch.from_numpy(rng.standard_normal((part.num_bags, DENSE_FEATURES), np.float32))
        bags = KeyedJaggedTensor(
            keys=["history", "candidate"],
            values=torch.from_numpy(
                np.concatenate([part.ids_L[keep], candidates]).astype(np.int64)
            ),
            lengths=torch.from_numpy(np.concatenate([lengths, np.ones(part.num_bags, np.int64)])),
        )
        yield Batch(dense, bags, torch.from_numpy(positive.astype(np.float32)))
