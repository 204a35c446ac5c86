"""Batches: bags stay whole and in source order, except for the candidate that is held out."""

import itertools

import numpy as np

from grace_torchrec.demo.batches import history_batches
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

TRACE = generate(300, 130, seed=3)


def bags_of(batches):
    return [
        bag.tolist()
        for batch in batches
        for bag in batch.bags["history"].values().split(batch.bags["history"].lengths().tolist())
    ]


def test_whole_bags_come_in_order_with_their_ids_in_source_order():
    ends = TRACE.offsets_B1
    want = [TRACE.ids_L[a:b].tolist() for a, b in itertools.pairwise(ends)]
    assert bags_of(history_batches(TRACE, 50)) == want


def test_a_positive_candidate_is_taken_out_of_its_own_bag():
    batches = list(history_batches(TRACE, 50, hold_out=True))
    held = bags_of(batches)
    whole = bags_of(history_batches(TRACE, 50))
    labels = np.concatenate([batch.labels for batch in batches])
    candidates = np.concatenate([batch.bags["candidate"].values() for batch in batches])
    assert set(labels) == {0.0, 1.0}
    for bag, full, label, candidate in zip(held, whole, labels, candidates, strict=True):
        assert full == ([*bag, candidate] if label else bag)


def test_a_seed_means_the_same_batches():
    one, two = (list(history_batches(TRACE, 50, seed=4)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert a.dense.equal(b.dense)
        assert a.labels.equal(b.labels)


def test_empty_bags_are_never_positive():
    batch = next(history_batches(Trace.from_bags([[], [], []], num_items=4)))
    assert batch.labels.sum() == 0
    assert batch.bags["history"].values().numel() == 0
