"""Batches for the demo and the benches: bags of a trace as KeyedJaggedTensors, with labels.

Flow: Trace -> *history_batches* -> models.  Label 1: the candidate is an item of the user that
was taken out of the bag; label 0: an item drawn by popularity.
Shapes: B bags of a batch, L ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grace_torchrec.models.dlrm import DENSE_FEATURES, history_features
from grace_torchrec.traces.trace import Trace

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch.

    Attributes:
        dense: float32 ``[B, 13]``.
        bags: Features ``history`` and ``candidate``.
        labels: float32 ``[B]``.
    """

    dense: Tensor
    bags: "KeyedJaggedTensor"
    labels: Tensor

    @property
    def inputs(self) -> "tuple[Tensor, KeyedJaggedTensor]":
        """Arguments of the model."""
        return self.dense, self.bags


def history_batches(
    trace: Trace,
    batch_size: int = 512,
    *,
    hold_out: bool = False,
    histories: int = 1,
    seed: int = 0,
) -> Iterator[Batch]:
    """Yield the bags of ``trace`` in order, ids in source order.

    Args:
        trace: Whole bags.
        batch_size: Bags of a batch; the last one may be smaller.
        hold_out: Take a positive candidate out of its bag (for training); else bags stay whole.
        histories: Features with whole bags; those after the first hold the bags of users further on.
        seed: Of candidates and dense features.
    """
    rng = np.random.default_rng(seed)
    for first in range(0, trace.num_bags, batch_size):
        bags = np.arange(first, min(first + batch_size, trace.num_bags))
        batch = _batch(trace, trace.take(bags), hold_out, rng)
        others = [trace.take((bags + k * batch_size) % trace.num_bags) for k in range(1, histories)]
        yield replace(batch, bags=_with_histories(batch.bags, others)) if others else batch


def _batch(trace: Trace, part: Trace, hold_out: bool, rng: np.random.Generator) -> Batch:
    """Draw candidates and dense features for the bags ``part`` of ``trace``."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    lengths = np.diff(part.offsets_B1)
    positive = (rng.random(part.num_bags) < 0.5) & (lengths > 0)
    # An id drawn from the whole trace is an item drawn by popularity.
    candidates = np.zeros(part.num_bags, np.int64)
    if trace.num_ids:
        candidates[:] = trace.ids_L[rng.integers(0, trace.num_ids, part.num_bags)]
    last_of_bag = part.offsets_B1[1:][positive] - 1
    candidates[positive] = part.ids_L[last_of_bag]
    keep = np.ones(part.num_ids, np.bool_)
    if hold_out:
        keep[last_of_bag] = False
        lengths = lengths - positive
    ids = np.concatenate([part.ids_L[keep].astype(np.int64), candidates])
    dense = rng.standard_normal((part.num_bags, DENSE_FEATURES), np.float32)
    bags = KeyedJaggedTensor(
        keys=["history", "candidate"],
        values=torch.from_numpy(ids),
        lengths=torch.from_numpy(np.concatenate([lengths, np.ones_like(lengths)])),
    )
    return Batch(torch.from_numpy(dense), bags, torch.from_numpy(positive.astype(np.float32)))


def _with_histories(bags: "KeyedJaggedTensor", others: list[Trace]) -> "KeyedJaggedTensor":
    """Return ``bags`` with the bags ``others`` as further histories."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    lengths = [torch.from_numpy(np.diff(other.offsets_B1)) for other in others]
    ids = [torch.from_numpy(other.ids_L.astype(np.int64)) for other in others]
    return KeyedJaggedTensor(
        keys=[*bags.keys(), *history_features(1 + len(others))[1:]],
        values=torch.cat([bags.values(), *ids]),
        lengths=torch.cat([bags.lengths(), *lengths]),
    )
