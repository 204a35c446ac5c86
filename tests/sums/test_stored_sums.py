"""StoredSums: a consistent value, whatever it was made from."""

import dataclasses

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
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
