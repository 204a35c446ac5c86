"""What merging stands on: lists and bits that agree with sets, a heap that agrees with sorting."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.grouping import _beside_core as beside
from grace_torchrec.grouping import _heap_core as heaps
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


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=80), st.integers(0, 9))
def test_entries_leave_by_falling_key_then_rising_pair_whatever_the_order_of_their_coming(
    entries, seed
):
    keys, pairs, size = np.empty(1), np.empty(1, np.int64), 0
    for at in np.random.default_rng(seed).permutation(len(entries)):
        keys, pairs = heaps.with_room(keys, pairs, size, 1)
        size = heaps.push(keys, pairs, size, float(entries[at][0]), entries[at][1])
    left = []
    while size:
        left.append((-keys[0], pairs[0]))
        size = heaps.pop(keys, pairs, size)
    expected = [(-float(key), pair) for key, pair in entries]
    heapq.heapify(expected)
    assert left == [heapq.heappop(expected) for _ in range(len(entries))]


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
