"""The sample is what it says: equal or decayed chances of whole bags, within its bounds."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.traces.reservoir import NextDraw, Reservoir, SampledBag

RUNS = 2000


def bag_of(number: int, size: int = 1) -> SampledBag:
    return SampledBag(np.full(size, number, np.int32), None, 0.0)


def stream(
    reservoir: Reservoir, lengths: list[int], calls: list[int], half_life: float = math.inf
) -> list[int]:
    """Offer bags in calls of several; return the numbers of those held, in order of arrival."""
    first = 0
    for size in calls:
        reservoir.offer(
            size, first / half_life, lambda k, first=first: bag_of(first + k, lengths[first + k])
        )
        first += size
    held = sorted(reservoir.entries, key=lambda entry: entry.number)
    return [int(entry.bag.ids[0]) for entry in held]


def frequencies(make, lengths, calls, half_life=math.inf) -> np.ndarray:
    counts = np.zeros(len(lengths))
    for seed in range(RUNS):
        counts[stream(make(random.Random(seed)), lengths, calls, half_life)] += 1
    return counts / RUNS


def spread(chance: float) -> float:
    """Five standard errors of a frequency."""
    return 5 * math.sqrt(chance * (1 - chance) / RUNS)


def test_every_bag_has_the_same_chance_however_it_came() -> None:
    found = frequencies(lambda r: Reservoir(5, 10**6, 1.0, NextDraw(r)), [1] * 20, [1, 7, 2, 10])
    assert found.sum() == pytest.approx(5)
    assert np.abs(found - 5 / 20).max() < spread(5 / 20)


def test_a_bound_on_ids_prefers_short_bags_by_their_share_of_it_at_most() -> None:
    lengths, most = [1, 9] * 40, 200
    found = frequencies(lambda r: Reservoir(10**6, most, 1.0, NextDraw(r)), lengths, [8] * 10)
    short, long = found[::2].mean(), found[1::2].mean()
    assert 0 <= short - long < 9 / most
    assert long > 0.45


def test_a_later_bag_weighs_more_by_its_half_lives() -> None:
    # One place: the chance of a bag is its weight over all weights.
    found = frequencies(
        lambda r: Reservoir(1, 10**6, 1.0, NextDraw(r)), [1] * 12, [1] * 12, half_life=3
    )
    weights = 2 ** (np.arange(12) / 3)
    wanted = weights / weights.sum()
    assert np.abs(found - wanted).max() < spread(wanted.max())


def test_decay_goes_on_when_weights_outgrow_a_float() -> None:
    reservoir = Reservoir(4, 10**6, 1.0, NextDraw(random.Random(0)))
    held = stream(reservoir, [1] * 4000, [1] * 4000, half_life=0.5)  # weights to 2 ** 8000
    assert len(held) == 4
    assert min(held) > 3950
    assert math.isfinite(reservoir.limit)


def test_what_came_long_ago_makes_room_and_time_may_step_back() -> None:
    reservoir = Reservoir(3, 10**6, 1.0, NextDraw(random.Random(0)))
    for number, half_lives in enumerate([0.0, 0.0, 0.0, 9000.0, 9000.0, 9000.0, 8000.0]):
        reservoir.offer(1, half_lives, lambda k, number=number: bag_of(number))
    assert sorted(int(entry.bag.ids[0]) for entry in reservoir.entries) == [3, 4, 5]


def test_a_share_is_the_chance_of_a_bag() -> None:
    found = frequencies(lambda r: Reservoir(10**6, 10**6, 0.3, NextDraw(r)), [1] * 12, [5, 7])
    assert np.abs(found - 0.3).max() < spread(0.3)


def test_few_bags_are_read_of_a_long_stream() -> None:
    reservoir, read = Reservoir(100, 10**6, 1.0, NextDraw(random.Random(1))), []
    for _ in range(1000):
        reservoir.offer(1000, 0.0, lambda k: read.append(k) or bag_of(k))
    # The harmonic sum: of a million bags about 100 * (1 + ln(10,000)) were ever taken.
    assert len(read) == pytest.approx(100 * (1 + math.log(10_000)), rel=0.15)


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), max_size=12),
    st.integers(1, 6),
    st.integers(9, 30),
    st.integers(0, 99),
)
def test_bounds_hold_and_what_is_held_came_by(calls, max_bags, max_ids, seed) -> None:
    lengths = [size for call in calls for size in call]
    reservoir = Reservoir(max_bags, max_ids, 1.0, NextDraw(random.Random(seed)))
    held = stream(reservoir, lengths, [len(call) for call in calls])
    assert len(set(held)) == len(held) <= max_bags
    assert sum(lengths[bag] for bag in held) == reservoir.num_ids <= max_ids
    assert all(-entry.minus_key < reservoir.limit for entry in reservoir.entries)
    if len(lengths) <= max_bags and sum(lengths) <= max_ids:
        assert held == list(range(len(lengths)))


def test_a_bag_that_is_not_to_be_held_takes_no_place() -> None:
    reservoir = Reservoir(3, 100, 1.0, NextDraw(random.Random(0)))
    reservoir.offer(10, 0.0, lambda k: bag_of(k) if k % 2 else None)
    assert all(int(entry.bag.ids[0]) % 2 for entry in reservoir.entries)
    assert len(reservoir.entries) == 3
