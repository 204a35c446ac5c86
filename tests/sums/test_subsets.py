"""Subset code: the table splits every mask into the fewest stored parts; rows are ranks."""

import dataclasses
import itertools

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import subset_code

OFFSETS, MEMBERS = np.array([0, 3, 5, 9]), np.array([7, 3, 9, 0, 1, 11, 2, 5, 8])
STARTS = np.array([0, 8, 12])  # 2 ** 3 and 2 ** 2 entries before


def random_entries(seed, share=0.4):
    rng = np.random.default_rng(seed)
    sizes = np.diff(OFFSETS)
    return np.array(
        [
            start + mask
            for start, size in zip(STARTS, sizes, strict=True)
            for mask in range(1 << size)
            if mask.bit_count() > 1 and rng.random() < share
        ],
        np.int64,
    )


def fewest(mask, stored):
    """Parts of the best split by trying all."""
    if mask == 0:
        return 0
    low = mask & -mask
    options = [s for s in stored if s & low and s & ~mask == 0]
    return 1 + min([fewest(mask ^ low, stored)] + [fewest(mask ^ s, stored) for s in options])


@pytest.mark.parametrize("seed", range(10))
def test_the_parts_of_every_mask_are_stored_and_the_fewest(seed):
    entries = random_entries(seed)
    code, _, _ = subset_code(12, OFFSETS, MEMBERS, entries)
    for start, size in zip(STARTS, np.diff(OFFSETS), strict=True):
        stored = {int(e - start) for e in entries if start <= e < start + (1 << size)}
        for mask in range(1, 1 << size):
            left, parts = mask, 0
            while left:
                part = int(code.next_E[start + left])
                assert part & left == part
                assert part & (left & -left)
                assert part in stored or part.bit_count() == 1
                left ^= part
                parts += 1
            assert parts == fewest(mask, stored)


@pytest.mark.parametrize("seed", range(5))
def test_the_row_of_a_stored_entry_lists_its_items(seed):
    entries = random_entries(seed)
    code, indptr, items = subset_code(12, OFFSETS, MEMBERS, entries)
    for row, entry in enumerate(np.sort(entries)):
        cluster = int(np.searchsorted(STARTS, entry, side="right")) - 1
        members = MEMBERS[OFFSETS[cluster] : OFFSETS[cluster + 1]]
        mask = int(entry - STARTS[cluster])
        assert items[indptr[row] : indptr[row + 1]].tolist() == [
            int(m) for slot, m in enumerate(members) if mask >> slot & 1
        ]
        word = int(code.stored_W[entry // 64])
        below = word & ((1 << int(entry) % 64) - 1)
        assert int(code.ranks_W[entry // 64]) + below.bit_count() == row


def test_items_keep_their_slots_and_others_have_no_code():
    code, _, _ = subset_code(12, OFFSETS, MEMBERS, np.array([3]))
    expected = np.full(12, -1)
    for start, (first, last) in zip(STARTS, itertools.pairwise(OFFSETS), strict=True):
        for slot, item in enumerate(MEMBERS[first:last]):
            expected[item] = start * 8 + slot
    assert code.item_code_N.tolist() == expected.tolist()
    assert code.num_bytes == 4 * 12 + 28 + 8  # 28 entries share one word of marks and ranks


def test_a_cluster_of_eight_has_256_entries_and_stores_what_is_wanted():
    sums = StoredSums.from_subsets(9, np.array([0, 8]), np.arange(8), np.array([0b11, 0b11111111]))
    assert sums.code.next_E.size == 256
    assert sums.set_items_S.tolist() == [0, 1, *range(8)]


def test_nothing_stored_is_a_code_too():
    sums = StoredSums.from_subsets(3, np.zeros(1), np.zeros(0), np.zeros(0))
    assert sums.num_sums == sums.metadata_bytes == 0


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([3, 3], "twice"),
        ([28], "no cluster"),
        ([-1], "no cluster"),
        ([4], "fewer than two"),
        ([8], "fewer than two"),
    ],
)
def test_broken_subsets_are_refused(entries, message):
    with pytest.raises(GraceError, match=message):
        subset_code(12, OFFSETS, MEMBERS, np.array(entries))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item_code_N": np.zeros(3, np.int32)}, "expected 12 items"),
        ({"item_code_N": np.full(12, 99 * 8, np.int32)}, "past the end"),
        ({"stored_W": np.zeros(2, np.uint64)}, "words of marks"),
        ({"stored_W": np.zeros(1, np.uint64)}, "marks 0 rows, there are 2"),
        ({"ranks_W": np.ones(1, np.int32)}, "rows, there are 2"),
        ({"next_E": np.zeros(28, np.uint8)}, "splits a mask"),
        ({"next_E": np.full(28, 7, np.uint8)}, "splits a mask"),
    ],
)
def test_codes_that_would_read_elsewhere_are_refused(change, message):
    sums = StoredSums.from_subsets(12, OFFSETS, MEMBERS, np.array([3, 11]))
    broken = dataclasses.replace(sums.code, **change)
    with pytest.raises(GraceError, match=message):
        dataclasses.replace(sums, code=broken)
