"""Pair counts: exact, the same for any order, of a size set by the pairs and not by the users."""

import numpy as np
import pytest
import scipy.sparse as sp

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import threads
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.traces.trace import Trace


def random_trace(seed, num_items=300, num_bags=200, longest=12, repeats=True):
    """Skewed random bags; small ids are popular."""
    rng = np.random.default_rng(seed)
    bags = [
        (num_items * rng.random(n) ** 2).astype(int).tolist()
        for n in rng.integers(0, longest, num_bags)
    ]
    return Trace.from_bags(bags if repeats else [sorted(set(bag)) for bag in bags], num_items)


def shuffled(trace, seed):
    """The same bags in another order, with the ids of each in another order."""
    rng = np.random.default_rng(seed)
    bags = [
        rng.permutation(part).tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])
    ]
    return Trace.from_bags([bags[b] for b in rng.permutation(len(bags))], trace.num_items)


def dense(pairs):
    """The counts as a square array."""
    shape = (pairs.num_items, pairs.num_items)
    return sp.csr_matrix((pairs.counts_E, pairs.partners_E, pairs.indptr_N1), shape).toarray()


@pytest.mark.parametrize("num_items", [20, 300, 5000])  # rows read by scan, by both, by bitmap
def test_counts_equal_the_square_of_the_bag_matrix(num_items):
    trace = random_trace(1, num_items, repeats=False)
    bags = sp.csr_matrix(
        (np.ones(trace.num_ids), trace.ids_L, trace.offsets_B1), (trace.num_bags, num_items)
    )
    square = (bags.T @ bags).toarray()
    np.fill_diagonal(square, 0)
    np.testing.assert_array_equal(dense(count_pairs(trace)), square)


def test_repeats_count_as_often_as_both_copies_can_be_served():
    trace = random_trace(2, num_items=15)
    expected = np.zeros((15, 15), int)
    for bag in np.split(trace.ids_L, trace.offsets_B1[1:-1]):
        copies = np.bincount(bag, minlength=15)
        expected += np.minimum.outer(copies, copies)
    np.fill_diagonal(expected, 0)
    np.testing.assert_array_equal(dense(count_pairs(trace)), expected)


def test_items_of_different_weight_are_no_pair():
    weights = np.array([1.0, 1.0, 2.0], np.float32)
    pairs = count_pairs(Trace(np.array([0, 3]), np.array([0, 1, 2]), weights_L=weights))
    assert (pairs.weight(0, 1), pairs.weight(0, 2), pairs.weight(1, 2)) == (1, 0, 0)


def test_partners_rise_in_each_row_and_no_item_is_its_own_partner():
    pairs = count_pairs(random_trace(3))
    rows = np.repeat(np.arange(pairs.num_items), np.diff(pairs.indptr_N1))
    key = rows * pairs.num_items + pairs.partners_E
    assert (np.diff(key) > 0).all()
    assert (rows != pairs.partners_E).all()
    assert (pairs.counts_E > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_order_of_bags_and_ids_has_no_influence(seed):
    trace = random_trace(4)
    one, other = count_pairs(trace), count_pairs(shuffled(trace, seed))
    for name in ("indptr_N1", "partners_E", "counts_E"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_ten_times_the_users_of_the_same_pairs_change_weights_and_not_the_size():
    rng = np.random.default_rng(5)
    pairs = rng.integers(0, 100, (400, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].tolist()
    few = count_pairs(Trace.from_bags(pairs, 100))
    drawn = [pairs[k] for k in rng.integers(0, len(pairs), 9 * len(pairs))]
    many = count_pairs(Trace.from_bags(pairs + drawn, 100))
    assert many.num_edges == few.num_edges
    assert many.counts_E.sum() == 10 * few.counts_E.sum()


def test_weight_of_a_pair_that_never_met_is_0():
    pairs = count_pairs(Trace.from_bags([[0, 1], [2, 3]], num_items=6))
    assert [pairs.weight(0, other) for other in range(6)] == [0, 1, 0, 0, 0, 0]
    assert pairs.weight(5, 0) == 0


@pytest.mark.parametrize("bags", [[], [[]], [[0]], [[2, 2, 2]]])
def test_bags_without_pairs_have_no_edges(bags):
    assert count_pairs(Trace.from_bags(bags)).num_edges == 0


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_threads_change_nothing(monkeypatch, num_threads):
    monkeypatch.setattr(threads, "LEAST_IDS_TO_SHARE", 0)
    for trace in (random_trace(8), Trace.from_bags([[0, 1]]), Trace.from_bags([])):
        one, other = count_pairs(trace, num_threads=1), count_pairs(trace, num_threads=num_threads)
        np.testing.assert_array_equal(one.indptr_N1, other.indptr_N1)
        np.testing.assert_array_equal(one.partners_E, other.partners_E)
        np.testing.assert_array_equal(one.counts_E, other.counts_E)


def test_more_memory_than_allowed_is_refused_with_what_to_do():
    trace = random_trace(6)
    counts = count_pairs(trace)
    need = counts.partners_E.nbytes + counts.counts_E.nbytes
    with pytest.raises(GraceError, match=r"need [\d,]+ B, the limit is 10,000 B; count fewer bags"):
        count_pairs(trace, memory_limit_bytes=10_000)
    with pytest.raises(GraceError):
        count_pairs(trace, memory_limit_bytes=need)  # the estimate is never too low


def test_the_estimate_is_exact_where_all_items_meet():
    trace = Trace.from_bags([list(range(50))])
    need = 8 * 50 * 49 + 24 * 50
    assert count_pairs(trace, memory_limit_bytes=need).num_edges == 50 * 49 // 2
    with pytest.raises(GraceError):
        count_pairs(trace, memory_limit_bytes=need - 1)


def test_a_table_too_large_for_any_graph_is_refused_before_anything_is_allocated():
    with pytest.raises(GraceError, match="1,000,000,000,001 items"):
        count_pairs(Trace.from_bags([[0, 10**12]]))
