"""Rewriting in Triton: the multiset behind the rows is the bag, and the rows are the expected ones."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from grace_kernels.clusters import rewrite_clusters
from grace_kernels.pieces import is_narrow, piece_ids, raise_bad_ids
from grace_kernels.reference import DROP, RAISE, ZERO_ROW, rewrite_clusters_reference
from grace_torchrec.sums.stored_sums import StoredSums

NUM_ITEMS = 40
SUMS = StoredSums.from_clusters(
    NUM_ITEMS, np.array([0, 2, 10, 13, 18, 25, 33]), np.random.default_rng(5).permutation(40)[:33]
)
CODE = torch.from_numpy(SUMS.code.item_code_N)
WIDE = 1 << 27  # as many sums do not fit 32-bit keys
NASTY = np.array([1.0, 0.5, -0.0, 0.0, np.nan, -np.nan], np.float32)
FULL = np.flatnonzero(SUMS.code.item_code_N >> 3 == SUMS.code.item_code_N.max() >> 3)


def random_bags(kind: str, seed: int) -> list[np.ndarray]:
    """Bags of 0 to 40 ids: a piece of 32 is too short for some."""
    random = np.random.default_rng(seed)
    lengths = [0, 1, 40, 32, 9]
    if kind == "empty":
        return [np.zeros(0, np.int64)] * 3
    if kind == "distinct":
        return [random.permutation(NUM_ITEMS)[:length] for length in lengths]
    if kind == "repeats":
        return [random.choice(FULL[:3], length) for length in lengths]
    if kind == "full clusters":
        return [random.permutation(np.tile(FULL, 5))[:length] for length in lengths]
    bags = [random.integers(0, NUM_ITEMS, length) for length in lengths]
    return [np.sort(bag) for bag in bags] if kind == "sorted" else bags


def flat(bags, dtype=torch.int64):
    offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])])
    ids = np.concatenate([*bags, np.zeros(0, np.int64)]).astype(np.int64)
    return torch.from_numpy(ids).to(dtype), torch.from_numpy(offsets).long()


def bits_of(weights):
    return weights.view(torch.int32).tolist()


def expected_rows(ids, weights, piece):
    """Count (row, weight bits) of one bag: per piece the reference of the distinct ids, and the
    plain row of every further copy."""
    want: Counter[tuple[int, int]] = Counter()
    ones = torch.ones(len(ids)) if weights is None else weights
    for first in range(0, len(ids), piece):
        seen = set()
        keep = []
        pairs = list(zip(ids.tolist(), bits_of(ones), strict=True))[first : first + piece]
        for place, pair in enumerate(pairs):
            if pair in seen:
                want[pair] += 1
            else:
                seen.add(pair)
                keep.append(first + place)
        rows, _, row_weights = rewrite_clusters_reference(
            ids[keep], torch.tensor([0, len(keep)]), ones[keep], CODE
        )
        want.update(zip(rows.tolist(), bits_of(row_weights), strict=True))
    return want


def items_behind(rows_and_weights):
    """Count (item, weight bits) behind rows."""
    behind: Counter[tuple[int, int]] = Counter()
    for (row, bits), count in rows_and_weights.items():
        stored = row - NUM_ITEMS
        first, last = SUMS.set_indptr_R1[stored : stored + 2] if stored >= 0 else (0, 0)
        members = SUMS.set_items_S[first:last].tolist() if stored >= 0 else [row]
        for item in members:
            behind[item, bits] += count
    return behind


def rewritten(ids, offsets, weights, bad_ids, *, num_sums=SUMS.num_sums, policy=RAISE, piece=32):
    return rewrite_clusters(
        ids, offsets, weights, CODE, num_rows=NUM_ITEMS, num_sums=num_sums, policy=policy,
        bad_ids=bad_ids, piece=piece,
    )  # fmt: skip


def check_law_and_rows(ids, offsets, weights, bags, piece):
    """Every bag: rows as expected, the law, the tail, the lengths."""
    row_weights = torch.ones(len(ids)) if bags.weights_L is None else bags.weights_L
    given = torch.ones(len(ids)) if weights is None else weights
    for bag, (begin, end) in enumerate(pairwise(offsets.tolist())):
        length = int(bags.lengths_B[bag])
        rows = bags.rows_L[begin:end]
        got = Counter(
            zip(rows[:length].tolist(), bits_of(row_weights[begin : begin + length]), strict=True)
        )
        asked = Counter(zip(ids[begin:end].tolist(), bits_of(given[begin:end]), strict=True))
        assert items_behind(got) == asked
        own = None if weights is None else weights[begin:end]
        assert got == expected_rows(ids[begin:end], own, piece)
        assert (rows[length:] == -1).all()
        assert int(bags.asked_B[bag]) == end - begin
        if bags.weights_L is not None:
            assert (bags.weights_L[begin + length : end] == 0).all()


@pytest.mark.parametrize(
    "kind", ["random", "sorted", "distinct", "repeats", "full clusters", "empty"]
)
@pytest.mark.parametrize(
    ("dtype", "num_sums"), [(torch.int32, SUMS.num_sums), (torch.int64, WIDE)], ids=["32", "64"]
)
def test_rows_are_those_of_the_reference(kind, dtype, num_sums, bad_ids) -> None:
    ids, offsets = flat(random_bags(kind, 1), dtype)
    bags = rewritten(ids, offsets, None, bad_ids, num_sums=num_sums)
    check_law_and_rows(ids, offsets, None, bags, 32)
    assert bad_ids.item() == 0


@pytest.mark.parametrize("kind", ["random", "repeats", "distinct"])
@pytest.mark.parametrize("kinds", [1, len(NASTY)])
def test_equal_weights_merge_and_others_do_not(kind, kinds, bad_ids) -> None:
    ids, offsets = flat(random_bags(kind, 2), torch.int32)
    weights = torch.from_numpy(np.random.default_rng(3).choice(NASTY[:kinds], len(ids)))
    bags = rewritten(ids, offsets, weights, bad_ids)
    check_law_and_rows(ids, offsets, weights, bags, 32)


def test_weights_all_equal_save_as_much_as_no_weights(bad_ids) -> None:
    ids, offsets = flat(random_bags("distinct", 4))
    plain = rewritten(ids, offsets, None, bad_ids).lengths_B
    weighted = rewritten(ids, offsets, torch.full((len(ids),), 0.25), bad_ids).lengths_B
    assert plain.tolist() == weighted.tolist()
    assert plain.sum() < len(ids)


def test_a_larger_piece_merges_across_a_long_bag(bad_ids) -> None:
    ids, offsets = flat([np.tile(np.random.default_rng(6).permutation(NUM_ITEMS), 1)])
    short = rewritten(ids, offsets, None, bad_ids, piece=32)
    long = rewritten(ids, offsets, None, bad_ids, piece=64)
    check_law_and_rows(ids, offsets, None, long, 64)
    assert long.lengths_B[0] <= short.lengths_B[0]


def test_offsets_may_start_above_zero(bad_ids) -> None:
    ids, offsets = flat([FULL, FULL[:4], FULL[2:]], torch.int32)
    bags = rewritten(ids, offsets[1:], None, bad_ids)
    assert bags.lengths_B.tolist() == [1, 1]
    assert items_behind(Counter({(int(bags.rows_L[offsets[1]]), 0): 1})) == Counter(
        (item, 0) for item in FULL[:4].tolist()
    )


@pytest.mark.parametrize("policy", [RAISE, DROP, ZERO_ROW])
def test_bad_ids_follow_the_policy(policy, bad_ids) -> None:
    zero_mates = np.flatnonzero(SUMS.code.item_code_N >> 3 == SUMS.code.item_code_N[0] >> 3)
    assert zero_mates.size > 1  # item 0 is clustered, so a zero row that joined would show
    bag = torch.tensor([-1, NUM_ITEMS, -2, *zero_mates[1:].tolist(), 2**40, -1])
    bags = rewritten(bag, torch.tensor([0, len(bag)]), None, bad_ids, policy=policy)
    got = Counter((row, 0) for row in bags.rows_L[: int(bags.lengths_B[0])].tolist())
    mates = Counter((item, 0) for item in zero_mates[1:].tolist())
    if policy == ZERO_ROW:
        assert got[0, 0] == 3
        got[0, 0] = 0
    assert items_behind(+got) == mates
    assert bags.asked_B.item() == len(zero_mates) - 1 + (3 if policy == ZERO_ROW else 0)
    assert bad_ids.item() == (3 if policy == RAISE else 0)


def test_counted_bad_ids_raise_once_at_the_next_sync(bad_ids) -> None:
    rewritten(torch.tensor([1, 99, 100]), torch.tensor([0, 1, 3]), None, bad_ids)
    with pytest.raises(ValueError, match=r"table 'a': 2 ids are outside 0\.\.39; fix the ids"):
        raise_bad_ids(bad_ids, "table 'a'", NUM_ITEMS)
    raise_bad_ids(bad_ids, "table 'a'", NUM_ITEMS)


@pytest.mark.parametrize("piece", [32, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_last_block_of_narrow_keys_and_the_first_of_wide_ones(piece, weighted, bad_ids) -> None:
    narrow = (1 << (28 - piece.bit_length() + 1)) - 3
    assert is_narrow(piece.bit_length() - 1, narrow, False)
    assert not is_narrow(piece.bit_length() - 1, narrow + 1, False)
    for num_sums in (narrow, narrow + 1, 1 << 33):
        block = num_sums - 1  # a cluster of two has one sum
        code = torch.tensor([block * 8, -1, block * 8 + 1], dtype=torch.int64)
        bags = rewrite_clusters(
            torch.tensor([2, 1, 0]), torch.tensor([0, 3]), torch.ones(3) if weighted else None,
            code, num_rows=3, num_sums=num_sums, policy=RAISE, bad_ids=bad_ids, piece=piece,
        )  # fmt: skip
        assert sorted(bags.rows_L[:2].tolist()) == [1, 3 + block]
        assert bags.rows_L.dtype == (torch.int64 if num_sums > 2**31 else torch.int32)


def test_a_table_without_codes_is_checked_only(bad_ids) -> None:
    ids = torch.tensor([5, 5, -1, 3, 40])
    bags = rewrite_clusters(
        ids, torch.tensor([0, 5]), None, torch.zeros(0, dtype=torch.int32), num_rows=NUM_ITEMS,
        num_sums=0, policy=RAISE, bad_ids=bad_ids,
    )  # fmt: skip
    assert bags.rows_L.tolist() == [5, 5, 3, -1, -1]
    assert (bags.lengths_B.item(), bags.asked_B.item(), bad_ids.item()) == (3, 3, 1)


def test_no_bags_and_no_ids(bad_ids) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert rewritten(none, torch.tensor([0]), None, bad_ids).lengths_B.numel() == 0
    assert rewritten(none, torch.tensor([0, 0]), None, bad_ids).lengths_B.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ids": torch.zeros(4)}, "ids must be contiguous int32 or int64"),
        ({"ids": torch.zeros(8, dtype=torch.int64)[::2]}, "ids must be contiguous"),
        ({"weights": torch.zeros(3)}, r"weights must be contiguous float32 \[4\]"),
        ({"weights": torch.zeros(4).double()}, "weights must be contiguous float32"),
        ({"offsets": torch.zeros(0, dtype=torch.int64)}, "one number more than there are bags"),
        ({"bad": torch.zeros(1)}, r"counter of bad ids must be int32 \[1\]"),
        ({"piece": 48}, "a piece holds 32, 64, 128, 256 or 512 ids, got 48"),
    ],
)
def test_wrong_calls_are_refused_before_a_launch(change, what, bad_ids) -> None:
    call = {
        "ids": torch.zeros(4, dtype=torch.int64), "offsets": torch.tensor([0, 4]),
        "weights": None, "bad": bad_ids, "piece": 32,
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=what):
        rewritten(call["ids"], call["offsets"], call["weights"], call["bad"], piece=call["piece"])


def test_a_piece_follows_the_mean_length() -> None:
    assert [piece_ids(60 * 512, 512), piece_ids(0, 0), piece_ids(10**6, 1)] == [128, 32, 512]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("piece", [32, 128, 512])
def test_long_runs(seed, piece, bad_ids) -> None:
    random = np.random.default_rng(seed)
    bags = [random.integers(0, NUM_ITEMS, random.integers(0, 3 * piece // 2)) for _ in range(6)]
    ids, offsets = flat(bags)
    weights = torch.from_numpy(random.choice(NASTY[: 1 + seed % 3], len(ids)))
    weights = None if seed % 2 else weights
    out = rewritten(ids, offsets, weights, bad_ids, piece=piece)
    check_law_and_rows(ids, offsets, weights, out, piece)
