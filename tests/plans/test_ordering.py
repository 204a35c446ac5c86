"""Ordering: the same sums in another order; groups stay together, bags read the same rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.plans.ordering import groups_of, in_order_of, worth_together
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

OFFSETS, MEMBERS = np.array([0, 3, 5, 9]), np.array([7, 2, 9, 4, 1, 0, 5, 6, 8])


def clusters():
    return StoredSums.from_clusters(12, OFFSETS, MEMBERS)


def subsets():
    # masks 3 and 7 of the first cluster, 3 of the second, 15, 3 and 12 of the third
    return StoredSums.from_subsets(
        12, OFFSETS, MEMBERS, np.array([3, 7, 8 + 3, 12 + 15, 12 + 3, 24])
    )


def sets():
    indptr, items = np.array([0, 2, 5, 7, 9]), np.array([1, 2, 0, 2, 5, 2, 7, 8, 9])
    return StoredSums.from_sets(12, indptr, items)


KINDS = {"clusters": clusters, "subsets": subsets, "sets": sets}


def contents(sums):
    return [
        tuple(sorted(part.tolist()))
        for part in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32 - 1))
def test_ordered_sums_are_the_same_sums_by_falling_worth_of_their_group(kind, seed):
    sums = KINDS[kind]()
    worth = np.random.default_rng(seed).integers(0, 9, sums.num_sums).astype(float)
    worth_of = dict(zip(contents(sums), worth_together(worth, groups_of(sums)), strict=True))
    ordered = in_order_of(sums, worth)
    assert sorted(contents(ordered)) == sorted(contents(sums))
    assert (np.diff([worth_of[one] for one in contents(ordered)]) <= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@given(bags=st.lists(st.lists(st.integers(0, 11), max_size=9), min_size=1, max_size=6))
def test_bags_read_as_many_rows_and_each_set_as_often(kind, bags):
    sums, trace = KINDS[kind](), Trace.from_bags(bags, 12)
    before = count_reads(trace, sums)
    ordered = in_order_of(sums, np.arange(sums.num_sums, dtype=float))
    after = count_reads(trace, ordered)
    if kind == "sets":  # ties between sets go to the lower row
        assert after.rows_before == before.rows_before
        return
    assert after.rows_after == before.rows_after
    assert np.array_equal(after.plain_reads_N, before.plain_reads_N)
    reads = dict(zip(contents(sums), before.stored_reads_R.tolist(), strict=True))
    assert [reads[one] for one in contents(ordered)] == after.stored_reads_R.tolist()


def test_sums_of_a_cluster_are_one_group_and_sets_are_each_their_own():
    assert groups_of(clusters()).tolist() == [0] * 4 + [1] + [2] * 11
    assert groups_of(subsets()).tolist() == [0, 0, 1, 2, 2, 2]
    assert groups_of(sets()).tolist() == [0, 1, 2, 3]


def test_no_sums_have_no_order():
    none = StoredSums.none(5)
    assert in_order_of(none, np.zeros(0)) is none
