"""Numba core of the candidates still to come: buckets by key, of which the highest is a heap.

Flow: called by the merging cores.  A million candidates wait, and nearly all of those that are
looked at go back with a lower key or leave for good.  One heap of all of them misses the caches
at every step, so only the candidates of the highest bucket stand in a heap; the others lie
unsorted in theirs.  What comes out is what one heap would give: a bucket holds a range of keys.
Shapes: H entries in the heap, C chunks of E entries, G buckets.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_torchrec.grouping._heap_core import comes_first, pack, pop, push, replace_top, worth

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 32  # entries of a chunk
OFFSET = 8.0  # added to a key: buckets of low keys are 1/128 wide, and wider as keys grow
SHIFT = 42  # mantissa bits that do not tell buckets apart: 1024 buckets each time a key doubles
LOWEST = 1026 << 10  # bits of OFFSET above the shift
BUCKETS = 30 << 10
HEAP, CURRENT, FREE, FREE_CHUNKS = 0, 1, 2, 3  # places in ``state_4``


class Queue(NamedTuple):
    """Entries by bucket; every function below changes it in place.

    Attributes:
        keys_H: Keys of the heap.
        pairs_H: Pairs of the heap.
        chunk_keys_CE: Keys of entries in buckets.
        chunk_pairs_CE: Their pairs.
        next_C: The chunk before in the same bucket, or the next free one; -1 ends a chain.
        heads_G: Last chunk of each bucket, -1 where it is empty.
        fills_G: Entries in that chunk.
        state_4: Entries of the heap, lowest bucket in the heap, first free chunk, free chunks.
    """

    keys_H: Floats
    pairs_H: Int64s
    chunk_keys_CE: Floats
    chunk_pairs_CE: Int64s
    next_C: Int32s
    heads_G: Int32s
    fills_G: Int32s
    state_4: Int64s


@jit
def new_queue(entries: int) -> Any:
    """Return an empty queue with room for about so many entries."""
    chunks = entries // CHUNK + 64
    return Queue(
        np.empty(64, np.float64),
        np.empty(64, np.int64),
        np.empty((chunks, CHUNK), np.float64),
        np.empty((chunks, CHUNK), np.int64),
        _chain(np.empty(chunks, np.int32), 0, -1),
        np.full(BUCKETS, -1, np.int32),
        np.zeros(BUCKETS, np.int32),
        np.array([0, BUCKETS, 0, chunks], np.int64),
    )


@jit
def _chain(next_C: Int32s, first: int, after: int) -> Int32s:
    """Chain the chunks from ``first`` on, the last of them to ``after``."""
    for chunk in range(first, next_C.size):
        next_C[chunk] = chunk + 1
    next_C[next_C.size - 1] = after
    return next_C


@jit(inline=True)
def _bucket(key: float) -> Any:
    """Return the bucket of a key: never lower than that of a lower key."""
    return min((np.float64(max(key, 0.0) + OFFSET).view(np.int64) >> SHIFT) - LOWEST, BUCKETS - 1)


@jit(inline=True)
def add(queue: Any, key: float, pair: int) -> None:
    """Add an entry; the queue must have room (see :func:`with_room`)."""
    bucket = _bucket(key)
    if bucket >= queue.state_4[CURRENT]:
        size = queue.state_4[HEAP]
        queue.state_4[HEAP] = push(queue.keys_H, queue.pairs_H, size, key, pair)
    else:
        _lay(queue, bucket, key, pair)


@jit(inline=True)
def _lay(queue: Any, bucket: int, key: float, pair: int) -> None:
    """Put an entry into a bucket below the heap."""
    chunk, fill = queue.heads_G[bucket], queue.fills_G[bucket]
    if chunk < 0 or fill == CHUNK:
        free = queue.state_4[FREE]
        queue.state_4[FREE] = queue.next_C[free]
        queue.state_4[FREE_CHUNKS] -= 1
        queue.next_C[free] = chunk
        queue.heads_G[bucket] = free
        chunk, fill = np.int32(free), np.int32(0)
    queue.chunk_keys_CE[chunk, fill] = key
    queue.chunk_pairs_CE[chunk, fill] = pair
    queue.fills_G[bucket] = fill + 1


@jit(inline=True)
def stays_first(queue: Any, key: float, pair: int) -> bool:
    """Tell whether the first entry would still be the first with this key.

    False also where it would be, but alone in a lower bucket: then it will come again.
    """
    if _bucket(key) < queue.state_4[CURRENT]:
        return False
    for child in range(1, min(queue.state_4[HEAP], 3)):
        if comes_first(queue.keys_H[child], queue.pairs_H[child], key, pair):
            return False
    return True


@jit(inline=True)
def lower_first(queue: Any, key: float, pair: int) -> None:
    """Give the first entry a lower key."""
    if _bucket(key) >= queue.state_4[CURRENT]:
        replace_top(queue.keys_H, queue.pairs_H, queue.state_4[HEAP], key, pair)
    else:
        drop_first(queue)
        _lay(queue, _bucket(key), key, pair)


@jit(inline=True)
def drop_first(queue: Any) -> None:
    """Remove the first entry."""
    queue.state_4[HEAP] = pop(queue.keys_H, queue.pairs_H, queue.state_4[HEAP])


@jit(inline=True)
def is_settled(queue: Any, more: int) -> Any:
    """Tell whether the first entry is in the heap, and ``more`` others have room."""
    return (
        queue.state_4[HEAP] > 0
        and queue.state_4[HEAP] + more <= queue.keys_H.size
        and queue.state_4[FREE_CHUNKS] >= more
    )


@jit
def settled(queue: Any, more: int) -> Any:
    """Return the queue with its first entry in the heap, and room for ``more`` entries.

    An empty heap (``queue.state_4[HEAP] == 0``) afterwards means an empty queue.
    """
    queue = _with_chunks(queue, more)
    while queue.state_4[HEAP] == 0 and queue.state_4[FREE_CHUNKS] < queue.next_C.size:
        queue.state_4[CURRENT] -= 1
        bucket = queue.state_4[CURRENT]
        if queue.heads_G[bucket] >= 0:
            queue = _with_heap(queue, _entries(queue, bucket))
            _raise(queue, bucket)
    return _with_heap(queue, queue.state_4[HEAP] + more)


@jit
def _entries(queue: Any, bucket: int) -> Any:
    """Return how many entries a bucket holds that is not empty."""
    entries, chunk = np.int64(queue.fills_G[bucket]), queue.next_C[queue.heads_G[bucket]]
    while chunk >= 0:
        entries += CHUNK
        chunk = queue.next_C[chunk]
    return entries


@jit
def _raise(queue: Any, bucket: int) -> None:
    """Move the entries of a bucket to the heap, free its chunks."""
    chunk, fill = queue.heads_G[bucket], queue.fills_G[bucket]
    size = queue.state_4[HEAP]
    while chunk >= 0:
        for at in range(fill):
            key, pair = queue.chunk_keys_CE[chunk, at], queue.chunk_pairs_CE[chunk, at]
            size = push(queue.keys_H, queue.pairs_H, size, key, pair)
        before = queue.next_C[chunk]
        queue.next_C[chunk] = queue.state_4[FREE]
        queue.state_4[FREE] = chunk
        queue.state_4[FREE_CHUNKS] += 1
        chunk, fill = before, np.int32(CHUNK)
    queue.heads_G[bucket], queue.fills_G[bucket] = -1, 0
    queue.state_4[HEAP] = size


@jit
def _with_chunks(queue: Any, more: int) -> Any:
    """Return the queue, its chunks grown where ``more`` of them would not be free."""
    if queue.state_4[FREE_CHUNKS] >= more:
        return queue
    old = queue.next_C.size
    chunks = 2 * old + more
    keys = np.empty((chunks, CHUNK), np.float64)
    pairs = np.empty((chunks, CHUNK), np.int64)
    following = np.empty(chunks, np.int32)
    keys[:old], pairs[:old], following[:old] = (
        queue.chunk_keys_CE, queue.chunk_pairs_CE, queue.next_C,
    )  # fmt: skip
    _chain(following, old, queue.state_4[FREE])
    queue.state_4[FREE] = old
    queue.state_4[FREE_CHUNKS] += chunks - old
    return Queue(
        queue.keys_H, queue.pairs_H, keys, pairs, following, queue.heads_G, queue.fills_G,
        queue.state_4,
    )  # fmt: skip


@jit
def _with_heap(queue: Any, entries: int) -> Any:
    """Return the queue, its heap grown where so many entries would not fit."""
    if entries <= queue.keys_H.size:
        return queue
    size = queue.state_4[HEAP]
    keys, pairs = np.empty(2 * entries, np.float64), np.empty(2 * entries, np.int64)
    keys[:size], pairs[:size] = queue.keys_H[:size], queue.pairs_H[:size]
    return Queue(
        keys, pairs, queue.chunk_keys_CE, queue.chunk_pairs_CE, queue.next_C, queue.heads_G,
        queue.fills_G, queue.state_4,
    )  # fmt: skip


@jit
def first_queue(
    partners_NK: Int32s,
    counts_NK: Int32s,
    sizes_T: Int32s,
    born_T: Floats,
    max_size: int,
    scale: float,
    popularity: float,
    size_price: float,
) -> Any:
    """Return the queue of all pairs that were kept.

    Args:
        partners_NK: Partners, -1 past the last of an item.
        counts_NK: Their counts.
        sizes_T: Items that each token stands for.
        born_T: Bags that hold each token.
        max_size: Most items of two tokens together.
        scale: See ``partners.RankedBags.pair_scale``.
        popularity: See :func:`worth`, as the next.
        size_price: See :func:`worth`.
    """
    entries = 0
    for item in range(partners_NK.shape[0]):
        for at in range(partners_NK.shape[1]):
            entries += partners_NK[item, at] >= 0
    queue = new_queue(entries + (entries >> 2) + BUCKETS * CHUNK)
    for item in range(partners_NK.shape[0]):
        for at in range(partners_NK.shape[1]):
            partner = partners_NK[item, at]
            if partner < 0:
                break
            size = sizes_T[item] + sizes_T[partner]
            if size <= max_size:
                expected = scale * born_T[item] * born_T[partner]
                key = worth(counts_NK[item, at], expected, size, popularity, size_price)
                add(queue, key, pack(item, partner))
    return queue
