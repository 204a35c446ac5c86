"""Generated traces: popularity by a power law, tastes by overlapping communities.

Flow: *generate* -> Trace, for the demo, for tests and for sizes no public data set has.
Derived, not from the paper: a user follows a few communities of items and draws most ids from
them, the rest by global popularity.  Defaults are a dense kind (small communities, pooling
factor 30..145 as in GRACE's data sets), where a cluster method can cut about .3 of the reads;
larger communities or more ``global_share`` make it sparse.
Shapes: N items, B bags, C communities, M members of all communities, D draws of a chunk of bags.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace

CHUNK_BAGS = 1 << 14  # bags drawn together: bounds the memory, and is part of what a seed means
ROUNDS = 6  # draws before the last missing ids of a bag are taken at random from all others
FLAT_RANKS = 10  # popularity ~ (rank + 10) ** -zipf: no single item stands in every bag
PARETO_INDEX = 1.8  # of community sizes
APPEAL_ZIPF = 0.7  # some communities are followed by more users
LOYALTY = 1.5  # users draw more from the first communities they follow
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _World:
    """What users draw from.

    Attributes:
        popularity_N: Cumulative probability of items by global popularity, float64 ``[N]``.
        by_rank_N: The item of each popularity rank.
        appeal_C: Cumulative probability that a user follows each community, float64 ``[C]``.
        community_C1: Community ``c`` is ``members_M[community_C1[c]:community_C1[c + 1]]``.
        members_M: Item ids, the most requested of a community first.
        max_followed: A user follows 1 to this many communities.
        global_share: Share of the draws that ignore the communities.
        member_skew: A draw takes the member ``size * u ** member_skew``, u uniform in 0..1.
    """

    popularity_N: npt.NDArray[np.float64]
    by_rank_N: _Ints
    appeal_C: npt.NDArray[np.float64]
    community_C1: _Ints
    members_M: _Ints
    max_followed: int
    global_share: float
    member_skew: float


def generate(
    num_items: int,
    num_bags: int,
    seed: int = 0,
    *,
    pooling: tuple[int, int] = (30, 145),
    zipf: float = 0.8,
    community_size: int = 20,
    memberships: float = 1.2,
    communities_per_user: int = 6,
    global_share: float = 0.15,
    member_skew: float = 1.2,
    repeats: float = 0.0,
) -> Trace:
    """Generate bags; equal arguments give equal traces.

    Args:
        num_items: Rows N of the table.
        num_bags: Bags (users), each from a small set of communities.
        seed: Of all draws.
        pooling: Smallest and largest ids per bag; the mean is near a third of the way up.
        zipf: Exponent of the global popularity (0: uniform).
        community_size: Least items of a community; sizes follow a Pareto law of index 1.8
            above it, cut at 10 times.
        memberships: Communities an item is in, on average; above 1 they overlap.
        communities_per_user: A user follows 1 to this many, the first ones more.
        global_share: Share of ids drawn by global popularity instead of from a community.
        member_skew: Above 1, the first members of a community are drawn more often.
        repeats: Share of the ids of a bag that repeat another id of it (default none).

    Raises:
        GraceError: an argument is out of range, or bags are longer than there are items.

    >>> generate(500, 10).num_bags
    10
    """
    low, high = pooling
    _check(num_items >= 1 and num_bags >= 0, "give num_items >= 1 and num_bags >= 0")
    _check(
        1 <= low <= high <= num_items, f"pooling {low}..{high} must lie in 1..{num_items} (items)"
    )
    _check(zipf >= 0 and member_skew > 0, "zipf must not be negative, member_skew must be above 0")
    _check(community_size >= 1 and memberships > 0, "give community_size >= 1, memberships > 0")
    _check(communities_per_user >= 1, "communities_per_user must be 1 or more")
    _check(
        0 <= global_share <= 1 and 0 <= repeats < 1, "give global_share in 0..1, repeats below 1"
    )
    rng = np.random.default_rng(seed)
    popularity, by_rank = _popularity(rng, num_items, zipf)
    appeal, community, members = _communities(rng, num_items, community_size, memberships)
    world = _World(
        *(popularity, by_rank, appeal, community, members),
        *(communities_per_user, global_share, member_skew),
    )
    # the smaller of two uniform numbers: short bags are more frequent, as in real traces
    lengths = low + ((high - low + 1) * rng.random((num_bags, 2)).min(1)).astype(np.int64)
    offsets = np.zeros(num_bags + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids = np.empty(offsets[-1], np.int32 if num_items < 2**31 else np.int64)
    for first in range(0, num_bags, CHUNK_BAGS):
        last = min(first + CHUNK_BAGS, num_bags)
        ids[offsets[first] : offsets[last]] = _chunk(rng, world, lengths[first:last], repeats)
    return Trace(offsets, ids, num_items)


def _popularity(
    rng: np.random.Generator, num_items: int, zipf: float
) -> tuple[npt.NDArray[np.float64], _Ints]:
    """Return the cumulative popularity by rank and the item of each rank."""
    weight = (np.arange(num_items) / FLAT_RANKS + 1) ** -zipf
    return _cumulative(weight), rng.permutation(num_items)


def _communities(
    rng: np.random.Generator, num_items: int, least: int, memberships: float
) -> tuple[npt.NDArray[np.float64], _Ints, _Ints]:
    """Return appeal ``[C]``, community offsets ``[C + 1]`` and members ``[M]``."""
    least = min(least, num_items)
    total = max(int(num_items * memberships), least)
    sizes = (least * (rng.pareto(PARETO_INDEX, total // least) + 1)).astype(np.int64)
    sizes = np.minimum(sizes, min(10 * least, num_items))
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), total)) + 1]
    community = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=community[1:])
    # whole permutations one after the other: every item is in some community (memberships >= 1)
    times = -(-int(community[-1]) // num_items)
    members = np.concatenate([rng.permutation(num_items) for _ in range(times)])[: community[-1]]
    return _cumulative((np.arange(sizes.size) / 5.0 + 1) ** -APPEAL_ZIPF), community, members


def _chunk(rng: np.random.Generator, world: _World, lengths_B: _Ints, repeats: float) -> _Ints:
    """Draw the ids of some bags."""
    if not repeats:
        return _distinct(rng, world, lengths_B)
    num_distinct = np.maximum(1, lengths_B - np.rint(repeats * lengths_B).astype(np.int64))
    ids = _distinct(rng, world, num_distinct)
    starts = _starts(num_distinct)
    num_copies = lengths_B - num_distinct
    owner = np.repeat(np.arange(lengths_B.size), num_copies)
    copied = ids[starts[owner] + rng.integers(0, num_distinct[owner])]
    bags = np.concatenate([np.repeat(np.arange(lengths_B.size), num_distinct), owner])
    order = np.lexsort((rng.random(bags.size), bags))  # copies stand anywhere in their bag
    return np.concatenate([ids, copied])[order]


def _distinct(rng: np.random.Generator, world: _World, lengths_B: _Ints) -> _Ints:
    """Draw bags without repeated ids, in the order of the draws.

    Bags that are short after a round (their communities are used up) follow new ones.
    """
    ids = np.empty(int(lengths_B.sum()), np.int64)
    have_B = np.zeros(lengths_B.size, np.int64)
    for _ in range(ROUNDS):
        short = np.flatnonzero(have_B < lengths_B)
        if not short.size:
            return ids
        have_B[short] = _add_draws(rng, world, lengths_B, have_B, short, ids)
    starts = _starts(lengths_B)
    for bag in np.flatnonzero(have_B < lengths_B):
        row = ids[starts[bag] : starts[bag] + lengths_B[bag]]
        others = np.setdiff1d(np.arange(world.by_rank_N.size), row[: have_B[bag]])
        row[have_B[bag] :] = rng.choice(others, row.size - have_B[bag], replace=False)
    return ids


def _add_draws(
    rng: np.random.Generator,
    world: _World,
    lengths_B: _Ints,
    have_B: _Ints,
    short_K: _Ints,
    ids: _Ints,
) -> _Ints:
    """Draw once for the bags ``short_K`` and write what is new into ``ids``; return what they have."""
    starts, have, want = _starts(lengths_B)[short_K], have_B[short_K], lengths_B[short_K]
    held_bag = np.repeat(np.arange(short_K.size), have)
    held = ids[np.repeat(starts - _starts(have), have) + np.arange(held_bag.size)]
    drawn_bag = np.repeat(np.arange(short_K.size), (want - have) * 3 // 2 + 8)  # some repeat
    # held ids stand first, so that the first of equal ones is kept and draws only add
    bags = np.concatenate([held_bag, drawn_bag])
    items = np.concatenate([held, _draw(rng, world, drawn_bag)])
    first = np.sort(np.unique(bags * world.by_rank_N.size + items, return_index=True)[1])
    first = first[np.argsort(bags[first], kind="stable")]
    bags, items = bags[first], items[first]
    counts = np.bincount(bags, minlength=short_K.size)
    place = np.arange(bags.size) - _starts(counts)[bags]
    fits = place < want[bags]
    ids[starts[bags[fits]] + place[fits]] = items[fits]
    return np.minimum(counts, want)


def _draw(rng: np.random.Generator, world: _World, bags_D: _Ints) -> _Ints:
    """Draw one id for each entry of ``bags_D``; equal entries (bags from 0) are one user's draws."""
    num_users = int(bags_D[-1]) + 1
    followed = _pick(rng, world.appeal_C, (num_users, world.max_followed))
    num_followed = rng.integers(1, world.max_followed + 1, num_users)
    community = followed[bags_D, _skewed(rng, num_followed[bags_D], LOYALTY)]
    first, last = world.community_C1[community], world.community_C1[community + 1]
    items: _Ints = world.members_M[first + _skewed(rng, last - first, world.member_skew)]
    anywhere = np.flatnonzero(rng.random(bags_D.size) < world.global_share)
    items[anywhere] = world.by_rank_N[_pick(rng, world.popularity_N, (anywhere.size,))]
    return items


def _cumulative(weight: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return the cumulative probability; the last entry is exactly 1."""
    total: npt.NDArray[np.float64] = np.cumsum(weight, dtype=np.float64)
    total /= total[-1]
    return total


def _pick(
    rng: np.random.Generator, cumulative: npt.NDArray[np.float64], shape: tuple[int, ...]
) -> _Ints:
    """Draw indices with the given cumulative probability."""
    return np.asarray(np.searchsorted(cumulative, rng.random(shape), side="right"), np.int64)


def _skewed(rng: np.random.Generator, sizes: _Ints, skew: float) -> _Ints:
    """Draw an index below each size, low ones more often where ``skew`` is above 1."""
    drawn = (sizes * rng.random(sizes.size) ** skew).astype(np.int64)
    return np.minimum(drawn, sizes - 1)  # the product may round up to the size


def _starts(lengths: _Ints) -> _Ints:
    """Return where each run begins when runs of these lengths stand one after the other."""
    return np.cumsum(lengths) - lengths


def _check(holds: bool, what: str) -> None:
    """Refuse an argument."""
    if not holds:
        raise GraceError(f"generate: {what}")
