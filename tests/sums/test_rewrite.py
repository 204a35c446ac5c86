"""Rewriting: the law of the multiset, and no bag reads more rows than it must."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import PlanMismatch
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

N = 12
SUMS = StoredSums.from_clusters(N, np.array([0, 2, 6, 9]), np.array([3, 0, 7, 1, 11, 5, 2, 8, 4]))
IDS = st.lists(st.lists(st.integers(0, N - 1), max_size=20), max_size=6)


def items_behind(row):
    """The items that a row of a rewritten bag stands for."""
    if row < N:
        return [row]
    return SUMS.set_items_S[SUMS.set_indptr_R1[row - N] : SUMS.set_indptr_R1[row - N + 1]].tolist()


def split(array, offsets):
    return [part.tolist() for part in np.split(array, offsets[1:-1])] if offsets.size > 1 else []


@given(IDS)
def test_the_items_behind_a_rewritten_bag_are_the_bag(bags):
    rewritten = rewrite(Trace.from_bags(bags, N), SUMS)
    assert rewritten.weights is None
    for bag, rows in zip(bags, split(rewritten.rows, rewritten.offsets_B1), strict=True):
        assert Counter(item for row in rows for item in items_behind(row)) == Counter(bag)
        assert len(rows) <= len(bag)


@given(IDS, st.integers(0, 2**32 - 1))
def test_weighted_items_keep_their_weight_each(bags, seed):
    trace = Trace.from_bags(bags, N)
    weights = np.random.default_rng(seed).choice([0.5, 1.0, 2.0], trace.num_ids).astype(np.float32)
    rewritten = rewrite(Trace(trace.offsets_B1, trace.ids_L, N, weights), SUMS)
    given_weights = split(weights, trace.offsets_B1)
    got_weights = split(rewritten.weights, rewritten.offsets_B1)
    rows_of = split(rewritten.rows, rewritten.offsets_B1)
    for bag, wanted, rows, got in zip(bags, given_weights, rows_of, got_weights, strict=True):
        pairs = [(item, w) for row, w in zip(rows, got, strict=True) for item in items_behind(row)]
        assert Counter(pairs) == Counter(zip(bag, wanted, strict=True))


@given(st.lists(st.integers(0, N - 1), max_size=9))
def test_no_choice_of_rows_is_shorter(bag):
    sets = [tuple(sorted(items_behind(row))) for row in range(N + SUMS.num_sums)]

    @cache
    def fewest(items):
        """Rows for a sorted tuple of items, by trying every row that holds the first."""
        if not items:
            return 0
        lengths = []
        for one in sets:
            rest = Counter(items) - Counter(one)
            if items[0] in one and sum(rest.values()) == len(items) - len(one):
                lengths.append(1 + fewest(tuple(sorted(rest.elements()))))
        return min(lengths)

    assert rewrite(Trace.from_bags([bag], N), SUMS).num_rows_read == fewest(tuple(sorted(bag)))


def test_each_copy_is_used_once():
    rows = rewrite(Trace.from_bags([[3, 0, 3, 3, 0]], N), SUMS).rows.tolist()
    assert sorted(rows) == [3, N, N]  # two copies of the pair, one item left


def test_copies_past_64_of_an_item_are_read_plain_and_none_is_lost():
    rows = rewrite(Trace.from_bags([[3] * 100 + [0] * 100], N), SUMS).rows
    assert Counter(rows.tolist()) == {N: 64, 3: 36, 0: 36}


def test_without_sums_bags_are_read_as_they_are():
    trace = Trace.from_bags([[5, 5, 1], [], [0]], N)
    rewritten = rewrite(trace, StoredSums.none(N))
    assert split(rewritten.rows, rewritten.offsets_B1) == [[5, 5, 1], [], [0]]


@pytest.mark.parametrize("bags", [[], [[]], [[], []]])
def test_nothing_requested_reads_nothing(bags):
    rewritten = rewrite(Trace.from_bags(bags), SUMS)
    assert rewritten.num_rows_read == 0
    assert rewritten.offsets_B1.tolist() == [0] * (len(bags) + 1)


def test_a_trace_over_fewer_items_than_the_table_is_served():
    assert rewrite(Trace.from_bags([[0, 3]]), SUMS).rows.tolist() == [N]


def test_a_trace_over_more_items_than_the_table_is_refused():
    with pytest.raises(PlanMismatch, match="over 13 items, the sums over 12"):
        rewrite(Trace.from_bags([[12]]), SUMS)


ENTRIES = np.array([3, 7, 4 + 0b1111, 20 + 0b110])  # of clusters of 2, 4 and 3 items
SETS = [[3, 0, 7], [0, 1], [7, 1, 11, 5], [1, 2], [2, 8, 4, 9], [9, 10]]
CODES = {
    "clusters": SUMS,
    "subsets": StoredSums.from_subsets(
        N, np.array([0, 2, 6, 9]), np.array([3, 0, 7, 1, 11, 5, 2, 8, 4]), ENTRIES
    ),
    "sets": StoredSums.from_sets(
        N, np.cumsum([0, *map(len, SETS)]), np.array([i for s in SETS for i in s])
    ),
}


@pytest.mark.parametrize("code", CODES)
@given(IDS, st.booleans())
def test_every_code_keeps_the_law_and_counts_its_reads(code, bags, weighted):
    sums, trace = CODES[code], Trace.from_bags(bags, N)
    weights = np.arange(trace.num_ids, dtype=np.float32) % 3 if weighted else None
    trace = Trace(trace.offsets_B1, trace.ids_L, N, weights)
    rewritten = rewrite(trace, sums)
    behind = [
        sums.set_items_S[sums.set_indptr_R1[row - N] : sums.set_indptr_R1[row - N + 1]].tolist()
        if row >= N else [row]
        for row in rewritten.rows.tolist()
    ]  # fmt: skip
    bag_of_row = np.repeat(np.arange(trace.num_bags), np.diff(rewritten.offsets_B1))
    row_weights = rewritten.weights if weighted else np.zeros(rewritten.num_rows_read)
    got = Counter(
        (int(bag), item, float(weight))
        for bag, items, weight in zip(bag_of_row, behind, row_weights, strict=True)
        for item in items
    )
    bag_of_id = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    wanted = weights if weighted else np.zeros(trace.num_ids)
    assert got == Counter(
        (int(bag), int(item), float(weight))
        for bag, item, weight in zip(bag_of_id, trace.ids_L, wanted, strict=True)
    )


@pytest.mark.parametrize("code", CODES)
def test_every_code_stores_more_than_it_reads(code):
    bag = CODES[code].set_items_S[: CODES[code].set_indptr_R1[1]].tolist()
    assert rewrite(Trace.from_bags([bag], N), CODES[code]).rows.tolist() == [N]
    with pytest.raises(PlanMismatch):
        rewrite(Trace.from_bags([[N]]), CODES[code])
