"""Best partners: for each item the K items it is requested with most often, exact counts.

Flow: trace -> *RankedBags* -> *Partners* -> merging of sets and of clusters.  Derived, as the
paper keeps every pair: the counts of all pairs do not fit in memory for large tables, the best
ones do, and merging never looks at the others.
Shapes: B bags, B1 = B + 1, L ids, N items, N1 = N + 1, K partners kept.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_kernels._llvm import target_has
from grace_torchrec.grouping import _partner_core
from grace_torchrec.grouping._pair_core import bags_of_items
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.grouping.pair_counts import TooManyPairs
from grace_torchrec.grouping.threads import counting_threads
from grace_torchrec.traces.trace import Trace

NUM_PARTNERS = 64
LEAST_SUPPORT = 2  # a pair that was requested together once is no evidence
REPORTS = 16  # of progress
BYTES_PER_PARTNER = 8  # partner and count
BYTES_PER_ITEM = 128  # what merging keeps of an item beside, two tokens of it
FEWEST_KEPT = 8  # partners of an item: with fewer, merging finds no groups
# Words of 64 bags worth counting in place of one pair of a bag. With the instruction that counts the
# bits of a whole vector a word took 0.2 ns; without it nothing was measured, and bits must be fewer.
WORDS_A_PAIR = 6 if target_has("avx512vpopcntdq") else 1


@dataclass(frozen=True, eq=False)
class RankedBags:
    """The layers of all bags, items numbered by falling frequency.

    Attributes:
        offsets_B1: int64 ``[B + 1]``.
        ranks_L: int32 ``[L]``, rising in each bag, no repeats.
        item_of_rank_N: int64 ``[N]``: the item of each rank; equal frequency: lower id first.
        indptr_N1: int64 ``[N + 1]``, start of each rank in ``bags_L``.
        bags_L: int32 ``[L]``, the bags that hold each rank, rising.
    """

    offsets_B1: npt.NDArray[np.int64]
    ranks_L: npt.NDArray[np.int32]
    item_of_rank_N: npt.NDArray[np.int64]
    indptr_N1: npt.NDArray[np.int64]
    bags_L: npt.NDArray[np.int32]

    @property
    def num_items(self) -> int:
        """Rows N of the table."""
        return int(self.item_of_rank_N.size)

    @property
    def pair_scale(self) -> float:
        """Expected bags with two items, over the product of their frequencies, if items were independent.

        The configuration model: every bag keeps its length and draws items by frequency.
        """
        lengths = np.diff(self.offsets_B1).astype(np.float64)
        ids = float(lengths.sum())
        return float((lengths * (lengths - 1)).sum() / (ids * ids)) if ids else 0.0


@dataclass(frozen=True, eq=False)
class Partners:
    """Row ``r``: the best more frequent partners of the item of rank ``r``.

    Attributes:
        partners_NK: int32 ranks, -1 past the last.
        counts_NK: int32 counts.
    """

    partners_NK: npt.NDArray[np.int32]
    counts_NK: npt.NDArray[np.int32]


def ranked_bags(trace: Trace) -> RankedBags:
    """Split ``trace`` into layers and number the items by falling frequency.

    >>> bags = ranked_bags(Trace.from_bags([[7, 3], [3], [7, 3, 3]]))
    >>> bags.item_of_rank_N[:2].tolist(), bags.ranks_L.tolist()
    ([3, 7], [0, 1, 0, 0, 1, 0])
    """
    layers = layered_bags(trace)
    return rank_tokens(layers.offsets_B1, layers.ids_L, layers.num_items)


def rank_tokens(
    offsets_B1: npt.NDArray[np.int64],
    ids_L: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    num_items: int,
) -> RankedBags:
    """Number the items of bags without repeats by falling frequency.

    Args:
        offsets_B1: int64 ``[B + 1]``.
        ids_L: Ids below ``num_items``, in any order.
        num_items: Items N.
    """
    order_N = np.argsort(-np.bincount(ids_L, minlength=num_items), kind="stable")
    rank_N = np.empty(num_items, np.int32)
    rank_N[order_N] = np.arange(num_items, dtype=np.int32)
    indptr_N1, bags_L = bags_of_items(offsets_B1, rank_N[ids_L], num_items)
    _, ranks_L = bags_of_items(indptr_N1, bags_L, offsets_B1.size - 1)  # inverted twice: rising
    return RankedBags(offsets_B1, ranks_L, order_N, indptr_N1, bags_L)


def partners_within(num_items: int, wanted: int, memory_limit_bytes: int) -> int:
    """Return how many partners of each item may be kept, at most ``wanted``.

    Args:
        num_items: Items that bags ask for.
        wanted: Partners that merging would like.
        memory_limit_bytes: Most memory of them and of what merging keeps of each item.

    Raises:
        TooManyPairs: not even a few would fit.

    >>> partners_within(1_000_000, 32, 4 << 30), partners_within(1_000_000, 32, 300_000_000)
    (32, 21)
    """
    room = memory_limit_bytes // max(num_items, 1) - BYTES_PER_ITEM
    most = max(room, 0) // BYTES_PER_PARTNER
    if most < min(wanted, FEWEST_KEPT):
        need = (FEWEST_KEPT * BYTES_PER_PARTNER + BYTES_PER_ITEM) * num_items
        raise TooManyPairs(
            f"partners: {num_items:,} items with {FEWEST_KEPT} partners each need {need:,} B, the "
            f"limit is {memory_limit_bytes:,} B; leave out items that are rarely requested, or raise "
            "memory_limit_bytes"
        )
    return min(wanted, most)


def best_partners(
    bags: RankedBags,
    num_partners: int = NUM_PARTNERS,
    least: int = LEAST_SUPPORT,
    num_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Partners:
    """Count all pairs and keep the best; ``8 * N * K`` bytes and two counters an item and thread.

    Args:
        bags: Ranked bags.
        num_partners: Partners K kept for each item.
        least: Least count of a pair.
        num_threads: Threads; default: the processors of this process. They change no figure.
        progress: Called now and then with (items done, items), the last time with both equal.
    """
    shape = (bags.num_items, num_partners)
    partners, counts = np.empty(shape, np.int32), np.zeros(shape, np.int32)
    threads = counting_threads(bags.ranks_L.size, num_threads)
    parts = threads if progress is None else max(threads, REPORTS)

    num_bags = bags.offsets_B1.size - 1
    by_bits = _bits_are_faster(bags)
    bits_NW = _partner_core.bags_as_bits(bags.indptr_N1, bags.bags_L, num_bags) if by_bits else None

    def count(first: int) -> None:
        """Count every ``parts``-th item: frequent and rare ones alike."""
        if bits_NW is not None:
            _partner_core.count_partners_by_bits(
                bits_NW, np.diff(bags.indptr_N1), least, first, parts, partners, counts
            )
        else:
            _partner_core.count_partners(
                bags.offsets_B1, bags.ranks_L, bags.indptr_N1, bags.bags_L, least, first, parts,
                partners, counts,
            )  # fmt: skip

    with ThreadPoolExecutor(threads) as pool:  # the core holds no lock of the interpreter
        for done, _ in enumerate(pool.map(count, range(parts)), 1):
            if progress is not None:
                progress(done * bags.num_items // parts, bags.num_items)
    return Partners(partners, counts)


def _bits_are_faster(bags: RankedBags) -> bool:
    """Tell whether words of 64 bags are fewer than pairs by enough, and take no more room than ids."""
    lengths = np.diff(bags.offsets_B1)
    words = bags.num_items * (lengths.size // 64 + 1)
    pairs = int((lengths * (lengths - 1)).sum()) // 2
    return words <= bags.ranks_L.size and words * bags.num_items // 2 < WORDS_A_PAIR * pairs
