"""Rewriting with a subset code: numba equals the meaning row by row, and the law holds."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace_kernels.cpu import BadId
from grace_kernels.cpu_codes import rewrite_subsets
from grace_kernels.packed_codes import ITEMS_A_WORD, rank_in_word
from grace_kernels.reference import BAD_ID_POLICIES, DROP, RAISE, ZERO_ROW
from grace_kernels.reference_subsets import rewrite_subsets_reference, stored_row_reference
from grace_kernels.subset_tables import pack_subsets
from grace_torchrec.sums.stored_sums import StoredSums

N = 24
OFFSETS = np.array([0, 2, 10, 14, 17])
MEMBERS = np.random.default_rng(0).permutation(N)[:17]


def random_sums(seed, share=0.3):
    """Stored sums with a random share of all subsets of two or more."""
    rng = np.random.default_rng(seed)
    sizes = np.diff(OFFSETS)
    starts = np.cumsum(1 << sizes) - (1 << sizes)
    entries = [
        start + mask
        for start, size in zip(starts, sizes, strict=True)
        for mask in range(1 << size)
        if mask.bit_count() > 1 and rng.random() < share
    ]
    return StoredSums.from_subsets(N, OFFSETS, MEMBERS, np.array(entries, np.int64))


SUMS = random_sums(1)
BAGS = st.lists(st.lists(st.integers(0, N - 1), max_size=24), max_size=5)
RAW = st.lists(st.lists(st.integers(-1, N + 2), max_size=14), max_size=5)


def csr(bags):
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.int64)
    return np.array([i for bag in bags for i in bag], np.int64), offsets


def arrays(sums):
    code = sums.code
    return code.item_code_N, code.next_E, code.stored_W, code.ranks_W


def both(bags, weights=None, sums=SUMS, policy=RAISE, ids_type=np.int64):
    """Rewrite with numba and with the reference; return what numba gave, after comparing."""
    ids, offsets = csr(bags)
    asked, rows, ends, row_weights = rewrite_subsets(
        ids.astype(ids_type), offsets, weights, *arrays(sums), policy
    )
    code, next_part, stored, ranks = arrays(sums)
    expected = rewrite_subsets_reference(
        torch.from_numpy(ids), torch.from_numpy(offsets),
        None if weights is None else torch.from_numpy(weights), torch.from_numpy(code),
        torch.from_numpy(next_part), torch.from_numpy(stored.view(np.int64)),
        torch.from_numpy(ranks), policy,
    )  # fmt: skip
    assert asked == expected[0]
    np.testing.assert_array_equal(rows, expected[1].numpy())
    np.testing.assert_array_equal(ends, expected[2].numpy())
    if weights is not None:
        np.testing.assert_array_equal(row_weights, expected[3].numpy())
    return rows, ends, row_weights


def behind(row, sums=SUMS, num_items=N):
    """The items that a row stands for."""
    if row < num_items:
        return [row]
    first, last = sums.set_indptr_R1[row - num_items :][:2]
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
        wanted = Counter(
            zip(
                ids[offsets[at] : offsets[at + 1]].tolist(),
                bits[offsets[at] : offsets[at + 1]].tolist(),
                strict=True,
            )
        )
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


@given(st.lists(st.integers(0, N - 1), max_size=8, unique=True))
def test_no_bag_reads_more_rows_than_the_best_split_of_each_cluster(bag):
    rows, _, _ = both([bag])
    sets = [frozenset(behind(row)) for row in range(N, N + SUMS.num_sums)]

    def fewest(left):
        if not left:
            return 0
        first = min(left)
        options = [s for s in sets if first in s and s <= left]
        return 1 + min([fewest(left - s) for s in options] + [fewest(left - {first})])

    assert rows.size == fewest(frozenset(bag))


def test_bags_in_turn_keep_the_places_of_their_own_items(subsets_of):
    """A bag is split when the next one has been collected, whose clusters use the same slots."""
    rng = np.random.default_rng(0)
    sums = subsets_of(rng, 900, stored=0.1)
    clustered = np.flatnonzero(sums.code.item_code_N >= 0)
    clustered = clustered[np.argsort(sums.code.item_code_N[clustered])]
    firsts = [rng.permutation(clustered.size - 40)[:4] for _ in range(60)]
    bags = [clustered[first[:, None] + np.arange(9)].ravel().tolist() for first in firsts]
    rows, ends, _ = both(bags, sums=sums, ids_type=np.int32)
    behind_bags = [
        sorted(item for row in rows[ends[at] : ends[at + 1]] for item in behind(row, sums, 900))
        for at in range(len(bags))
    ]
    assert behind_bags == [sorted(bag) for bag in bags]
    assert (rows >= 900).any()


@pytest.mark.parametrize("bad", [-2, N, 2**40])
def test_a_bad_id_raises_with_its_position_and_padding_does_not(bad):
    with pytest.raises(BadId) as error:
        both([[0, -1], [3, bad, 1]])
    assert (error.value.position, error.value.id) == (3, bad)
    with pytest.raises(ValueError, match="outside"):
        rewrite_subsets_reference(
            torch.tensor([bad]), torch.tensor([0, 1]), None, torch.from_numpy(SUMS.code.item_code_N),
            torch.from_numpy(SUMS.code.next_E), torch.from_numpy(SUMS.code.stored_W.view(np.int64)),
            torch.from_numpy(SUMS.code.ranks_W), BAD_ID_POLICIES["raise"],
        )  # fmt: skip


def test_a_bad_id_that_reads_row_0_joins_no_sum():
    code = SUMS.code.item_code_N
    mates = np.flatnonzero((code >> 3 == code[MEMBERS[0]] >> 3) & (code >= 0))
    rows, _, _ = both([[int(i) for i in mates] + [N + 5]], policy=ZERO_ROW)
    assert rows[0] == 0


def test_copies_past_64_of_an_item_are_read_by_themselves():
    first = MEMBERS[2:10].tolist()
    rows, _, _ = both([first * 70])
    assert Counter(i for row in rows.tolist() for i in behind(row)) == Counter(first * 70)
    assert (rows < N).sum() >= 6 * len(first)


@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_long_bags_of_many_weights(ids_type):
    rng = np.random.default_rng(3)
    bags = [rng.integers(0, N, size).tolist() for size in (0, 1, 500, 70_000, 3)]
    weights = rng.integers(0, 40, sum(map(len, bags))).astype(np.float32)
    both([bags[0], bags[2]], weights[: len(bags[0]) + len(bags[2])], ids_type=ids_type)
    ids, offsets = csr(bags)
    asked, rows, _, _ = rewrite_subsets(
        ids.astype(ids_type), offsets, weights, *arrays(SUMS), RAISE
    )
    assert asked == ids.size >= rows.size


def test_offsets_may_start_above_0():
    ids = np.arange(N, dtype=np.int64)
    part = rewrite_subsets(ids, np.array([4, 9, 20]), None, *arrays(SUMS), RAISE)
    whole = rewrite_subsets(ids[4:20], np.array([0, 5, 16]), None, *arrays(SUMS), RAISE)
    assert part[0] == whole[0] == 16
    np.testing.assert_array_equal(part[1], whole[1])
    np.testing.assert_array_equal(part[2], whole[2])


@pytest.mark.parametrize("entries", [640, 636, 4])
def test_the_row_of_an_entry_is_its_rank_also_past_bit_63(entries):
    rng = np.random.default_rng(2)
    marks = rng.random(-(-entries // 64) * 64) < 0.5
    marks[entries:] = False
    stored = np.packbits(marks, bitorder="little").view(np.uint64)
    ones = marks.reshape(-1, 64).sum(axis=1)
    ranks = (np.cumsum(ones) - ones).astype(np.int32)
    tables = pack_subsets(np.zeros(entries, np.uint8), stored)
    assert tables.num_stored == marks.sum()
    for entry in np.flatnonzero(marks):
        word = tables.marks_W[entry // ITEMS_A_WORD]
        assert rank_in_word(word, np.int64(entry)) == marks[:entry].sum()
        assert (
            stored_row_reference(
                int(entry), torch.from_numpy(stored.view(np.int64)), torch.from_numpy(ranks)
            )
            == marks[:entry].sum()
        )


@pytest.mark.soak
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_long_runs(weighted, ids_type):
    """10,000 bags and more of each path, of codes that store few, many, and all subsets."""
    rng = np.random.default_rng(int(weighted))
    for seed in range(35):
        sums = random_sums(seed, share=(0.0, 0.1, 0.4, 1.0)[seed % 4])
        bags = [rng.integers(-1, N, rng.integers(0, 40)).tolist() for _ in range(300)]
        values = np.array([0.5, -0.0, 0.0, 2.0], np.float32)
        weights = rng.choice(values, sum(map(len, bags))) if weighted else None
        both(bags, weights, sums, ids_type=ids_type)
