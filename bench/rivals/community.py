"""Community chunks: Louvain communities of the pair-count graph, chopped into clusters.

The baseline of GRACE, ASPLOS'23: general community detection finds communities of hundreds of
items, far beyond what can store all its subsets, so they must be chopped. Written anew: within a
community the items of greatest weighted degree stand first, every k of them are a cluster, and
the clusters of most weight per stored row fill the budget; k and the resolution of the
communities are chosen on validation bags. Louvain is scikit-network's.
Shapes: N items, C chunks, M members of all chunks.
"""

import importlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.grouping.pair_counts import PairCounts, count_pairs
from grace_torchrec.sums.clusters import MAX_CLUSTER
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

CHUNK_SIZES = range(3, MAX_CLUSTER + 1)
RESOLUTIONS = (1.0, 4.0)  # 1 leaves up to 10,000 items in one community of a sparse trace
Int64s = npt.NDArray[np.int64]


class Choice(NamedTuple):
    """What is chosen on validation bags.

    Attributes:
        chunk_size: Items k of a chunk, 2..8.
        resolution: Of Louvain's modularity; more makes smaller communities.
    """

    chunk_size: int
    resolution: float


def fit(train: Trace, budget: int, seed: int = 0, *, choice: Choice | None = None) -> StoredSums:
    """Chop the communities of ``train`` and store all subsets of the best chunks.

    Args:
        train: Train bags.
        budget: Most sums, 0 or more.
        seed: Of Louvain's order.
        choice: None: chosen with the last fifth of ``train``, then refitted on all of it.

    Raises:
        GraceError: ``budget`` is below 0, or the pair counts pass their memory limit.
        NotSupported: scikit-network is not installed.
    """
    if choice is None:
        keep = train.num_bags - train.num_bags // 5
        bags = np.arange(train.num_bags)
        cuts = choice_cuts(train.take(bags[:keep]), train.take(bags[keep:]), budget, seed)
        choice = best_choice(cuts)
    _check_budget(budget)
    pairs = count_pairs(train)
    return _chopped(pairs, communities(pairs, choice.resolution, seed), budget, choice.chunk_size)


def choice_cuts(
    fit_trace: Trace, validation: Trace, budget: int, seed: int = 0
) -> dict[Choice, float]:
    """Return the cut on ``validation`` for each resolution and chunk size.

    Raises:
        GraceError: as :func:`fit`.
        NotSupported: as :func:`fit`.
    """
    _check_budget(budget)
    pairs = count_pairs(fit_trace)
    return dict(_cuts(pairs, validation, budget, seed))


def best_choice(cuts: dict[Choice, float]) -> Choice:
    """Return the choice of the greatest cut; ties go to small chunks, then a low resolution."""
    return max(cuts, key=lambda choice: (cuts[choice], -choice.chunk_size, -choice.resolution))


def communities(pairs: PairCounts, resolution: float, seed: int) -> Int64s:
    """Return the community of each item, int64 ``[N]``.

    Raises:
        NotSupported: scikit-network is not installed.
    """
    try:
        clustering = importlib.import_module("sknetwork.clustering")
    except ImportError as error:
        raise NotSupported("community: needs scikit-network; pip install scikit-network") from error
    if not pairs.counts_E.size:
        return np.arange(pairs.num_items)
    shape = (pairs.num_items, pairs.num_items)
    graph = sp.csr_matrix((pairs.counts_E, pairs.partners_E, pairs.indptr_N1), shape=shape)
    louvain = clustering.Louvain(resolution=resolution, random_state=seed)
    return np.asarray(louvain.fit_predict(graph.astype(np.float64)), np.int64)


def _cuts(
    pairs: PairCounts, validation: Trace, budget: int, seed: int
) -> Iterator[tuple[Choice, float]]:
    """Yield the cut of each choice."""
    for resolution in RESOLUTIONS:
        community_N = communities(pairs, resolution, seed)
        for size in CHUNK_SIZES:
            sums = _chopped(pairs, community_N, budget, size)
            yield Choice(size, resolution), count_reads(validation, sums).cut


def _chopped(pairs: PairCounts, community_N: Int64s, budget: int, chunk_size: int) -> StoredSums:
    """Chop communities into chunks and keep the best ones that fit in the budget."""
    degree_N = pairs.weighted_degrees()
    item_M = np.lexsort((-degree_N, community_N))
    item_M = item_M[degree_N[item_M] > 0]
    community_M = community_N[item_M]
    rank_M = np.arange(item_M.size) - np.searchsorted(community_M, community_M)
    starts = np.flatnonzero((rank_M % chunk_size == 0) if item_M.size else np.zeros(0, np.bool_))
    sizes = np.diff(starts, append=item_M.size)
    rows = (1 << sizes) - 1 - sizes
    weight = np.add.reduceat(degree_N[item_M], starts) if starts.size else np.zeros(0)
    order = np.argsort(-weight / np.maximum(rows, 1), kind="stable")
    order = order[sizes[order] > 1]
    chosen = order[np.cumsum(rows[order]) <= budget]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[chosen])])
    source = np.repeat(starts[chosen] - offsets[:-1], sizes[chosen]) + np.arange(offsets[-1])
    return StoredSums.from_clusters(pairs.num_items, offsets, item_M[source])


def _check_budget(budget: int) -> None:
    """Refuse budgets that are no number of rows."""
    if budget < 0:
        raise GraceError(f"community: budget {budget}, give the number of sums, 0 or more")
