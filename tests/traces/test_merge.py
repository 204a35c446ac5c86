"""Merging, capping and sampling: nothing is lost unsaid, and shards do not matter."""

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.merge import cap_bags, concatenate, sample_bags
from grace_torchrec.traces.trace import Trace


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


def full(bags, num_items=0):
    """A trace with weights, times, marks and a note."""
    bare = Trace.from_bags(bags, num_items)
    return Trace(
        bare.offsets_B1,
        bare.ids_L,
        bare.num_items,
        np.arange(bare.num_ids, dtype=np.float32),
        np.arange(bare.num_bags),
        np.arange(bare.num_ids) % 3,
        "odd",
    )


def equal(one, other):
    names = ("offsets_B1", "ids_L", "weights_L", "time_B", "split_L")
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert (one.num_items, one.note) == (other.num_items, other.note)


bags = st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=12)


@given(bags=bags, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_pieces_of_a_trace_merge_into_it(bags, cuts):
    whole = full(bags, 50)
    ends = sorted({min(cut, len(bags)) for cut in cuts} | {0, len(bags)})
    pieces = [whole.take(np.arange(a, b)) for a, b in itertools.pairwise(ends)]
    equal(concatenate(pieces), whole)
    equal(concatenate(iter(pieces)), whole)


def test_wide_ids_stay_wide_and_items_are_the_most_of_all():
    merged = concatenate([Trace.from_bags([[1]], 9), Trace.from_bags([[2**40]])])
    assert merged.ids_L.tolist() == [1, 2**40]
    assert merged.num_items == 2**40 + 1


def test_parts_of_different_kinds_are_refused():
    with pytest.raises(GraceError, match="there are no traces"):
        concatenate([])
    for name in ("weights", "times", "split marks"):
        some = full([[1, 2]])
        kept = {
            "weights": (None, some.time_B, some.split_L),
            "times": (some.weights_L, None, some.split_L),
            "split marks": (some.weights_L, some.time_B, None),
        }[name]
        with pytest.raises(GraceError, match=f"some traces have {name}"):
            concatenate([some, Trace(some.offsets_B1, some.ids_L, 0, *kept)])


@given(bags=bags, most=st.integers(1, 13), seed=st.integers(0, 99))
def test_capped_bags_keep_a_sample_in_order_and_count_what_is_gone(bags, most, seed):
    whole = full(bags, 50)
    capped = cap_bags(whole, most, seed)
    assert capped.bags_capped == sum(len(bag) > most for bag in bags)
    assert capped.ids_dropped == sum(max(len(bag) - most, 0) for bag in bags)
    assert capped.pairs_dropped == sum(
        comb(len(bag), 2) - comb(min(len(bag), most), 2) for bag in bags
    )
    left = capped.trace
    ids_of = whole.ids_L[left.weights_L.astype(int)]  # a weight is the place of its id
    np.testing.assert_array_equal(left.ids_L, ids_of)
    np.testing.assert_array_equal(left.split_L, whole.split_L[left.weights_L.astype(int)])
    np.testing.assert_array_equal(left.time_B, whole.time_B)
    assert (np.diff(left.weights_L) > 0).all()
    for bag, kept in zip(bags, bags_of(left), strict=True):
        assert len(kept) == min(len(bag), most)
        assert len(bag) > most or kept == bag


@given(bags=bags, most=st.integers(1, 8))
def test_what_a_bag_keeps_does_not_depend_on_the_bags_around_it(bags, most):
    together = bags_of(cap_bags(Trace.from_bags(bags, 50), most).trace)
    alone = [bags_of(cap_bags(Trace.from_bags([bag], 50), most).trace)[0] for bag in bags]
    assert together == alone


def test_every_place_of_a_long_bag_is_kept_equally_often():
    trace = Trace.from_bags([list(range(n, n + 40)) for n in range(4000)])
    kept = cap_bags(trace, 10).trace
    place = kept.ids_L - np.repeat(np.arange(4000), 10)
    share = np.bincount(place, minlength=40) / 4000
    assert share.min() > 0.2
    assert share.max() < 0.3


@given(cut=st.integers(0, 200), share=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_a_sample_is_the_same_for_any_cut(cut, share, seed):
    whole = Trace.from_bags([[n] for n in range(200)])
    parts = [whole.take(np.arange(cut)), whole.take(np.arange(cut, 200))]
    sampled = sample_bags(whole, share, seed)
    again = concatenate(
        [sample_bags(parts[0], share, seed), sample_bags(parts[1], share, seed, cut)]
    )
    np.testing.assert_array_equal(sampled.ids_L, again.ids_L)


def test_a_sample_takes_about_its_share():
    whole = Trace.from_bags([[0]] * 20_000)
    assert sample_bags(whole, 0.3).num_bags == pytest.approx(6000, abs=300)
    assert sample_bags(whole, 0.3, seed=1).num_bags != sample_bags(whole, 0.3).num_bags


def test_ranges_are_checked():
    trace = Trace.from_bags([[1]])
    with pytest.raises(GraceError, match="most_ids is 0"):
        cap_bags(trace, 0)
    for share in (0, -1, 1.1, float("nan")):
        with pytest.raises(GraceError, match="share is"):
            sample_bags(trace, share)
