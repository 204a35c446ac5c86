"""The walk-through of the GRACE paper: five users, six items, budget 10, interpolation .5,
tolerance .4. Its trace and edge weights are printed; its groups are not, so which reading of
the tolerance reaches the best groups is stated here for every policy."""

import itertools

import numpy as np
import pytest

from grace_torchrec.grouping.bounds import exact_saving, group_bounds, marginal_bounds
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.grouping.paper_greedy import POLICIES, fit
from grace_torchrec.sums.clusters import num_sums
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

TRACE = Trace.from_bags([[0, 1, 2, 3], [2, 4, 5], [0, 2, 3], [4, 5], [2, 3, 4]])
BUDGET = 10
PRINTED = {(2, 3): 3, (0, 2): 2, (4, 5): 2}
ALL_EDGES = PRINTED | {(0, 1): 1, (0, 3): 2, (1, 2): 1, (1, 3): 1, (2, 4): 2, (2, 5): 1, (3, 4): 1}
BEST, PAIRS = {(0, 2, 3), (4, 5)}, {(2, 3), (0, 1), (4, 5)}


def groups(sums: StoredSums) -> set[tuple[int, ...]]:
    """The clusters: sets that no other set contains."""
    sets = [
        frozenset(part.tolist()) for part in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])
    ]
    return {tuple(sorted(one)) for one in sets if not any(one < other for other in sets)}


def test_the_graph_has_the_printed_weights_and_no_other_edges():
    pairs = count_pairs(TRACE)
    counted = {(a, b): pairs.weight(a, b) for a, b in itertools.combinations(range(6), 2)}
    assert {edge: weight for edge, weight in counted.items() if weight} == ALL_EDGES
    assert pairs.num_edges == 10


def test_item_2_is_the_busiest_by_either_degree():
    pairs = count_pairs(TRACE)
    assert np.diff(pairs.indptr_N1).argmax() == 2
    assert pairs.weighted_degrees().tolist() == [5, 3, 9, 7, 5, 3]


@pytest.mark.parametrize(
    ("policy", "expected", "rows", "reads"),
    [
        ("enlarged", BEST, 5, 8),
        ("floor", BEST, 5, 8),
        ("marginal", PAIRS, 3, 9),
        ("last_added", PAIRS, 3, 9),
        ("first_edge", PAIRS, 3, 9),
    ],
)
def test_the_groups_of_every_reading_of_the_tolerance(policy, expected, rows, reads):
    sums = fit(TRACE, BUDGET, policy=policy, tolerance=0.4, interpolation=0.5)
    assert groups(sums) == expected
    assert sums.num_sums == rows
    assert (count_reads(TRACE, sums).rows_before, count_reads(TRACE, sums).rows_after) == (
        15,
        reads,
    )


def test_the_table_above_names_every_policy():
    cases = test_the_groups_of_every_reading_of_the_tolerance.pytestmark[0].args[1]
    assert {case[0] for case in cases} == set(POLICIES)


def test_no_disjoint_groups_within_the_budget_beat_8_reads_or_reach_them_with_fewer_rows():
    outcomes = [
        (
            15 - sum(exact_saving(TRACE, group) for group in grouping),
            sum(map(num_sums, map(len, grouping))),
        )
        for grouping in disjoint_groupings(list(range(6)))
        if sum(map(num_sums, map(len, grouping))) <= BUDGET
    ]
    assert min(outcomes) == (8, 5)


def test_bounds_of_the_best_group():
    pairs = count_pairs(TRACE)
    bounds = group_bounds(pairs, [0, 2, 3])
    assert (bounds.lower, exact_saving(TRACE, [0, 2, 3]), bounds.upper) == (5, 5, 7)
    assert bounds.at(0.5) == 6
    assert marginal_bounds(pairs, [2, 3], 0).at(0.5) == 3  # between 2 and 4


def test_pair_counts_leave_a_triple_open():
    # the paper's example: counts 5, 4 and 3; the three may stand together 0 to 3 times
    apart = Trace.from_bags([[0, 1]] * 5 + [[1, 2]] * 4 + [[0, 2]] * 3)
    together = Trace.from_bags([[0, 1, 2]] * 3 + [[0, 1]] * 2 + [[1, 2]])
    one, other = count_pairs(apart), count_pairs(together)
    assert one.counts_E.tolist() == other.counts_E.tolist() == [5, 3, 5, 4, 3, 4]
    assert (exact_saving(apart, [0, 1, 2]), exact_saving(together, [0, 1, 2])) == (12, 9)
    assert group_bounds(one, [0, 1, 2]).lower == 9
    assert group_bounds(one, [0, 1, 2]).upper == 12


def disjoint_groupings(items):
    """All ways to put items into disjoint groups of two or more, leaving others alone."""
    if not items:
        yield []
        return
    first, others = items[0], items[1:]
    for size in range(len(others) + 1):
        for mates in itertools.combinations(others, size):
            for rest in disjoint_groupings([item for item in others if item not in mates]):
                yield [(first, *mates), *rest] if mates else rest
