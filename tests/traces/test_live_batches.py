"""A part of a batch: every sample is in one of them, and the bags are those of its samples."""

import random

import pytest
import torch
from torchrec import KeyedJaggedTensor

from grace_torchrec.traces.live_batches import LiveBatch, LiveTable

TABLE = LiveTable("t", ("a", "b"), 1000, is_weighted=False)


class Chosen(random.Random):
    """Draws the part that a test names."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def randrange(self, *bounds: int) -> int:
        """Return it."""
        assert self.part < bounds[0]
        return self.part


def batch(stride: int) -> LiveBatch:
    """Bags of one id: 0 .. stride - 1 of feature a, from 100 on of feature b."""
    ids = torch.cat([torch.arange(stride), 100 + torch.arange(stride)])
    return LiveBatch(
        KeyedJaggedTensor(keys=["a", "b"], values=ids, lengths=torch.ones(2 * stride).long())
    )


@pytest.mark.parametrize("stride", [0, 1, 5, 31, 32, 33, 64, 1000])
def test_every_sample_is_in_one_part(stride):
    parts = batch(stride).keep_part(64, Chosen(0))
    seen = []
    for part in range(parts):
        live = batch(stride)
        assert live.keep_part(64, Chosen(part)) == parts
        assert live.samples * 2 <= 64
        seen += range(live.first, live.first + live.samples)
    assert seen == list(range(stride))


def test_bags_of_a_part_are_those_of_its_samples():
    live = batch(100)
    live.keep_part(20, Chosen(3))
    assert (live.first, live.samples) == (30, 10)
    assert live.bag(0, 4, TABLE)[0].tolist() == [34]
    assert live.bag(1, 9, TABLE)[0].tolist() == [139]


def test_a_sample_of_many_features_is_not_cut():
    live = batch(3)
    assert live.keep_part(1, Chosen(2)) == 3
    assert (live.first, live.samples) == (2, 1)
