"""Bounds: pair counts bracket what a group saves."""

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.bounds import Bounds, exact_saving, group_bounds, marginal_bounds
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.sums.rewrite import rewrite
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace


def dense_trace(seed):
    """Bags over 20 items with repeats, dense enough for large groups to matter."""
    rng = np.random.default_rng(seed)
    return Trace.from_bags(
        [(20 * rng.random(n) ** 2).astype(int).tolist() for n in rng.integers(0, 14, 60)], 20
    )


def test_1000_random_groups_lie_between_their_bounds():
    rng = np.random.default_rng(0)
    strict = 0
    for seed in range(20):
        trace = dense_trace(seed)
        pairs = count_pairs(trace)
        for _ in range(50):
            group = rng.choice(20, rng.integers(2, 9), replace=False).tolist()
            bounds, exact = group_bounds(pairs, group), exact_saving(trace, group)
            assert bounds.lower <= exact <= bounds.upper
            strict += bounds.lower < exact < bounds.upper
            if len(group) > 2:
                marginal = marginal_bounds(pairs, group[:-1], group[-1])
                assert marginal.lower <= exact - exact_saving(trace, group[:-1]) <= marginal.upper
    assert strict > 500  # the bounds were put to the test


def test_a_pair_is_known_exactly():
    trace = dense_trace(1)
    bounds = group_bounds(count_pairs(trace), [0, 1])
    assert bounds.lower == bounds.upper == exact_saving(trace, [0, 1]) > 0


def test_lower_bound_is_met_by_bags_along_a_tree_of_whole_groups():
    whole = Trace.from_bags([[0, 1, 2, 3]] * 7)
    bounds = group_bounds(count_pairs(whole), [3, 1, 0, 2])
    assert (bounds.lower, exact_saving(whole, [0, 1, 2, 3]), bounds.upper) == (21, 21, 42)


def test_upper_bound_is_met_by_bags_that_hold_pairs_only():
    apart = Trace.from_bags([[0, 1], [1, 2], [0, 2], [2, 3]])
    assert (
        group_bounds(count_pairs(apart), [0, 1, 2, 3]).upper
        == exact_saving(apart, [0, 1, 2, 3])
        == 4
    )


def test_exact_saving_is_what_rewriting_saves():
    for seed in range(5):
        trace, group = dense_trace(seed), [0, 1, 2, 5, 9]
        sums = StoredSums.from_clusters(20, np.array([0, 5]), np.array(group))
        assert trace.num_ids - rewrite(trace, sums).num_rows_read == exact_saving(trace, group)


def test_interpolation_runs_from_lower_to_upper():
    assert [Bounds(2, 6).at(at) for at in (0, 0.5, 1)] == [2, 4, 6]


@pytest.mark.parametrize("group", [[], [1], [1, 1], [0, 20], [-1, 0]])
def test_groups_without_a_sum_are_refused(group):
    trace = dense_trace(0)
    with pytest.raises(GraceError, match="group"):
        exact_saving(trace, group)
    with pytest.raises(GraceError, match="group"):
        group_bounds(count_pairs(trace), group)
