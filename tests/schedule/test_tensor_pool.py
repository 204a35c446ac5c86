"""Tensor pool and lifetimes: bounds that hold whatever the streams do."""

import random

import pytest

from bench.scheduling.memory import FakeStreams
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.lifetimes import lifetimes, peak_bytes, peak_over_single_stream
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.schedule import Machine, single_stream
from grace_torchrec.schedule.tensor_pool import EpochPool


class Value:
    alive = 0

    def __init__(self):
        Value.alive += 1

    def __del__(self):
        Value.alive -= 1


@pytest.mark.parametrize("seed", range(10))
def test_no_more_than_the_budget_and_one_value_is_held(seed):
    rng = random.Random(seed)
    budget, streams = rng.randint(1, 5000), rng.randint(1, 6)
    fake = FakeStreams()
    pool = EpochPool(fake.record, fake.is_done, budget, streams, fake.synchronize)
    largest = 0
    for _ in range(500):
        fake.now += rng.random() < 0.5
        size = rng.randint(1, 400)
        largest = max(largest, size)
        pool.retire(None, size, rng.randrange(streams))
        assert pool.held_bytes <= budget + largest
    assert pool.peak_bytes <= budget + largest


def test_a_value_lives_until_its_epochs_event_is_done():
    done = []
    pool = EpochPool(lambda stream: len(done), lambda event: event in done, 100, 1)
    pool.retire(Value(), 49, 0)
    assert (pool.events, Value.alive) == (0, 1)
    pool.retire(Value(), 1, 0)
    assert (pool.events, Value.alive) == (1, 2)
    assert pool.poll() == 0
    assert Value.alive == 2
    done.append(0)
    assert pool.poll() == 2
    assert (Value.alive, pool.held_bytes) == (0, 0)


def test_a_slow_epoch_does_not_keep_a_finished_one():
    done = set()
    pool = EpochPool(lambda stream: stream, lambda event: event in done, 40, 2)
    pool.retire(Value(), 10, 0)
    pool.retire(Value(), 10, 1)
    done.add(1)
    assert pool.poll() == 1
    assert pool.held_bytes == 10
    done.add(0)
    pool.drain()
    assert Value.alive == 0


def test_an_epoch_costs_one_event_however_many_values():
    fake = FakeStreams()
    pool = EpochPool(fake.record, fake.is_done, 2000, 1, fake.synchronize)
    for _ in range(1000):
        pool.retire(None, 1, 0)
    assert pool.events == 1


@pytest.mark.parametrize(("budget", "streams"), [(0, 1), (1, 0)])
def test_an_impossible_pool_is_refused(budget, streams):
    with pytest.raises(GraceError, match="tensor pool"):
        EpochPool(lambda s: s, lambda e: True, budget, streams)


def test_one_stream_lets_go_at_the_last_use():
    graph = OpGraph.from_needs([[], [0], [1], [2]])
    stats = OpStats.of(graph, [OpStat(1.0, bytes_out=b) for b in (8, 4, 2, 1)], "json", "")
    lowered = lower(single_stream(graph, stats, Machine(1), "test"))
    assert peak_bytes(lifetimes(lowered, [8, 4, 2, 1])) == 12
    assert peak_over_single_stream(lowered, stats) == 1


def test_dlrm_wide_deep_and_bst_need_little_more_memory_than_one_stream(schedule_of):
    from bench.scheduling.costs import load_costs

    for name in ("dlrm", "wide_deep", "bst"):
        for streams in (2, 4, 8):
            lowered = lower(schedule_of(name, streams))
            assert peak_over_single_stream(lowered, load_costs(name).stats) <= 1.1
