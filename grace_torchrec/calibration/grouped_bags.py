"""Bags with a known share of saved reads, over a table of any size.

Flow: sizes -> *GroupedBags* -> the costs of lookups, and ``bench lookup``.  Clusters of four items stand at random ids; a
bag visits some clusters with three items each (three ids, one stored row: two reads saved) and
fills up with unclustered ids; ids of a bag are shuffled.
Shapes: N rows, B bags of a batch, P ids per bag.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.stored_sums import StoredSums

SIZE, VISITED = 4, 3
SAVED_A_VISIT = VISITED - 1
ROWS_A_CLUSTER = 16  # of the table: a quarter of its rows is clustered


@dataclass(frozen=True, eq=False)
class GroupedBags:
    """Sums, and batches of (int64 ids ``[B * P]``, int64 offsets ``[B + 1]``)."""

    sums: StoredSums
    batches: list[tuple[Tensor, Tensor]]


def grouped_bags(
    num_rows: int, pooling: int, batch: int, saved: float, num_batches: int, seed: int = 0
) -> GroupedBags:
    """Make batches whose rewriting saves ``saved`` of the reads (to the next whole visit).

    Raises:
        GraceError: the bags are too short for that share, or the table for the clusters.
    """
    visits = round(saved * pooling / SAVED_A_VISIT)
    clusters = num_rows // ROWS_A_CLUSTER
    if visits * VISITED > pooling or clusters < 2 * visits:
        raise GraceError(
            f"lookup: bags of {pooling} ids over {num_rows:,} rows cannot save {saved:.0%}; "
            "ask for less, or for longer bags or more rows"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_rows)
    members, others = order[: clusters * SIZE].reshape(-1, SIZE), order[clusters * SIZE :]
    sums = StoredSums.from_clusters(
        num_rows, np.arange(0, clusters * SIZE + 1, SIZE), members.ravel()
    )
    offsets = torch.arange(0, batch * pooling + 1, pooling)
    batches = [
        (torch.from_numpy(_batch(rng, members, others, batch, pooling, visits)), offsets)
        for _ in range(num_batches)
    ]
    return GroupedBags(sums, batches)


def _batch(
    rng: np.random.Generator,
    members: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    batch: int,
    pooling: int,
    visits: int,
) -> npt.NDArray[np.int64]:
    """Draw the ids of one batch; a bag visits distinct clusters."""
    spread = members.shape[0] // max(visits, 1)
    visited = rng.integers(0, spread, (batch, visits)) + np.arange(visits) * spread
    chosen = np.argsort(rng.random((batch, visits, SIZE)), axis=2)[:, :, :VISITED]
    clustered = members[visited[:, :, None], chosen].reshape(batch, -1)
    single = others[rng.integers(0, others.size, (batch, pooling - clustered.shape[1]))]
    bags = np.concatenate([clustered, single], axis=1)
    return rng.permuted(bags, axis=1).reshape(-1).astype(np.int64)
