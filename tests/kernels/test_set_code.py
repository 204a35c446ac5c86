"""Rewriting with a set code: numba equals the meaning row by row, and the law holds."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace_kernels.cpu import BadId
from grace_kernels.cpu_codes import rewrite_sets
from grace_kernels.reference import DROP, RAISE, ZERO_ROW
from grace_kernels.reference_sets import rewrite_sets_reference
from grace_torchrec.sums.stored_sums import StoredSums

N = 14


def random_sums(seed, num_sets=30, num_items=N):
    """Overlapping sets of 2..6 items, all different."""
    rng = np.random.default_rng(seed)
    sets = {
        tuple(sorted(rng.permutation(num_items)[: rng.integers(2, 7)])) for _ in range(num_sets)
    }
    ordered = sorted(sets, key=lambda items: rng.random())
    indptr = np.cumsum([0, *map(len, ordered)])
    return StoredSums.from_sets(num_items, indptr, np.array([i for s in ordered for i in s]))


SUMS = random_sums(1)
BAGS = st.lists(st.lists(st.integers(0, N - 1), max_size=16), max_size=5)
RAW = st.lists(st.lists(st.integers(-1, N + 2), max_size=14), max_size=5)


def csr(bags):
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.int64)
    return np.array([i for bag in bags for i in bag], np.int64), offsets


def arrays(sums):
    code = sums.code
    return code.home_indptr_N1, code.set_row_R, code.others_indptr_R1, code.others_S


def both(bags, weights=None, sums=SUMS, policy=RAISE, ids_type=np.int64):
    """Rewrite with numba and with the reference; return what numba gave, after comparing."""
    ids, offsets = csr(bags)
    asked, rows, ends, row_weights = rewrite_sets(
        ids.astype(ids_type), offsets, weights, *arrays(sums), policy
    )
    expected = rewrite_sets_reference(
        torch.from_numpy(ids), torch.from_numpy(offsets),
        None if weights is None else torch.from_numpy(weights),
        *map(torch.from_numpy, arrays(sums)), policy,
    )  # fmt: skip
    assert asked == expected[0]
    np.testing.assert_array_equal(rows, expected[1].numpy())
    np.testing.assert_array_equal(ends, expected[2].numpy())
    if weights is not None:
        np.testing.assert_array_equal(row_weights, expected[3].numpy())
    return rows, ends, row_weights


def behind(row, sums=SUMS):
    """The items that a row stands for."""
    items = sums.num_items
    if row < items:
        return [row]
    first, last = sums.set_indptr_R1[row - items : row - items + 2]
    return sums.set_items_S[first:last].tolist()


@given(BAGS)
def test_the_items_behind_a_rewritten_bag_are_the_bag(bags):
    rows, ends, _ = both(bags)
    for at, bag in enumerate(bags):
        got = Counter(i for row in rows[ends[at] : ends[at + 1]].tolist() for i in behind(row))
        assert got == Counter(bag)


@given(BAGS, st.integers(0, 2**32 - 1))
def test_items_of_equal_weight_only_share_a_row(bags, seed):
    ids, offsets = csr(bags)
    values = np.array([0.5, -0.0, 0.0, 2.0], np.float32)
    weights = np.random.default_rng(seed).choice(values, ids.size).astype(np.float32)
    rows, ends, got = both(bags, weights)
    bits = weights.view(np.int32)
    for at in range(len(bags)):
        bag = slice(offsets[at], offsets[at + 1])
        wanted = Counter(zip(ids[bag].tolist(), bits[bag].tolist(), strict=True))
        part = slice(ends[at], ends[at + 1])
        pairs = zip(rows[part].tolist(), got.view(np.int32)[part].tolist(), strict=True)
        assert Counter((i, bit) for row, bit in pairs for i in behind(row)) == wanted


@given(RAW, st.sampled_from([DROP, ZERO_ROW]), st.booleans())
def test_bad_ids_follow_the_policy(bags, policy, weighted):
    ids, _ = csr(bags)
    weights = np.arange(ids.size, dtype=np.float32) % 2 if weighted else None
    rows, ends, _ = both(bags, weights, policy=policy)
    for at, bag in enumerate(bags):
        got = Counter(i for row in rows[ends[at] : ends[at + 1]].tolist() for i in behind(row))
        bad = sum(i >= N for i in bag) * (policy == ZERO_ROW)
        assert got == Counter(i for i in bag if 0 <= i < N) + Counter({0: bad})


@given(BAGS)
def test_no_set_is_left_that_the_rest_of_a_bag_still_holds(bags):
    rows, ends, _ = both(bags)
    for at in range(len(bags)):
        plain = Counter(row for row in rows[ends[at] : ends[at + 1]].tolist() if row < N)
        for row in range(N, N + SUMS.num_sums):
            assert not Counter(behind(row)) <= plain


def test_of_sets_that_save_the_same_the_one_that_nobody_disputes_comes_first():
    path = StoredSums.from_sets(4, np.array([0, 2, 4, 6]), np.array([1, 2, 0, 1, 2, 3]))
    rows, _, _ = both([[0, 1, 2, 3]], sums=path)
    assert sorted(rows) == [5, 6]  # {0,1} and {2,3}; taking {1,2} first would read three rows


def test_each_copy_is_used_once_and_a_set_as_often_as_copies_are_left():
    pair = StoredSums.from_sets(3, np.array([0, 2]), np.array([0, 2]))
    rows, _, _ = both([[2, 0, 2, 0, 0, 1]], sums=pair)
    assert sorted(rows) == [0, 1, 3, 3]


@pytest.mark.parametrize("bad", [-2, N, 2**40])
def test_a_bad_id_raises_with_its_position_and_padding_does_not(bad):
    with pytest.raises(BadId) as error:
        both([[0, -1], [3, bad, 1]])
    assert (error.value.position, error.value.id) == (3, bad)
    with pytest.raises(ValueError, match="outside"):
        rewrite_sets_reference(
            torch.tensor([bad]), torch.tensor([0, 1]), None,
            *map(torch.from_numpy, arrays(SUMS)), RAISE,
        )  # fmt: skip


def test_a_bad_id_that_reads_row_0_joins_no_sum():
    pair = StoredSums.from_sets(3, np.array([0, 2]), np.array([0, 2]))
    rows, _, _ = both([[2, 9]], sums=pair, policy=ZERO_ROW)
    assert rows.tolist() == [0, 2]


@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_more_sets_than_the_first_room_for_them(ids_type):
    many = random_sums(5, num_sets=4000, num_items=16)
    assert many.num_sums > 1024
    rng = np.random.default_rng(0)
    bags = [rng.integers(0, 16, 60).tolist(), [], [3], list(range(16))]
    both(bags, sums=many, ids_type=ids_type)
    both(bags, (np.arange(77) % 3).astype(np.float32), sums=many, ids_type=ids_type)


def test_counters_are_clean_between_bags():
    bag = [0, 1, 2, 3, 4, 5, 6, 7]
    rows, ends, _ = both([bag, bag, [], bag])
    parts = [rows[a:b].tolist() for a, b in itertools.pairwise(ends)]
    assert parts[0] == parts[1] == parts[3] != parts[2] == []


def test_offsets_may_start_above_0():
    ids = np.arange(N, dtype=np.int64)
    part = rewrite_sets(ids, np.array([4, 9, 12]), None, *arrays(SUMS), RAISE)
    whole = rewrite_sets(ids[4:12], np.array([0, 5, 8]), None, *arrays(SUMS), RAISE)
    assert part[0] == whole[0] == 8
    np.testing.assert_array_equal(part[1], whole[1])
    np.testing.assert_array_equal(part[2], whole[2])
