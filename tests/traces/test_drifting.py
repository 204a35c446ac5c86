"""Periods are alike but for the items that moved."""

import itertools

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.drifting import generate_periods, without_structure

WORLD = {"pooling": (5, 20), "community_size": 5}


def pairs_shared(one, other) -> float:
    """Share of the frequent pairs of one period that are frequent in the other."""
    frequent = []
    for trace in (one, other):
        ends, counts = trace.offsets_B1, {}
        for a, b in itertools.pairwise(ends):
            bag = np.unique(trace.ids_L[a:b]).tolist()
            for k, item in enumerate(bag):
                for second in bag[k + 1 :]:
                    counts[item, second] = counts.get((item, second), 0) + 1
        frequent.append(set(sorted(counts, key=counts.__getitem__)[-100:]))
    return len(frequent[0] & frequent[1]) / 100


def test_the_more_items_move_the_fewer_pairs_stay() -> None:
    shares = [
        pairs_shared(*generate_periods(200, 600, 2, moved=moved, **WORLD))
        for moved in (0.0, 0.25, 1.0)
    ]
    assert shares[0] > 0.6 > 0.1 > shares[2]
    assert shares[0] > shares[1] > shares[2]


def test_periods_have_the_shape_of_the_world_and_a_seed_means_the_same() -> None:
    first = generate_periods(200, 50, 3, **WORLD)
    again = generate_periods(200, 50, 3, **WORLD)
    assert [trace.num_bags for trace in first] == [50, 50, 50]
    assert all(np.array_equal(a.ids_L, b.ids_L) for a, b in zip(first, again, strict=True))
    popular = [np.sort(trace.counts())[-20:].sum() / trace.num_ids for trace in first]
    assert max(popular) - min(popular) < 0.1


def test_without_structure_lengths_stay_and_items_are_alike() -> None:
    (trace,) = generate_periods(200, 500, 1, **WORLD)
    flat = without_structure(trace)
    assert np.array_equal(flat.offsets_B1, trace.offsets_B1)
    assert flat.counts().max() < 2 * flat.counts().mean() < trace.counts().max()


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(GraceError, match="periods"):
        generate_periods(10, 10, 0)
    with pytest.raises(GraceError, match="moved"):
        generate_periods(10, 10, 1, moved=1.5)
