"""Generated traces keep their promises: no repeats, exact pooling, communities that pay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import CHUNK_BAGS, generate


def repeated_share(trace):
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    return 1 - np.unique(bag_L * trace.num_items + trace.ids_L).size / trace.num_ids


@settings(max_examples=40)
@given(
    num_items=st.integers(1, 400),
    num_bags=st.integers(0, 30),
    seed=st.integers(0, 1000),
    community_size=st.integers(1, 50),
    memberships=st.floats(0.1, 4),
    users=st.integers(1, 8),
    global_share=st.floats(0, 1),
    zipf=st.floats(0, 50),
    data=st.data(),
)
def test_bags_have_their_length_and_no_id_twice(
    num_items, num_bags, seed, community_size, memberships, users, global_share, zipf, data
):
    low = data.draw(st.integers(1, num_items))
    high = data.draw(st.integers(low, num_items))
    trace = generate(
        num_items,
        num_bags,
        seed,
        pooling=(low, high),
        community_size=community_size,
        memberships=memberships,
        communities_per_user=users,
        global_share=global_share,
        zipf=zipf,
    )
    lengths = np.diff(trace.offsets_B1)
    assert (trace.num_bags, trace.num_items) == (num_bags, num_items)
    assert ((lengths >= low) & (lengths <= high)).all()
    assert not trace.num_ids or repeated_share(trace) == 0


def test_equal_arguments_give_equal_traces_and_another_seed_another():
    one, same, other = generate(800, 300, 5), generate(800, 300, 5), generate(800, 300, 6)
    assert (one.ids_L == same.ids_L).all()
    assert (one.offsets_B1 == same.offsets_B1).all()
    assert one.num_ids != other.num_ids or (one.ids_L != other.ids_L).any()


def test_default_pooling_spans_the_range_of_the_paper():
    lengths = np.diff(generate(2000, 4000).offsets_B1)
    assert lengths.min() == 30
    assert 140 <= lengths.max() <= 145
    assert 60 < lengths.mean() < 75


def test_more_bags_than_one_chunk_keep_the_promises():
    trace = generate(300, CHUNK_BAGS + 5, pooling=(2, 6))
    assert trace.num_bags == CHUNK_BAGS + 5
    assert repeated_share(trace) == 0


def test_popularity_is_steeper_with_a_larger_exponent():
    shares = []
    for zipf in (0.0, 0.8, 1.6):
        counts = np.sort(generate(2000, 500, zipf=zipf, global_share=1.0).counts())
        shares.append(counts[-200:].sum() / counts.sum())
    assert shares[0] < 0.2 < shares[1] < shares[2]


def test_repeats_take_the_share_that_was_asked_for():
    trace = generate(3000, 1000, repeats=0.2)
    assert repeated_share(trace) == pytest.approx(0.2, abs=0.01)
    assert (np.diff(trace.offsets_B1) >= 30).all()


def test_ids_of_a_bag_are_in_no_order_of_the_items():
    trace = generate(2000, 200)
    rises = np.diff(trace.ids_L.astype(np.int64)) > 0
    assert 0.4 < rises.mean() < 0.6


def pair_chunk_cut(trace):
    """Cut of the plainest grouping: each item with its most frequent free partner, in pairs."""
    split = split_bags(trace)
    num_items, fit = trace.num_items, split.train
    bag_L = np.repeat(np.arange(fit.num_bags), np.diff(fit.offsets_B1))
    seen = np.zeros((fit.num_bags, num_items), np.float32)
    seen[bag_L, fit.ids_L] = 1
    together = seen.T @ seen
    np.fill_diagonal(together, 0)
    partner = np.arange(num_items)
    for item in np.argsort(-fit.counts(), kind="stable"):
        if partner[item] == item:
            free = np.where(partner == np.arange(num_items), together[item], -1)
            free[item] = -1
            best = int(free.argmax())
            partner[item], partner[best] = best, item
    test = split.test
    pair_L = np.minimum(test.ids_L, partner[test.ids_L]).astype(np.int64)
    bag_L = np.repeat(np.arange(test.num_bags), np.diff(test.offsets_B1))
    return 1 - np.unique(bag_L * num_items + pair_L).size / test.num_ids


def test_communities_pay_on_bags_that_were_not_seen():
    dense = pair_chunk_cut(generate(1000, 1500))
    shuffled = pair_chunk_cut(generate(1000, 1500, global_share=1.0))
    assert dense > 0.15
    assert shuffled < dense / 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_items": 0},
        {"num_items": 100},
        {"num_bags": -1},
        {"pooling": (0, 5)},
        {"pooling": (9, 5)},
        {"zipf": -1.0},
        {"zipf": float("nan")},
        {"member_skew": 0.0},
        {"community_size": 0},
        {"memberships": 0.0},
        {"communities_per_user": 0},
        {"global_share": 1.5},
        {"repeats": 1.0},
        {"repeats": -0.1},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(GraceError, match="generate: "):
        generate(**{"num_items": 500, "num_bags": 3, **arguments})


@pytest.mark.soak
def test_a_million_bags_fit_in_bounded_memory():
    trace = generate(1_000_000, 1_000_000)
    assert trace.num_bags == 1_000_000
    assert trace.ids_L.dtype == np.int32
    assert 65 < trace.pooling_factor < 72
