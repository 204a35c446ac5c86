"""What merging stands on: lists and bits that agree with sets, a heap that agrees with sorting."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.grouping import _beside_core as beside
from grace_torchrec.grouping import _heap_core as heaps
from grace_torchrec.grouping import _queue_core as queues
from grace_torchrec.grouping import _token_core as tokens

SETS = st.sets(st.integers(0, 200), max_size=60)


def listed(values):
    return np.array(sorted(values), np.int32)


@given(SETS, SETS)
def test_lists_and_bits_are_sets(one, other):
    short, long = sorted((one, other), key=len)
    out = np.empty(len(one) + len(other) + 1, np.int32)
    found = tokens.intersect(listed(short), listed(long), out)
    assert out[:found].tolist() == sorted(one & other)
    size = tokens.unite(listed(one), listed(other), out)
    assert out[:size].tolist() == sorted(one | other)
    bits = np.zeros((3, 4), np.uint64)
    tokens.set_bits(listed(one), bits[1])
    tokens.set_bits(listed(other), bits[2])
    assert tokens.count_shared(bits, 1, 2) == len(one & other)
    assert tokens.count_listed(listed(other), 0, len(other), bits, 1) == len(one & other)
    both = np.concatenate([listed(one), listed(other)])
    assert tokens.count_walked(both, 0, len(one), len(one), both.size) == len(one & other)
    tokens.clear_bits(listed(one & other), bits[1])
    assert tokens.count_listed(np.arange(201, dtype=np.int32), 0, 201, bits, 1) == len(one - other)
    assert not bits[0].any()
    kept = listed(one)
    left = tokens.remove(kept, listed(one & other))
    assert kept[:left].tolist() == sorted(one - other)


@pytest.mark.parametrize("seed", range(20))
def test_a_short_list_is_looked_up_in_a_long_one(seed):
    rng = np.random.default_rng(seed)
    long = set(rng.integers(0, 5000, 2000).tolist())
    short = set(rng.integers(-5, 5005, 20).tolist())
    out = np.empty(len(short) + 1, np.int32)
    found = tokens.intersect(listed(short), listed(long), out)
    assert out[:found].tolist() == sorted(short & long)


KEYS = st.one_of(
    st.integers(-40, 40).map(float), st.floats(-1e3, 1e6), st.floats(0, 9), st.just(1e300)
)
ENTRIES = st.lists(st.tuples(KEYS, st.integers(0, 50)), max_size=80)


def taken(queue):
    """Entries of an opened bucket, one by one."""
    while queue.state_5[queues.OPENED]:
        yield queues.take_opened(queue)


def with_first(queue, more):
    """The queue with its first entry in the heap, and room for ``more``."""
    while queue.state_5[queues.HEAP] == 0:
        opened = queues.open_next(queue)
        if opened == 0:
            break
        queue = queues.with_room(queue, 0, opened)
        for key, pair in taken(queue):
            queues.add(queue, key, pair)
    return queues.with_room(queue, more, 0)


def entries_out(queue):
    """Empty a queue; return (-key, pair) as they leave."""
    left = []
    while True:
        queue = with_first(queue, 1)
        if queue.state_5[queues.HEAP] == 0:
            return left
        left.append((-float(queue.keys_H[0]), int(queue.pairs_H[0])))
        queues.drop_first(queue)


@given(ENTRIES, st.integers(0, 9))
def test_entries_leave_by_falling_key_then_rising_pair_whatever_the_order_of_their_coming(
    entries, seed
):
    queue = queues.new_queue(0)
    for at in np.random.default_rng(seed).permutation(len(entries)):
        queue = with_first(queue, 1)  # buckets sink into the heap while others still come
        queues.add(queue, *entries[at])
    assert entries_out(queue) == sorted((-key, pair) for key, pair in entries)


@given(ENTRIES.filter(bool), st.lists(st.floats(0, 50), max_size=20), st.integers(0, 50))
def test_an_entry_that_gets_a_lower_key_waits_its_turn(entries, falls, pair):
    queue = queues.new_queue(0)
    waiting = [(-key, pair) for key, pair in entries]
    heapq.heapify(waiting)
    queue = with_first(queue, len(entries))
    for key, one in entries:
        queues.add(queue, key, one)
    for fall in falls:
        queue = with_first(queue, 2)
        key = float(queue.keys_H[0]) - fall
        lower = (-key, int(queue.pairs_H[0]))
        stays = queues.stays_first(queue, *(-lower[0], lower[1]))
        heapq.heapreplace(waiting, lower)
        assert not stays or waiting[0] == lower  # the other way round it comes once more
        queues.lower_first(queue, *(-lower[0], lower[1]))
        queues.add(queue, -waiting[0][0], pair)
        heapq.heappush(waiting, (waiting[0][0], pair))
    assert entries_out(queue) == sorted(waiting)


@given(ENTRIES.filter(bool))
def test_a_bucket_is_opened_whole_and_only_when_those_above_are_empty(entries):
    queue = queues.with_room(queues.new_queue(0), len(entries), 0)
    for key, pair in entries:
        queues.add(queue, key, pair)
    waiting = sorted(entries)
    while waiting:
        opened = queues.open_next(queue)
        first = queues.bucket_of(waiting[-1][0])
        bucket = [entry for entry in waiting if queues.bucket_of(entry[0]) == first]
        assert opened == len(bucket)
        assert sorted(taken(queue)) == bucket
        waiting = waiting[: len(waiting) - len(bucket)]
        assert queue.state_5[queues.HEAP] == 0
    assert queues.open_next(queue) == 0


def test_a_bucket_of_equal_keys_is_put_back_into_the_chunks_that_it_left():
    entries = 100_000
    queue = queues.with_room(queues.new_queue(0), entries, 0)
    chunks = queue.next_C.size
    assert chunks * queues.CHUNK < 16 * entries
    for pair in range(entries):
        queues.add(queue, 2.0, pair)
    queue = queues.with_room(queue, 0, queues.open_next(queue))
    for _, pair in taken(queue):
        queues.add(queue, 1.0, pair)
    assert queue.next_C.size == chunks
    assert len(entries_out(queue)) == entries


def test_a_queue_grows_past_its_first_room():
    rng = np.random.default_rng(0)
    entries = [(float(key), pair) for pair, key in enumerate(rng.integers(0, 3, 5000))]
    queue = queues.new_queue(0)
    for key, pair in entries:
        queue = queue if queues.has_room(queue, 1) else queues.with_room(queue, 1, 0)
        queues.add(queue, key, pair)
    assert entries_out(queue) == sorted((-key, pair) for key, pair in entries)


@given(st.lists(KEYS, min_size=2, max_size=2).map(sorted))
def test_a_bucket_is_never_lower_than_that_of_a_lower_key(keys):
    low, high = map(queues.bucket_of, keys)
    assert 0 <= low <= high < queues.BUCKETS


def test_a_pair_is_the_same_in_both_orders():
    assert heaps.pack(3, 2**31 - 1) == heaps.pack(2**31 - 1, 3)
    packed = heaps.pack(3, 7)
    assert (packed >> heaps.HALF, packed & heaps.LOWER_HALF) == (7, 3)


@pytest.mark.parametrize("num_tokens", [9, 900])  # many tokens: touched ones are listed, not swept
@pytest.mark.parametrize("both", [True, False])
def test_a_new_token_takes_the_place_of_two_and_sees_what_stands_beside_it(num_tokens, both):
    rng = np.random.default_rng(num_tokens)
    held = [set(rng.permutation(9)[: rng.integers(3, 8)].tolist()) for _ in range(40)]
    one, other, new = 2, 5, num_tokens
    chosen = [bag for bag in range(40) if ((one in held[bag]) + (other in held[bag])) >= 1 + both]
    offsets = np.cumsum([0, *map(len, held)])
    stored = np.array([token for bag in held for token in rng.permutation(list(bag))], np.int32)
    ends = offsets[1:].copy()
    counts, touched = np.zeros(new + 1, np.int32), np.empty(new + 2, np.int32)
    found = beside.replace(
        offsets, stored, ends, np.array(chosen, np.int32), one, other, new, counts, touched
    )
    assert (sum(map(len, held)) > new) == (num_tokens == 9)
    for bag in range(40):
        wanted = held[bag] - {one, other} | {new} if bag in chosen else held[bag]
        assert sorted(stored[offsets[bag] : ends[bag]].tolist()) == sorted(wanted)
    expected = [sum(t in held[b] for b in chosen) for t in range(9)]
    expected[one] = expected[other] = 0
    assert counts[:9].tolist() == expected
    assert {t for t in touched[:found].tolist() if counts[t]} == set(np.flatnonzero(counts))

    bits = np.zeros((10, 1), np.uint64)
    for token in range(9):
        tokens.set_bits(listed(b for b in range(40) if token in held[b]), bits[token])
    tokens.set_bits(listed(chosen), bits[9])
    starts, ends, sizes = np.zeros(10, np.int64), np.full(10, 40), np.ones(10, np.int32)
    sizes[[one, other]] = 0
    sizes[4] = 3
    counted, seen = np.zeros(10, np.int32), np.empty(11, np.int32)
    num = beside.count_beside(9, bits, starts, ends, sizes, 2, 3, counted, seen)
    kept = {t: c for t, c in enumerate(expected) if c >= 3 and t != 4}
    assert {int(t): int(counted[t]) for t in seen[:num]} == kept
