"""Sums as arrays: what comes back is equal to the last byte, and what is damaged is one clear error."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.sums.arrays import ARRAY_TYPES, code_kind, from_arrays, parts_of, to_arrays
from grace_torchrec.sums.stored_sums import StoredSums

NUM_ITEMS = 12


@st.composite
def stored_sums(draw):
    """Sums of each code over twelve items."""
    kind = draw(st.sampled_from(sorted(ARRAY_TYPES)))
    order = draw(st.permutations(range(NUM_ITEMS)))
    if kind == "sets":
        a_set = st.lists(st.sampled_from(order), min_size=2, max_size=8, unique=True)
        sets = draw(st.lists(a_set, max_size=9))
        counts = draw(st.none() | st.lists(st.integers(0, 3), min_size=12, max_size=12))
        items = np.array([item for one in sets for item in one], np.int64)
        indptr = np.cumsum([0, *map(len, sets)])
        counts = None if counts is None else np.array(counts)
        return StoredSums.from_sets(NUM_ITEMS, indptr, items, counts)
    sizes = draw(st.sampled_from([[], [2], [8, 4], [3, 2, 5], [2, 2, 2, 2]]))
    offsets = np.cumsum([0, *sizes])
    members = np.array(order[: offsets[-1]], np.int64)
    if kind == "clusters":
        return StoredSums.from_clusters(NUM_ITEMS, offsets, members)
    starts = np.cumsum([0, *(2**size for size in sizes)])
    masks = [
        int(start) + mask
        for start, size in zip(starts, sizes, strict=False)
        for mask in range(2**size)
        if mask.bit_count() > 1
    ]
    entries = draw(st.lists(st.sampled_from(masks), unique=True, max_size=20)) if masks else []
    return StoredSums.from_subsets(NUM_ITEMS, offsets, members, np.array(entries, np.int64))


def assert_equal(one: StoredSums, other: StoredSums) -> None:
    assert (one.num_items, type(one.code)) == (other.num_items, type(other.code))
    pairs = [
        (one.set_indptr_R1, other.set_indptr_R1),
        (one.set_items_S, other.set_items_S),
        *((getattr(one.code, f.name), getattr(other.code, f.name)) for f in dataclasses.fields(one.code)),
    ]  # fmt: skip
    for first, second in pairs:
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)


@given(stored_sums())
def test_sums_come_back_equal_from_their_arrays(sums) -> None:
    arrays = {name: array.copy() for name, array in to_arrays(sums).items()}
    assert_equal(from_arrays(code_kind(sums), NUM_ITEMS, arrays), sums)


def damaged(array):
    """Yield what is not the array: other types, shapes, and every entry changed."""
    yield from (array.astype(np.float64), array.astype(np.int16), array[None], array[:-1])
    yield np.append(array, np.array([1], array.dtype))
    for place in range(array.size):
        for value in (-1, int(array[place]) + 1, int(array[place]) - 1, 12, 2**31 - 1):
            other = array.copy()
            other[place] = value
            yield other


@given(stored_sums(), st.data())
def test_damage_to_an_array_is_an_error_or_other_sums_that_keep_the_law(sums, data) -> None:
    """Clusters and codes are stored twice over, sets too: damage to one array is never missed."""
    arrays = to_arrays(sums)
    name = data.draw(st.sampled_from(sorted(arrays)))
    changed = [
        other
        for other in damaged(arrays[name])
        if other.dtype != arrays[name].dtype or not np.array_equal(other, arrays[name])
    ]
    other = data.draw(st.sampled_from(changed))
    kind = code_kind(sums)
    try:
        found = from_arrays(kind, NUM_ITEMS, {**arrays, name: other})
    except GraceError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    # Entries alone say which subsets are stored, and a set may name its items in another order.
    assert name in ("entries", "set_items", "others")
    assert_equal(from_arrays(kind, NUM_ITEMS, to_arrays(found)), found)


@pytest.mark.parametrize("kind", sorted(ARRAY_TYPES))
def test_arrays_of_another_kind_or_table_are_refused(kind) -> None:
    sums = {
        "clusters": StoredSums.from_clusters(9, np.array([0, 3]), np.array([4, 1, 8])),
        "subsets": StoredSums.from_subsets(
            9, np.array([0, 3]), np.array([4, 1, 8]), np.array([3, 7])
        ),
        "sets": StoredSums.from_sets(9, np.array([0, 2, 5]), np.array([1, 2, 2, 3, 4])),
    }[kind]
    arrays = to_arrays(sums)
    for other in ARRAY_TYPES:
        if other != kind:
            with pytest.raises(GraceError, match="stored sums: arrays are"):
                from_arrays(other, 9, arrays)
    with pytest.raises(GraceError, match="entries for 8 rows"):
        from_arrays(kind, 8, arrays)
    with pytest.raises(GraceError, match=f"entries for {2**47} rows"):  # nothing is allocated
        from_arrays(kind, 2**47, arrays)
    for name in arrays:
        with pytest.raises(GraceError, match="stored sums: arrays are"):
            from_arrays(kind, 9, {key: array for key, array in arrays.items() if key != name})
    with pytest.raises(GraceError, match="code 'pickle'"):
        from_arrays("pickle", 9, arrays)


def test_parts_of_masks_are_kept_and_must_split_them() -> None:
    sums = StoredSums.from_subsets(9, np.array([0, 3]), np.array([4, 1, 8]), np.array([3, 7]))
    arrays, parts = to_arrays(sums), parts_of(sums)
    assert parts.tolist() == [0, 1, 2, 3, 4, 1, 2, 7]
    assert_equal(from_arrays("subsets", 9, arrays, parts), sums)
    more_parts = np.array([0, 1, 2, 1, 4, 1, 2, 3], np.uint8)
    assert from_arrays("subsets", 9, arrays, more_parts).code.next_E is more_parts
    wrong = [
        parts[:-1],
        parts.astype(np.int64),
        *(np.where(np.arange(8) == mask, part, parts).astype(np.uint8)
          for mask, part in [(0, 1), (5, 0), (5, 5), (5, 3), (6, 6), (7, 4), (7, 255)]),
    ]  # fmt: skip
    for other in wrong:
        with pytest.raises(GraceError, match="stored sums"):
            from_arrays("subsets", 9, arrays, other)
    with pytest.raises(GraceError, match="sets have no masks"):
        from_arrays("sets", 9, arrays_of_sets(), parts)


def arrays_of_sets():
    """Arrays of two sets of nine items."""
    return to_arrays(StoredSums.from_sets(9, np.array([0, 2, 5]), np.array([1, 2, 2, 3, 4])))


def test_a_code_that_carries_other_sets_than_the_stored_ones_is_refused() -> None:
    sums = StoredSums.from_sets(6, np.array([0, 2, 4]), np.array([0, 1, 2, 3]))
    other = StoredSums.from_sets(6, np.array([0, 2, 4]), np.array([0, 1, 2, 4]))
    arrays = to_arrays(sums)
    with pytest.raises(GraceError, match="carries sets that are not stored"):
        from_arrays("sets", 6, {**arrays, "others": to_arrays(other)["others"]})
    twice = {**arrays, "set_items": np.array([1, 1, 2, 3])}
    with pytest.raises(GraceError, match="holds an item twice"):
        from_arrays("sets", 6, twice)
