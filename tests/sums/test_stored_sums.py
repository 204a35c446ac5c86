"""StoredSums: a consistent value, whatever it was made from."""

import dataclasses

import numpy as np
import pytest

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.sums.stored_sums import StoredSums


def some_sums():
    return StoredSums.from_clusters(10, np.array([0, 3, 5]), np.array([4, 1, 8, 0, 9]))


def test_every_subset_of_every_cluster_is_stored_once():
    sums = some_sums()
    sets = [part.tolist() for part in np.split(sums.set_items_S, sums.set_indptr_R1[1:-1])]
    assert sets == [[4, 1], [4, 8], [1, 8], [4, 1, 8], [0, 9]]


def test_metadata_is_one_code_an_item_and_nothing_without_sums():
    assert some_sums().metadata_bytes == 4 * 10
    assert StoredSums.none(10).metadata_bytes == 0
    assert StoredSums.none(0).num_sums == StoredSums.none(10).num_sums == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"set_indptr_R1": np.array([0, 2])}, "does not cover"),
        ({"set_indptr_R1": np.array([0, 1, 12])}, "fewer than two"),
        ({"num_items": 9}, "outside 0..8"),
        ({"num_items": 11}, "expected 11 items"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change, message):
    sums = some_sums()
    assert sums.set_items_S.size == 11
    change = {**change}
    if "set_indptr_R1" in change and change["set_indptr_R1"][-1] == 12:
        change["set_indptr_R1"] = np.array([0, 1, 11])
    with pytest.raises(GraceError, match=message):
        dataclasses.replace(sums, **change)


def test_codes_of_rows_that_are_not_there_are_refused():
    sums = some_sums()
    code = dataclasses.replace(sums.code, item_code_N=sums.code.item_code_N + 8)
    with pytest.raises(GraceError, match="names row"):
        dataclasses.replace(sums, code=code)


@pytest.mark.parametrize(("budget", "kept"), [(0, 0), (3, 0), (4, 4), (5, 5), (9, 5)])
def test_the_first_clusters_that_fit_are_kept_whole(budget, kept):
    sums, first = some_sums(), some_sums().first(budget)
    assert first.num_sums == kept
    np.testing.assert_array_equal(first.set_items_S, sums.set_items_S[: sums.set_indptr_R1[kept]])
    alive = first.code.item_code_N >= 0
    np.testing.assert_array_equal(first.code.item_code_N[alive], sums.code.item_code_N[alive])
    assert set(np.flatnonzero(alive)) == set(first.set_items_S)


def test_subsets_are_chosen_for_a_budget_not_cut_to_it():
    sums = StoredSums.from_subsets(9, np.array([0, 3]), np.arange(3), np.array([3, 7]))
    assert sums.first(2) is sums
    with pytest.raises(NotSupported, match="choose subsets"):
        sums.first(1)


@pytest.mark.parametrize(
    "offsets", [[0, 2, 5], [0, 2, 3], [1, 2, 4], [0, 3, 2, 4], [], [[0, 4]]], ids=str
)
def test_offsets_that_do_not_cover_are_refused_before_a_code_is_made_of_them(offsets):
    offsets, items = np.array(offsets, np.int64), np.array([3, 1, 2, 0])
    for make in (
        StoredSums.from_sets,
        StoredSums.from_clusters,
        lambda *arrays: StoredSums.from_subsets(*arrays, np.array([3])),
    ):
        with pytest.raises(GraceError, match=r"does not cover its (items|members)"):
            make(5, offsets, items)


def test_counts_of_another_table_are_refused():
    with pytest.raises(GraceError, match=r"counts are \(3,\), expected 5 items"):
        StoredSums.from_sets(5, np.array([0, 2]), np.array([3, 1]), np.array([1, 2, 3]))
