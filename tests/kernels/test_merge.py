"""Rewriting on the CPU: equal to its meaning row by row, and the bag is what lies behind its rows."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_kernels._merge import MAX_EPOCH
from grace_kernels._places import table_of_row_ids
from grace_kernels._prefetch import QUEUE_SIZE
from grace_kernels._rewrite import make_scratch, rare_or_none, rewrite_chunk
from grace_kernels._split_ids import GROUP
from grace_kernels.cpu import BadId, rewrite_clusters, rewrite_counted
from grace_kernels.packed_codes import pack_codes
from grace_kernels.reference import (
    DROP,
    MAX_LAYERS,
    RAISE,
    ZERO_ROW,
    rewrite_clusters_reference,
)
from grace_kernels.subset_tables import pack_subsets
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.readers.npz import read_npz

SUMS = StoredSums.from_clusters(
    24, np.array([0, 2, 10, 13, 18]), np.random.default_rng(5).permutation(24)[:18]
)
BAGS = st.lists(st.lists(st.integers(0, 23), max_size=30), max_size=7)
NASTY = np.array([1.0, 0.5, -0.0, 0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45], np.float32)


def assert_as_reference(ids, offsets, weights, code):
    rows, ends, row_weights = rewrite_clusters(ids, offsets, weights, code)
    want = rewrite_clusters_reference(
        torch.from_numpy(ids),
        torch.from_numpy(offsets),
        None if weights is None else torch.from_numpy(weights),
        torch.from_numpy(code),
    )
    np.testing.assert_array_equal(rows, want[0].numpy())
    np.testing.assert_array_equal(ends, want[1].numpy())
    assert (row_weights is None) == (weights is None)
    if weights is not None:  # bit by bit: NaN and the sign of zero count
        np.testing.assert_array_equal(row_weights.view(np.int32), want[2].numpy().view(np.int32))
    return rows


def flat(bags, offsets_of, dtype=np.int32):
    return np.array([i for bag in bags for i in bag], dtype), offsets_of([len(b) for b in bags])


@given(BAGS, st.sampled_from([np.int32, np.int64]), st.sampled_from([np.int32, np.int64]))
def test_rows_are_those_of_the_reference(offsets_of, bags, id_type, code_type):
    ids, offsets = flat(bags, offsets_of, id_type)
    assert_as_reference(ids, offsets, None, SUMS.code.item_code_N.astype(code_type))


@given(BAGS, st.integers(0, 2**32 - 1), st.integers(1, len(NASTY)))
def test_weighted_rows_are_those_of_the_reference(offsets_of, bags, seed, kinds):
    ids, offsets = flat(bags, offsets_of)
    weights = np.random.default_rng(seed).choice(NASTY[:kinds], ids.size)
    assert_as_reference(ids, offsets, weights, SUMS.code.item_code_N)


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_random_clusters_are_those_of_the_reference(clusters_of, offsets_of, seed):
    random = np.random.default_rng(seed)
    num_items = int(random.integers(2, 90))
    code = clusters_of(random, num_items).code.item_code_N
    offsets = offsets_of(random.integers(0, 150, 9))
    assert_as_reference(random.integers(0, num_items, offsets[-1]), offsets, None, code)


@given(BAGS, st.integers(0, 2**32 - 1) | st.none())
def test_the_items_behind_the_rows_are_the_bag(offsets_of, bags, seed):
    ids, offsets = flat(bags, offsets_of)
    weights = None if seed is None else np.random.default_rng(seed).choice(NASTY[:4], ids.size)
    rows, ends, row_weights = rewrite_clusters(ids, offsets, weights, SUMS.code.item_code_N)
    asked_bits = np.zeros(ids.size, int) if weights is None else weights.view(np.int32)
    row_bits = np.zeros(rows.size, int) if weights is None else row_weights.view(np.int32)
    for b in range(len(bags)):
        asked = slice(offsets[b], offsets[b + 1])
        behind = [
            (item, bits)
            for row, bits in zip(
                rows[ends[b] : ends[b + 1]], row_bits[ends[b] : ends[b + 1]], strict=True
            )
            for item in items_behind(row)
        ]
        assert Counter(behind) == Counter(zip(ids[asked], asked_bits[asked], strict=True))


def items_behind(row):
    if row < SUMS.num_items:
        return [row]
    stored = row - SUMS.num_items
    return SUMS.set_items_S[SUMS.set_indptr_R1[stored] : SUMS.set_indptr_R1[stored + 1]].tolist()


@pytest.mark.parametrize(
    "bags",
    [
        pytest.param([], id="no-bags"),
        pytest.param([[], [], []], id="empty-bags"),
        pytest.param([[3] * 40], id="one-id-40-times"),
        pytest.param([[3] * 200, [], [3]], id="one-id-200-times"),
        pytest.param([list(range(24)) * (MAX_LAYERS + 3)], id="every-id-67-times"),
        pytest.param([[a for a in range(24) for _ in range(70)]], id="copies-side-by-side"),
        pytest.param([[b % 24, (b + 1) % 24] for b in range(5000)], id="more-bags-than-epochs"),
        pytest.param([list(range(24)), *[[] for _ in range(300)], [1, 0]], id="empty-between"),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_hostile_bags_are_rewritten_as_the_reference_does(offsets_of, bags, weighted):
    ids, offsets = flat(bags, offsets_of)
    weights = np.resize(np.array([1, 2, 1], np.float32), ids.size) if weighted else None
    assert_as_reference(ids, offsets, weights, SUMS.code.item_code_N)


@given(
    st.lists(st.lists(st.integers(0, 23), max_size=40), min_size=1, max_size=12),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_bags_in_order_of_code_or_nearly_so(offsets_of, bags, swaps, repeats, seed):
    """Bags whose codes rise are merged run by run, the others through a table, in turns."""
    random = np.random.default_rng(seed)
    code = SUMS.code.item_code_N
    ordered = []
    for bag in bags:
        items = np.array(bag if repeats else sorted(set(bag)), np.int32)
        items = items[np.argsort(code[items], kind="stable")]
        for _ in range(swaps if items.size > 1 else 0):
            a, b = random.integers(0, items.size, 2)
            items[[a, b]] = items[[b, a]]
        ordered.append(items.tolist())
    ids, offsets = flat(ordered, offsets_of)
    assert_as_reference(ids, offsets, None, code)


def test_runs_and_tables_take_turns_bag_by_bag(offsets_of):
    """One item behind the end of a run, or twice, and its bag goes through the table."""
    code = SUMS.code.item_code_N
    rising = np.argsort(code, kind="stable")[-18:]  # all clustered items, in order of code
    first, last = rising[:1], rising[-1:]
    bags = [
        rising, np.r_[rising, first], rising, np.r_[rising, last], np.r_[last, first], rising[::-1],
        rising[::2], np.r_[first, rising], first, np.r_[first, first], rising[1::3],
    ]  # fmt: skip
    ids, offsets = flat([bag.tolist() for bag in bags], offsets_of)
    rows = assert_as_reference(ids, offsets, None, code)
    assert rows.size < ids.size / 2


@pytest.mark.parametrize("splits", [False, True])
def test_bags_after_the_last_epoch_meet_no_entry_of_those_before(offsets_of, splits):
    """The hash table is not cleared between bags; when the epochs of its entries run out it is."""
    ids, offsets = flat([[b % 24, (b + 9) % 24, (b + 5) % 24] for b in range(40)], offsets_of)
    packed, subsets = pack_codes(SUMS.code.item_code_N), None
    if splits:
        few = StoredSums.from_subsets(24, np.array([0, 8]), np.arange(8, 16), np.array([3, 7, 192]))
        packed = pack_codes(few.code.item_code_N)
        subsets = pack_subsets(few.code.next_E, few.code.stored_W)
    table = table_of_row_ids(24, packed, subsets)
    rare = rare_or_none(False, [table])
    scratch, queue = make_scratch(3, False, splits, rare), np.zeros(QUEUE_SIZE, np.int64)
    no_bits, origin = np.zeros(0, np.int32), np.zeros(0, np.int64)
    want, epoch = None, MAX_EPOCH - 130
    for _ in range(5):
        rows, ends = np.zeros(ids.size + GROUP, np.int64), np.zeros(41, np.int64)
        epoch, asked, _, bad = rewrite_chunk(
            ids, offsets, 0, 40, no_bits, table, RAISE, rows, origin, 0, ends, scratch, epoch,
            queue, rare,
        )  # fmt: skip
        assert (asked, bad) == (ids.size, -1)
        want = rows[: ends[-1]] if want is None else want
        np.testing.assert_array_equal(rows[: ends[-1]], want)
    assert 0 < epoch < 200


def test_a_bag_of_more_rows_than_16_bits_count(offsets_of):
    """Nothing packs the place of a row in its bag into a few bits."""
    num_items = 160_000
    members = np.random.default_rng(0).permutation(num_items)
    code = StoredSums.from_clusters(num_items, np.arange(0, num_items + 1, 2), members).code
    one_of_each = members.reshape(-1, 2)[:70_000, 0]
    ids = np.concatenate([members[:50], one_of_each, members[139_000:139_100]])
    rows = assert_as_reference(ids, offsets_of([50, 70_100]), None, code.item_code_N)
    assert rows.size == 25 + 70_000 + 50


@pytest.mark.parametrize("policy", [DROP, ZERO_ROW])
def test_bad_ids_of_a_table_too_large_for_the_cache(offsets_of, policy):
    """Codes of such tables are prefetched ahead of the check of the ids."""
    num_items = 140_000
    code = StoredSums.from_clusters(num_items, np.array([0, 3]), np.array([139_999, 5, 77])).code
    bad = [num_items, -2, 2**62, -(2**62)]
    ids, offsets = flat([[77, 139_999, *bad, 8, -1, 5], [139_999, 5]], offsets_of, np.int64)
    asked, rows, _, _ = rewrite_counted(ids, offsets, None, code.item_code_N, num_items, policy)
    zeros = [0] * len(bad) if policy == ZERO_ROW else []
    assert rows.tolist() == [*zeros, 8, num_items + 3, num_items]
    assert asked == 6 + len(zeros)


def test_the_last_clusters_that_fit_into_32_bits(offsets_of):
    ids, offsets = flat([[0, 1, 2, 0, 9, 8, 10, 1], [9, 10]], offsets_of)
    code = np.full(12, -1, np.int32)
    code[[0, 1, 2]] = (2**28 - 8) * 8 + np.arange(3)
    code[[8, 9, 10]] = (2**28 - 4) * 8 + np.arange(3)
    rows = assert_as_reference(ids, offsets, None, code)
    assert rows.max() >= 2**28


@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_past_32_bits(offsets_of, weighted):
    """Blocks that agree in their low 28 bits, which is what the fast path tells apart."""
    random = np.random.default_rng(2)
    block = np.repeat(np.arange(60) << 28, 3)
    code = np.where(np.arange(180) % 9 == 8, -1, block * 8 + np.arange(180) % 3)
    offsets = offsets_of(random.integers(0, 40, 80))
    ids = random.integers(0, 180, offsets[-1])
    weights = random.choice(np.array([1, 2], np.float32), ids.size) if weighted else None
    rows = assert_as_reference(ids, offsets, weights, code)
    assert rows.max() > 2**33


def test_real_bags_are_rewritten_as_the_reference_does(trace_path, clusters_of):
    trace = read_npz(trace_path("ml100k"))
    code = clusters_of(np.random.default_rng(0), trace.num_items).code.item_code_N
    end = int(np.searchsorted(trace.offsets_B1, 40_000))
    ids, offsets = trace.ids_L[: trace.offsets_B1[end]], trace.offsets_B1[: end + 1]
    rows = assert_as_reference(ids, offsets, None, code)
    assert rows.size < ids.size


def test_bags_may_begin_in_the_middle_of_the_ids(offsets_of):
    ids, offsets = flat([[9, 9], [3, 0, 7], [1]], offsets_of)
    code = SUMS.code.item_code_N
    whole, ends, _ = rewrite_clusters(ids, offsets, None, code)
    part, part_ends, _ = rewrite_clusters(ids, offsets[1:], None, code)
    np.testing.assert_array_equal(part, whole[ends[1] :])
    np.testing.assert_array_equal(part_ends, ends[1:] - ends[1])


@pytest.mark.parametrize("policy", [RAISE, DROP, ZERO_ROW])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_is_left_out_and_not_counted(offsets_of, policy, weighted):
    ids, offsets = flat([[-1, 3, -1], [-1], [0]], offsets_of)
    weights = np.ones(ids.size, np.float32) if weighted else None
    asked, rows, ends, _ = rewrite_counted(ids, offsets, weights, SUMS.code.item_code_N, 24, policy)
    assert (asked, rows.tolist(), ends.tolist()) == (2, [3, 0], [0, 1, 1, 2])


@pytest.mark.parametrize(
    ("policy", "asked", "rows"), [(DROP, 2, [3, 5]), (ZERO_ROW, 5, [0, 0, 0, 3, 5])]
)
def test_ids_outside_the_table_follow_the_policy(offsets_of, policy, asked, rows):
    ids, offsets = flat([[3, 24, -2, 5, 2**40]], offsets_of, np.int64)
    code = np.full(24, -1, np.int32)
    got = rewrite_counted(ids, offsets, None, code, 24, policy)
    assert (got[0], sorted(got[1].tolist())) == (asked, rows)


@pytest.mark.parametrize("bad", [24, -2, 2**31, 2**62, -(2**63)])
def test_an_id_outside_the_table_is_named_with_its_position(offsets_of, bad):
    ids, offsets = flat([[3, 0], [7, bad, 99]], offsets_of, np.int64)
    with pytest.raises(BadId, match=f"id {bad} at position 3 is outside") as caught:
        rewrite_clusters(ids, offsets, None, SUMS.code.item_code_N)
    assert (caught.value.position, caught.value.id) == (3, bad)


@given(BAGS)
@settings(max_examples=50)
def test_without_codes_a_bag_is_its_own_rewriting(offsets_of, bags):
    ids, offsets = flat(bags, offsets_of)
    asked, rows, ends, _ = rewrite_counted(ids, offsets, None, np.zeros(0, np.int32), 24, RAISE)
    assert asked == ids.size
    np.testing.assert_array_equal(rows, ids)
    np.testing.assert_array_equal(ends, offsets)
