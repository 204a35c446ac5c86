"""What merging stands on: lists and bits that agree with sets, a heap that agrees with sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.grouping import _beside_core as beside
from grace_torchrec.grouping import _heap_core as heaps
from grace_torchrec.grouping import _queue_core as queue
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
    bits, other_bits = np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    tokens.set_bits(listed(one), bits)
    tokens.set_bits(listed(other), other_bits)
    assert tokens.count_shared(bits, other_bits) == len(one & other)
    assert tokens.count_listed(listed(other), bits) == len(one & other)
    tokens.clear_bits(listed(one & other), bits)
    assert tokens.count_listed(np.arange(201, dtype=np.int32), bits) == len(one - other)
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


def emptied(keys, pairs, size):
    """What leaves a heap, in order."""
    left = []
    while size:
        left.append((-keys[0], int(pairs[0])))
        size = heaps.pop(keys, pairs, size)
    return left


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=80), st.integers(0, 9))
def test_entries_leave_by_falling_key_then_rising_pair_whatever_the_order_of_their_coming(
    entries, seed
):
    room = len(entries)
    keys, pairs, size = np.empty(room + 1), np.empty(room + 1, np.int64), 0
    for at in np.random.default_rng(seed).permutation(room):
        size = heaps.push(keys, pairs, size, float(entries[at][0]), entries[at][1])
    expected = sorted((-float(key), pair) for key, pair in entries)
    assert emptied(keys, pairs, size) == expected
    keys[:room], pairs[:room] = np.array(entries, np.float64).reshape(room, 2).T
    heaps.make_heap(keys, pairs, room)
    assert emptied(keys, pairs, room) == expected


def test_replacing_the_first_entry_keeps_the_order():
    keys, pairs, size = np.empty(8), np.empty(8, np.int64), 0
    for key in (5.0, 3.0, 4.0, 1.0):
        size = heaps.push(keys, pairs, size, key, int(key))
    heaps.replace_top(keys, pairs, size, 2.0, 2)
    left = []
    while size:
        left.append(keys[0])
        size = heaps.pop(keys, pairs, size)
    assert left == [4.0, 3.0, 2.0, 1.0]


def taken_through_floors(counts_NK, partners_NK, late):
    """Merge nothing, only take candidates out; each taken brings one of ``late``, as merges do."""
    num_items = len(counts_NK)
    sizes, born = np.ones(num_items, np.int32), np.zeros(num_items)
    rule = (8, 0.0, 0.0, 0.0)
    first = (np.array(partners_NK, np.int32), np.array(counts_NK, np.int32), sizes, born, rule)
    keys, pairs = np.empty(1), np.empty(1, np.int64)
    heap, waiting, floor = 0, 0, np.inf
    highest = queue.highest_key(*first)
    late, taken = list(late), []
    while True:
        if heap == 0:
            if waiting == 0 and highest == -np.inf:
                return taken
            keys, pairs, heap, waiting, floor, highest = queue.lower_floor(
                keys, pairs, waiting, floor, highest, *first
            )
            assert heap > 0
            continue
        key, pair = keys[0], int(pairs[0])
        if key > 1 and pair % 3 == 0:  # recounted, and found to be less; 3 does not divide it then
            heap, waiting = queue.put_back(keys, pairs, heap, waiting, floor, key // 2, pair + 1)
            continue
        heap = heaps.pop(keys, pairs, heap)
        taken.append((key, pair))
        if late:
            keys, pairs = queue.with_room(keys, pairs, heap, waiting, 1)
            share, other = late.pop()
            add = (np.floor(share * key), heaps.pack(other, other + 1000))
            heap, waiting = queue.add(keys, pairs, heap, waiting, floor, *add)


def taken_from_a_list(counts_NK, partners_NK, late):
    """The same with one list that is searched whole every time."""
    rows = zip(counts_NK, partners_NK, strict=True)
    left = [
        (float(count), heaps.pack(item, partner))
        for item, (counts, partners) in enumerate(rows)
        for count, partner in zip(counts, partners, strict=True)
        if partner >= 0
    ]
    late, taken = list(late), []
    while left:
        best = min(left, key=lambda entry: (-entry[0], entry[1]))
        left.remove(best)
        key, pair = best
        if key > 1 and pair % 3 == 0:
            left.append((key // 2, pair + 1))
            continue
        taken.append(best)
        if late:
            share, other = late.pop()
            left.append((np.floor(share * key), heaps.pack(other, other + 1000)))
    return taken


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), max_size=30),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 200)), max_size=60),
)
def test_the_greatest_of_all_candidates_is_taken_though_most_of_them_wait(counts, late):
    partners = [[item + 31, item + 62, -1][:3] for item in range(len(counts))]
    counts = [[a, b, 0] for a, b, _ in counts]
    if counts:
        padded = counts + [[0, 0, 0]] * 92
        partners = partners + [[-1, -1, -1]] * (len(padded) - len(partners))
        assert taken_through_floors(padded, partners, late) == taken_from_a_list(
            padded, partners, late
        )


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

    bits = np.zeros((9, 1), np.uint64)
    for token in range(9):
        tokens.set_bits(listed(b for b in range(40) if token in held[b]), bits[token])
    union = np.zeros(1, np.uint64)
    tokens.set_bits(listed(chosen), union)
    lengths, sizes = np.full(9, 40), np.ones(9, np.int32)
    sizes[[one, other]] = 0
    sizes[4] = 3
    counted, seen = np.zeros(9, np.int32), np.empty(10, np.int32)
    num = beside.count_beside(union, bits, lengths, sizes, 2, 3, counted, seen)
    kept = {t: c for t, c in enumerate(expected) if c >= 3 and t != 4}
    assert {int(t): int(counted[t]) for t in seen[:num]} == kept
