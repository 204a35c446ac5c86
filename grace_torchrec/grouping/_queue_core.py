"""Numba core of the candidates still to come: buckets by key, of which the highest is a heap.

Flow: called by the merging cores.  A million candidates wait, and nearly all of those that are
looked at go back with a lower key or leave for good.  One heap of all of them misses the caches
at every step, so only the candidates of the highest bucket stand in a heap; the others lie
unsorted in theirs.  Whoever opens the next bucket looks at all of its candidates in a row and lets
only those in that still belong there.  What comes out is what one heap would give: a bucket holds
a range of keys.
Shapes: H entries in the heap, C chunks of E entries, G buckets.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit
from grace_kernels._places import U
from grace_torchrec.grouping._heap_core import comes_first, pack, pop, push, replace_top, worth

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 32  # entries of a chunk, a power of two
CHUNK_SHIFT = 5
OFFSET = 8.0  # added to a key: buckets of low keys are 1/128 wide, and wider as keys grow
SHIFT = 42  # mantissa bits that do not tell buckets apart: 1024 buckets each time a key doubles
LOWEST = 1026 << 10  # bits of OFFSET above the shift
BUCKETS = 30 << 10
HEAP, CURRENT, FREE, FREE_CHUNKS, OPENED = 0, 1, 2, 3, 4  # places in ``state_5``


class Queue(NamedTuple):
    """Entries by bucket; every function below changes it in place.

    Attributes:
        keys_H: Keys of the heap.
        pairs_H: Pairs of the heap.
        entries_E2: Entries in buckets, ``CHUNK`` to a chunk: the bits of a key, the pair beside it.
        next_C: The chunk before in the same bucket, or the next free one; -1 ends a chain.
        ends_G: The place behind the last entry of each bucket, 0 where it is empty.
        state_5: Entries of the heap, lowest bucket in the heap, first free chunk, free chunks, and
            the place behind the last entry of an opened bucket that waits.
    """

    keys_H: Floats
    pairs_H: Int64s
    entries_E2: Int64s
    next_C: Int32s
    ends_G: Int64s
    state_5: Int64s


@jit
def new_queue(entries: int) -> Any:
    """Return an empty queue with room for about so many entries."""
    chunks = entries // CHUNK + 64
    return Queue(
        np.empty(64, np.float64),
        np.empty(64, np.int64),
        np.empty((chunks * CHUNK, 2), np.int64),
        _chain(np.empty(chunks, np.int32), 0, -1),
        np.zeros(BUCKETS, np.int64),
        np.array([0, BUCKETS, 0, chunks, 0], np.int64),
    )


@jit
def _chain(next_C: Int32s, first: int, after: int) -> Int32s:
    """Chain the chunks from ``first`` on, the last of them to ``after``."""
    for chunk in range(first, next_C.size):
        next_C[chunk] = chunk + 1
    next_C[next_C.size - 1] = after
    return next_C


@jit(inline=True)
def bucket_of(key: float) -> Any:
    """Return the bucket of a key: never lower than that of a lower key."""
    return min((np.float64(max(key, 0.0) + OFFSET).view(np.int64) >> SHIFT) - LOWEST, BUCKETS - 1)


@jit(inline=True)
def add(queue: Any, key: float, pair: int) -> None:
    """Add an entry; the queue must have room (see :func:`with_room`)."""
    bucket = bucket_of(key)
    if bucket >= queue.state_5[CURRENT]:
        size = queue.state_5[HEAP]
        queue.state_5[HEAP] = push(queue.keys_H, queue.pairs_H, size, key, pair)
    else:
        _lay(queue, bucket, key, pair)


@jit(inline=True)
def _lay(queue: Any, bucket: int, key: float, pair: int) -> None:
    """Put an entry into a bucket below the heap."""
    end = queue.ends_G[U(bucket)]
    if end & (CHUNK - 1) == 0:  # empty, or its last chunk is full
        free = queue.state_5[FREE]
        queue.state_5[FREE] = queue.next_C[U(free)]
        queue.state_5[FREE_CHUNKS] -= 1
        queue.next_C[U(free)] = (end - 1) >> CHUNK_SHIFT
        end = free << CHUNK_SHIFT
    queue.entries_E2[U(end), 0] = np.float64(key).view(np.int64)
    queue.entries_E2[U(end), 1] = pair
    queue.ends_G[U(bucket)] = end + 1


@jit(inline=True)
def stays_first(queue: Any, key: float, pair: int) -> bool:
    """Tell whether the first entry would still be the first with this key.

    False also where it would be, but alone in a lower bucket: then it will come again.
    """
    if bucket_of(key) < queue.state_5[CURRENT]:
        return False
    for child in range(1, min(queue.state_5[HEAP], 3)):
        if comes_first(queue.keys_H[child], queue.pairs_H[child], key, pair):
            return False
    return True


@jit(inline=True)
def lower_first(queue: Any, key: float, pair: int) -> None:
    """Give the first entry a lower key."""
    if bucket_of(key) >= queue.state_5[CURRENT]:
        replace_top(queue.keys_H, queue.pairs_H, queue.state_5[HEAP], key, pair)
    else:
        drop_first(queue)
        _lay(queue, bucket_of(key), key, pair)


@jit(inline=True)
def drop_first(queue: Any) -> None:
    """Remove the first entry."""
    queue.state_5[HEAP] = pop(queue.keys_H, queue.pairs_H, queue.state_5[HEAP])


@jit(inline=True)
def _chunks(more: int, opened: int) -> Any:
    """Return how many chunks may be taken: full ones, and one begun in every bucket."""
    return more // CHUNK + min(more + opened, BUCKETS) + 1


@jit(inline=True)
def has_room(queue: Any, more: int) -> Any:
    """Tell whether ``more`` entries can be added, wherever they belong."""
    return queue.state_5[HEAP] + more <= queue.keys_H.size and queue.state_5[
        FREE_CHUNKS
    ] >= _chunks(more, 0)


@jit
def with_room(queue: Any, more: int, opened: int) -> Any:
    """Return the queue with room for entries, wherever they belong.

    Args:
        queue: It.
        more: New entries, and those of the heap that may leave it.
        opened: Entries of an opened bucket: the chunks that they leave serve again.
    """
    queue = _with_chunks(queue, _chunks(more, opened))
    return _with_heap(queue, queue.state_5[HEAP] + more + opened)


@jit
def open_next(queue: Any) -> Any:
    """Open the next bucket of a queue whose heap is empty; return how many entries it has.

    :func:`take_opened` hands them out one by one.  Those that still count are to be added again,
    with the keys they have by now: all that is below this bucket never enters the heap.
    """
    if queue.state_5[FREE_CHUNKS] == queue.next_C.size:
        return 0
    queue.state_5[CURRENT] -= 1
    while queue.ends_G[queue.state_5[CURRENT]] == 0:
        queue.state_5[CURRENT] -= 1
    end = queue.ends_G[queue.state_5[CURRENT]]
    queue.ends_G[queue.state_5[CURRENT]], queue.state_5[OPENED] = 0, end
    chunk = (end - 1) >> CHUNK_SHIFT
    entries, before = end - (chunk << CHUNK_SHIFT), queue.next_C[chunk]
    while before >= 0:
        entries += CHUNK
        before = queue.next_C[before]
    return entries


@jit(inline=True)
def take_opened(queue: Any) -> Any:
    """Return (key, pair) of the next entry of an opened bucket, of which some must wait."""
    place = queue.state_5[OPENED] - 1
    if place & (CHUNK - 1) == 0:  # the last of its chunk
        chunk = place >> CHUNK_SHIFT
        queue.state_5[OPENED] = np.int64(queue.next_C[U(chunk)] + 1) << CHUNK_SHIFT
        queue.next_C[U(chunk)] = queue.state_5[FREE]
        queue.state_5[FREE] = chunk
        queue.state_5[FREE_CHUNKS] += 1
    else:
        queue.state_5[OPENED] = place
    key = np.int64(queue.entries_E2[U(place), 0]).view(np.float64)
    return key, queue.entries_E2[U(place), 1]


@jit
def _with_chunks(queue: Any, more: int) -> Any:
    """Return the queue, its chunks grown where ``more`` of them would not be free."""
    if queue.state_5[FREE_CHUNKS] >= more:
        return queue
    old = queue.next_C.size
    chunks = 2 * old + more
    entries, following = np.empty((chunks * CHUNK, 2), np.int64), np.empty(chunks, np.int32)
    entries[: old * CHUNK], following[:old] = queue.entries_E2, queue.next_C
    _chain(following, old, queue.state_5[FREE])
    queue.state_5[FREE] = old
    queue.state_5[FREE_CHUNKS] += chunks - old
    return Queue(
        queue.keys_H, queue.pairs_H, entries, following, queue.ends_G, queue.state_5,
    )  # fmt: skip


@jit
def _with_heap(queue: Any, entries: int) -> Any:
    """Return the queue, its heap grown where so many entries would not fit."""
    if entries <= queue.keys_H.size:
        return queue
    size = queue.state_5[HEAP]
    keys, pairs = np.empty(2 * entries, np.float64), np.empty(2 * entries, np.int64)
    keys[:size], pairs[:size] = queue.keys_H[:size], queue.pairs_H[:size]
    return Queue(
        keys, pairs, queue.entries_E2, queue.next_C, queue.ends_G, queue.state_5,
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
    queue = new_queue(entries + (entries >> 2) + 2 * BUCKETS * CHUNK)
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
