"""A recorder takes no more than its share of the wall time, and the sample stays that of the stream."""

import random
import statistics
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.recorder_budget import MOST_RISE, PAUSE_S, Budget

MS = 1e-3


class World:
    """Time that passes as a test says."""

    def __init__(self, max_overhead: float, seed: int = 0, free: int = 0) -> None:
        self.now, self.computed, self.looks = 0.0, 0.0, 0
        self.budget = Budget(
            max_overhead, random.Random(seed), lambda: self.now, lambda: self.computed, free
        )

    def call(self, gap_s: float, cost_s: float) -> bool:
        """A batch comes after a gap; tell whether it was looked at, which costs."""
        self.now += gap_s
        if self.budget.passes():
            return False
        self.work(cost_s)
        self.budget.looked()
        self.looks += 1
        return True

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.computed += seconds


def steady(number: int) -> tuple[float, float]:
    return 1 * MS, 4 * MS


def uneven(number: int) -> tuple[float, float]:
    return 1 * MS, 20 * MS if number % 2 else 0.1 * MS


def in_bursts(number: int) -> tuple[float, float]:
    return 0.05 * MS if number % 20 else 20 * MS, 2 * MS


def rising(number: int) -> tuple[float, float]:
    return (1 * MS if number < 20_000 else 0.05 * MS), 1 * MS


def phases(number: int) -> tuple[float, float]:
    return 1 * MS, 10 * MS if number // 2000 % 2 else 0.2 * MS


PATTERNS = [steady, uneven, in_bursts, rising, phases]


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_its_time_stays_within_the_share(pattern, share: float) -> None:
    world, largest = World(share), 0.0
    for number in range(60_000):
        gap_s, cost_s = pattern(number)
        world.call(gap_s, cost_s)
        largest = max(largest, cost_s)
        # At any moment: the share, and a few looks that are not paid off yet.
        assert world.budget.spent_s <= share * world.now + 12 * largest
    assert 0.3 * share < world.budget.spent_s / world.now < share
    assert world.budget.passed + world.looks == 60_000


def test_the_first_looks_are_free_and_the_next_are_paid_for() -> None:
    world = World(0.01, free=30)
    assert all(world.call(1 * MS, 4 * MS) for _ in range(31))
    free_s, began = world.budget.spent_s, world.now
    for _ in range(20_000):
        world.call(1 * MS, 4 * MS)
    assert world.budget.spent_s - free_s < 0.01 * (world.now - began) + 48 * MS


def test_what_costs_less_than_the_share_sees_every_batch() -> None:
    world = World(0.05)
    for _ in range(100):
        world.call(1 * MS, 0.01 * MS)
    before = world.budget.passed
    for _ in range(1000):
        assert world.call(1 * MS, 0.01 * MS)
    assert world.budget.passed == before


def test_a_quiet_night_allows_no_burst_in_the_morning() -> None:
    world = World(0.01)
    for _ in range(20_000):
        world.call(1 * MS, 2 * MS)
    world.now += 36_000.0
    morning, looks = world.now, world.looks
    for _ in range(2000):
        world.call(1 * MS, 2 * MS)
    assert (world.looks - looks) * 2 * MS <= 0.01 * (world.now - morning) + 12 * 2 * MS


def test_a_process_that_was_stopped_is_not_blind_afterwards() -> None:
    world = World(0.01)
    for _ in range(20_000):
        world.call(1 * MS, 1 * MS)
    while world.budget.passes():
        world.now += 1 * MS
    times = world.budget.times
    world.now += 600.0  # stopped in the middle of a look: the thread did not compute
    world.budget.looked()
    assert world.budget.spent_s < 3.0
    assert world.budget.times <= MOST_RISE * times
    waited = 0
    while world.budget.passes():
        world.now += 1 * MS
        waited += 1
    assert waited * MS < 10 * PAUSE_S / 0.01


def test_without_a_bound_nothing_passes_and_no_clock_is_read() -> None:
    def read() -> float:
        raise AssertionError("a clock was read")

    budget = Budget.__new__(Budget)
    budget.__init__(None, random.Random(0), lambda: 0.0, read)  # type: ignore[misc]
    budget._clock = read
    assert not budget.passes()
    budget.looked()
    assert (budget.times, budget.passed) == (1, 0)


ITEMS, BAGS = 10, 4  # of a batch


def batch_of(rng: random.Random, items: range) -> KeyedJaggedTensor:
    """Bags of one item each."""
    return KeyedJaggedTensor(
        ["item"],
        torch.tensor([rng.choice(items) for _ in range(BAGS)]),
        lengths=torch.ones(BAGS, dtype=torch.long),
    )


def in_phases(number: int) -> bool:
    """Half of the batches are dear, many in a row."""
    return number // 400 % 2 == 1


def in_turns(number: int) -> bool:
    """Half of the batches are dear, one after each cheap one."""
    return number % 2 == 1


def sampled(dear: Callable[[int], bool], seed: int) -> Iterator[int]:
    """Record 12,000 batches: the dear ones hold items 5..9 and cost a look 40 times as much."""
    table = EmbeddingBagConfig(
        name="t", num_embeddings=ITEMS, embedding_dim=4, feature_names=["item"]
    )
    world, rng, cost = World(0.05, seed), random.Random(seed), 0.0

    def clock() -> float:
        """Read once in each look: it takes its time."""
        world.work(cost)
        return world.now

    recorder = TraceRecorder(
        nn.Sequential(EmbeddingBagCollection(tables=[table])),
        max_bags=60, min_support=1, seed=seed, clock=clock,
    )  # fmt: skip
    recorder._budget = world.budget
    kinds = [[batch_of(rng, range(first, first + 5)) for _ in range(8)] for first in (0, 5)]
    for number in range(12_000):
        world.now += 1 * MS
        cost = 4 * MS if dear(number) else 0.1 * MS
        recorder.observe(rng.choice(kinds[dear(number)]))
    assert recorder.stats.bags_held == 60
    assert recorder.stats.batches_passed > 6000
    assert recorder.stats.bags_seen == pytest.approx(12_000 * BAGS, rel=0.4)
    return iter(recorder.profile().tables["t"].trace.counts().tolist())


RUNS = 16


@pytest.mark.parametrize("dear", [in_phases, in_turns], ids=lambda dear: dear.__name__)
def test_batches_that_cost_much_are_in_the_sample_as_often_as_in_the_stream(dear) -> None:
    """The mean over independent runs is within five of its standard errors of the stream's share."""
    shares = []
    for seed in range(RUNS):
        counts = list(sampled(dear, seed))
        shares.append(sum(counts[5:]) / sum(counts))
    error = statistics.stdev(shares) / RUNS**0.5
    assert error < 0.04  # it could tell
    assert abs(statistics.mean(shares) - 0.5) < 5 * error
