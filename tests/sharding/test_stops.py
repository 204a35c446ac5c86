"""Stops: HBM is filled until both memories are busy alike, and no further than bags agree on."""

import numpy as np
import pytest

from grace_sharding.stops import Curve, draws
from grace_sharding.variants import GROUPS

RUNGS, RUNG_BYTES, RUNG_READS = 10, 64.0, 110.0


def curve(hbm_rate, host_rate, reads=RUNG_READS):
    """Ten equal rungs, one resampling, nothing that stays in host memory."""
    steps = np.arange(RUNGS + 1.0)
    return Curve(steps * RUNG_BYTES, (steps * reads)[:, None], np.zeros(1), hbm_rate, host_rate)


def test_filling_stops_where_both_memories_are_busy_alike():
    stop, time_s = curve(hbm_rate=10.0, host_rate=1.0).best(10**6, exact=True)
    all_reads = RUNGS * RUNG_READS
    assert time_s == pytest.approx(all_reads / 11, rel=0.02)  # the rates add up
    assert stop == pytest.approx(RUNGS * RUNG_BYTES * 10 / 11, rel=0.1)


def test_hbm_is_filled_where_stopping_early_saves_next_to_nothing():
    stop, time_s = curve(hbm_rate=1000.0, host_rate=1.0).best(10**6, exact=True)
    assert stop == RUNGS * RUNG_BYTES
    assert time_s == pytest.approx(RUNGS * RUNG_READS / 1000)


def test_a_small_hbm_is_filled_to_its_last_byte():
    stop, time_s = curve(hbm_rate=10.0, host_rate=1.0).best(int(2.5 * RUNG_BYTES), exact=True)
    assert stop == 2.5 * RUNG_BYTES
    assert time_s == pytest.approx((RUNGS - 2.5) * RUNG_READS)


def test_resamplings_weigh_as_much_as_all_groups():
    drawn_WG = draws()
    assert (drawn_WG.sum(axis=1) == GROUPS).all()
    assert drawn_WG.std(axis=0).min() > 0  # no group is in all of them alike
