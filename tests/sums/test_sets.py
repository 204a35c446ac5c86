"""Set code: every set hangs on its rarest item and is found again whole."""

import dataclasses

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.sets import set_code
from grace_torchrec.sums.stored_sums import StoredSums

SETS = [[4, 1], [1, 2, 3], [0, 4], [4, 2, 0], [3, 4]]
INDPTR = np.cumsum([0, *map(len, SETS)])
ITEMS = np.array([item for items in SETS for item in items])
COUNTS = np.array([5, 9, 9, 1, 7])


def carried(code):
    """Stored row -> (home, other items)."""
    found = {}
    for item in range(code.home_indptr_N1.size - 1):
        for at in range(code.home_indptr_N1[item], code.home_indptr_N1[item + 1]):
            first, last = code.others_indptr_R1[at : at + 2]
            found[int(code.set_row_R[at])] = (item, sorted(code.others_S[first:last].tolist()))
    return found


@pytest.mark.parametrize("counts", [COUNTS, None, np.zeros(5, np.int64)])
def test_every_set_is_found_on_one_of_its_items(counts):
    found = carried(set_code(5, INDPTR, ITEMS, counts))
    assert {row: sorted([home, *others]) for row, (home, others) in found.items()} == {
        row: sorted(items) for row, items in enumerate(SETS)
    }


def test_the_home_is_the_rarest_item_and_of_equally_rare_ones_the_lower():
    homes = {row: home for row, (home, _) in carried(set_code(5, INDPTR, ITEMS, COUNTS)).items()}
    assert homes == {0: 4, 1: 3, 2: 0, 3: 0, 4: 3}
    assert carried(set_code(3, np.array([0, 2]), np.array([2, 1]), np.ones(3)))[0] == (1, [2])


def test_metadata_are_four_bytes_for_each_item_set_and_place():
    sums = StoredSums.from_sets(5, INDPTR, ITEMS, COUNTS)
    assert sums.metadata_bytes == 4 * (5 + 1 + 5 + 5 + 1 + (ITEMS.size - 5))
    assert StoredSums.from_sets(5, [0], []).metadata_bytes == 0


@pytest.mark.parametrize("budget", range(7))
def test_the_first_sets_are_a_code_of_their_own(budget):
    first = StoredSums.from_sets(5, INDPTR, ITEMS, COUNTS).first(budget)
    kept = min(budget, 5)
    assert first.num_sums == kept
    direct = set_code(5, INDPTR[: kept + 1], ITEMS[: INDPTR[kept]], COUNTS)
    for field in dataclasses.fields(direct):
        np.testing.assert_array_equal(getattr(first.code, field.name), getattr(direct, field.name))


@pytest.mark.parametrize(
    ("indptr", "items", "message"),
    [
        ([0, 1], [0], "fewer than two"),
        ([0, 2], [0, 0], "twice"),
        ([0, 2], [0, 5], "outside 0..4"),
        ([0, 2], [-1, 1], "outside 0..4"),
    ],
)
def test_broken_sets_are_refused(indptr, items, message):
    with pytest.raises(GraceError, match=message):
        set_code(5, np.array(indptr), np.array(items))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"home_indptr_N1": np.zeros(3, np.int32)}, "expected 5 items"),
        ({"set_row_R": np.zeros(5, np.int32)}, "each of 5 rows once"),
        ({"home_indptr_N1": np.array([0, 5, 4, 5, 5, 5], np.int32)}, "does not cover its sets"),
        ({"others_S": np.zeros(1, np.int32)}, "does not cover its other items"),
        ({"others_indptr_R1": np.array([0, 0, 2, 3, 5, 7], np.int32)}, "no other item"),
        ({"others_S": np.full(7, 9, np.int32)}, "outside 0..4"),
    ],
)
def test_codes_that_would_read_elsewhere_are_refused(change, message):
    sums = StoredSums.from_sets(5, INDPTR, ITEMS, COUNTS)
    with pytest.raises(GraceError, match=message):
        dataclasses.replace(sums, code=dataclasses.replace(sums.code, **change))
