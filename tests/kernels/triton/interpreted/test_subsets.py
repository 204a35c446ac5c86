"""Subset codes in Triton: the multiset behind the rows is the bag, and the rows are the expected ones."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from grace_kernels.clusters import rewrite_clusters
from grace_kernels.device_rows import DeviceSubsets, device_subsets
from grace_kernels.reference import DROP, RAISE, ZERO_ROW
from grace_kernels.reference_subsets import rewrite_subsets_reference
from grace_kernels.subset_tables import pack_subsets
from grace_torchrec.sums.stored_sums import StoredSums

NUM_ITEMS = 40
NASTY = np.array([1.0, 0.5, -0.0, 0.0, np.nan, -np.nan], np.float32)
KINDS = ["random", "sorted", "distinct", "repeats", "full clusters", "empty"]


class Code:
    """Stored sums in every form that is needed."""

    def __init__(self, sums: StoredSums) -> None:
        code = sums.code
        self.sums = sums
        self.item_code = torch.from_numpy(code.item_code_N)
        self.meant = (
            self.item_code, torch.from_numpy(code.next_E),
            torch.from_numpy(code.stored_W.view(np.int64)), torch.from_numpy(code.ranks_W),
        )  # fmt: skip
        tables = pack_subsets(code.next_E, code.stored_W)
        self.subsets = DeviceSubsets(
            torch.from_numpy(tables.next_E), torch.from_numpy(tables.marks_W)
        )
        last = code.item_code_N.max() >> 3
        self.full = np.flatnonzero(code.item_code_N >> 3 == last)

    def behind(self, row):
        """The items that a row stands for."""
        if row < NUM_ITEMS:
            return [row]
        first, last = self.sums.set_indptr_R1[row - NUM_ITEMS : row - NUM_ITEMS + 2]
        return self.sums.set_items_S[first:last].tolist()


@pytest.fixture(scope="module", params=[0.0, 0.25, 1.0], ids=["none", "some", "all"])
def code(request, subsets_of) -> Code:
    """A code that stores no subset, some, or every one."""
    return Code(subsets_of(np.random.default_rng(5), NUM_ITEMS, 0.85, request.param))


def random_bags(kind: str, seed: int, full: np.ndarray) -> list[np.ndarray]:
    """Bags of 0 to 40 ids: a piece of 32 is too short for some."""
    random = np.random.default_rng(seed)
    lengths = [0, 1, 40, 32, 9]
    if kind == "empty":
        return [np.zeros(0, np.int64)] * 3
    if kind == "distinct":
        return [random.permutation(NUM_ITEMS)[:length] for length in lengths]
    if kind == "repeats":
        return [random.choice(full[:3], length) for length in lengths]
    if kind == "full clusters":
        return [random.permutation(np.tile(full, 20))[:length] for length in lengths]
    bags = [random.integers(0, NUM_ITEMS, length) for length in lengths]
    return [np.sort(bag) for bag in bags] if kind == "sorted" else bags


def flat(bags, dtype=torch.int64):
    offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])])
    ids = np.concatenate([*bags, np.zeros(0, np.int64)]).astype(np.int64)
    return torch.from_numpy(ids).to(dtype), torch.from_numpy(offsets).long()


def bits_of(weights):
    return weights.view(torch.int32).tolist()


def expected_rows(code, ids, weights, piece):
    """Count (row, weight bits) of one bag: per piece the reference of the distinct ids, and the
    plain row of every further copy."""
    want: Counter[tuple[int, int]] = Counter()
    for first in range(0, len(ids), piece):
        seen = set()
        keep = []
        pairs = list(zip(ids.tolist(), bits_of(weights), strict=True))[first : first + piece]
        for place, pair in enumerate(pairs):
            if pair in seen:
                want[pair] += 1
            else:
                seen.add(pair)
                keep.append(first + place)
        _, rows, _, row_weights = rewrite_subsets_reference(
            ids[keep], torch.tensor([0, len(keep)]), weights[keep], *code.meant, RAISE
        )
        want.update(zip(rows.tolist(), bits_of(row_weights), strict=True))
    return want


def rewritten(code, ids, offsets, weights, bad_ids, *, policy=RAISE, piece=32, wide=False):
    item_code = code.item_code.long() if wide else code.item_code
    return rewrite_clusters(
        ids, offsets, weights, item_code, num_rows=NUM_ITEMS, num_sums=code.sums.num_sums,
        policy=policy, bad_ids=bad_ids, piece=piece, subsets=code.subsets,
    )  # fmt: skip


def check_law_and_rows(code, ids, offsets, weights, bags, piece):
    """Every bag: rows as expected, the law, the tail, the lengths."""
    row_weights = torch.ones(len(ids)) if bags.weights_L is None else bags.weights_L
    given = torch.ones(len(ids)) if weights is None else weights
    for bag, (begin, end) in enumerate(pairwise(offsets.tolist())):
        length = int(bags.lengths_B[bag])
        rows = bags.rows_L[begin:end]
        own = bits_of(row_weights[begin : begin + length])
        got = Counter(zip(rows[:length].tolist(), own, strict=True))
        asked = Counter(zip(ids[begin:end].tolist(), bits_of(given[begin:end]), strict=True))
        behind: Counter[tuple[int, int]] = Counter()
        for (row, bits), count in got.items():
            for item in code.behind(row):
                behind[item, bits] += count
        assert behind == asked
        assert got == expected_rows(code, ids[begin:end], given[begin:end], piece)
        assert (rows[length:] == -1).all()
        assert int(bags.asked_B[bag]) == end - begin


@pytest.mark.parametrize(
    ("kind", "dtype", "wide"),
    [(kind, torch.int32, False) for kind in KINDS]
    + [(kind, torch.int64, True) for kind in ("random", "repeats")],
)
def test_rows_are_those_of_the_reference(code, kind, dtype, wide, bad_ids) -> None:
    ids, offsets = flat(random_bags(kind, 1, code.full), dtype)
    bags = rewritten(code, ids, offsets, None, bad_ids, wide=wide)
    check_law_and_rows(code, ids, offsets, None, bags, 32)
    assert bad_ids.item() == 0


@pytest.mark.parametrize(
    ("kind", "kinds"), [("random", 6), ("repeats", 6), ("distinct", 6), ("repeats", 1)]
)
def test_equal_weights_merge_and_others_do_not(code, kind, kinds, bad_ids) -> None:
    ids, offsets = flat(random_bags(kind, 2, code.full), torch.int32)
    weights = torch.from_numpy(np.random.default_rng(3).choice(NASTY[:kinds], len(ids)))
    bags = rewritten(code, ids, offsets, weights, bad_ids)
    check_law_and_rows(code, ids, offsets, weights, bags, 32)


@pytest.mark.parametrize("policy", [RAISE, DROP, ZERO_ROW])
def test_bad_ids_follow_the_policy(code, policy, bad_ids) -> None:
    mates = code.full[1:].tolist()
    bag = torch.tensor([-1, NUM_ITEMS, -2, *mates, 2**40, -1])
    bags = rewritten(code, bag, torch.tensor([0, len(bag)]), None, bad_ids, policy=policy)
    rows = bags.rows_L[: int(bags.lengths_B[0])].tolist()
    zeros = 3 if policy == ZERO_ROW else 0
    assert Counter(i for row in rows for i in code.behind(row)) == Counter(mates + [0] * zeros)
    assert rows.count(0) == zeros
    assert bags.asked_B.item() == len(mates) + zeros
    assert bad_ids.item() == (3 if policy == RAISE else 0)


def test_entries_past_32_bit_keys_are_read_alike(bad_ids) -> None:
    """A table of entries so large that starts do not fit narrow keys: the last cluster's is used."""
    entries, start = 1 << 23, (1 << 23) - 8
    parts = torch.zeros(entries, dtype=torch.uint8)
    parts[start:] = torch.tensor([0, 1, 2, 3, 4, 5, 2, 1], dtype=torch.uint8)  # {0, 1} and {0, 2}
    marks = torch.zeros(entries // 32, dtype=torch.int64)
    marks[0], marks[1:] = 1, 1 << 32  # one entry elsewhere is stored, before these
    marks[-1] = (1 << 32) | (1 << (24 + 3)) | (1 << (24 + 5))
    item_code = torch.tensor([start * 8 + 2, -1, start * 8, start * 8 + 1], dtype=torch.int64)
    bags = rewrite_clusters(
        torch.tensor([0, 2, 1, 3, 2, 3, 0]), torch.tensor([0, 2, 5, 7]), None, item_code, num_rows=4,
        num_sums=3, policy=RAISE, bad_ids=bad_ids, subsets=DeviceSubsets(parts, marks),
    )  # fmt: skip
    first, second, third = (
        sorted(bags.rows_L[begin:end].tolist()) for begin, end in ((0, 2), (2, 5), (5, 7))
    )
    assert (first, second, third) == ([-1, 4 + 2], [-1, 1, 4 + 1], [0, 3])


@pytest.mark.parametrize(
    ("parts", "marks"),
    [
        (torch.zeros(6, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(40, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)),
        (torch.zeros(8, dtype=torch.uint8)[::2], torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_tensors_that_are_no_subset_tables_are_refused(parts, marks) -> None:
    with pytest.raises(ValueError, match="subset tables are uint8"):
        DeviceSubsets(parts, marks)
    with pytest.raises(ValueError, match="2 tables need a tensor of parts and one of marks each"):
        device_subsets([parts], [marks], 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("piece", [32, 128, 512])
def test_long_runs(code, seed, piece, bad_ids) -> None:
    """10,800 bags in all."""
    random = np.random.default_rng(seed)
    bags = [random.integers(0, NUM_ITEMS, random.integers(0, 24)) for _ in range(54)]
    bags += [random.integers(0, NUM_ITEMS, random.integers(0, 3 * piece // 2)) for _ in range(6)]
    ids, offsets = flat(bags)
    weights = torch.from_numpy(random.choice(NASTY[: 1 + seed % 3], len(ids)))
    weights = None if seed % 2 else weights
    out = rewritten(code, ids, offsets, weights, bad_ids, piece=piece)
    check_law_and_rows(code, ids, offsets, weights, out, piece)
