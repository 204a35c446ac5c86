"""Cluster code: every subset of two or more items owns one row, and arithmetic finds it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.clusters import cluster_code, cluster_sets, num_sums


def subset_row(block: int, members: tuple[int, ...], wanted: set[int]) -> int:
    """The stored row of the sum of ``wanted``: slot ``s`` of a cluster owns bit ``1 << s``."""
    mask = sum(1 << slot for slot, item in enumerate(members) if item in wanted)
    return block + mask - 1 - mask.bit_length()  # masks of one bit own no row


def test_five_items_cost_26_sums():
    assert num_sums(5) == 26
    assert [num_sums(size) for size in (1, 2, 3, 4, 8)] == [0, 1, 4, 11, 247]


def test_the_paper_s_cost_is_the_number_of_listed_sets():
    for size in range(2, 9):
        indptr, items = cluster_sets(np.array([0, size]), np.arange(size))
        sets = {tuple(part) for part in np.split(items, indptr[1:-1])}
        assert len(sets) == indptr.size - 1 == num_sums(size)


def test_the_address_of_a_subset_is_the_row_that_lists_its_items():
    offsets, members = np.array([0, 3, 5, 9]), np.array([7, 3, 9, 0, 1, 11, 2, 5, 8])
    indptr, items = cluster_sets(offsets, members)
    code = cluster_code(12, offsets, members).item_code_N
    for first, last in itertools.pairwise(offsets):
        cluster = tuple(members[first:last].tolist())
        block = int(code[cluster[0]]) >> 3
        for row in range(block, block + num_sums(len(cluster))):
            assert (
                subset_row(block, cluster, set(items[indptr[row] : indptr[row + 1]].tolist()))
                == row
            )


def test_slots_follow_the_order_of_the_members_and_others_have_no_code():
    code = cluster_code(6, np.array([0, 2, 5]), np.array([4, 1, 0, 5, 3])).item_code_N
    assert code.tolist() == [8, 1, -1, 10, 0, 9]  # block * 8 + slot; the second block starts at 1


@pytest.mark.parametrize(
    ("offsets", "members", "message"),
    [
        ([0, 1], [0], "2..8 items"),
        ([0, 9], list(range(9)), "2..8 items"),
        ([0, 2], [0, 10], "0..9"),
        ([0, 2], [-1, 1], "0..9"),
        ([0, 2, 4], [0, 1, 1, 2], "two clusters"),
    ],
)
def test_broken_clusters_are_refused(offsets, members, message):
    with pytest.raises(GraceError, match=message):
        cluster_code(10, np.array(offsets), np.array(members))


@given(
    st.lists(
        st.permutations(range(6)).flatmap(lambda p: st.integers(2, 6).map(lambda k: p[:k])),
        max_size=3,
    )
)
def test_clusters_are_read_back_from_the_code(groups):
    clusters = [[item + 6 * index for item in group] for index, group in enumerate(groups)]
    offsets = np.cumsum([0, *map(len, clusters)])
    members = np.array([item for cluster in clusters for item in cluster], np.int64)
    read = cluster_code(30, offsets, members).listed()
    assert np.array_equal(read[0], offsets)
    assert np.array_equal(read[1], members)
