"""GRACE with one price: no cluster grows for less than the floor, and validation sets it."""

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.candidates import judge
from grace_torchrec.grouping.counted import CountedTrace
from grace_torchrec.grouping.grace_floor import best_floor, fit, floor_cuts
from grace_torchrec.grouping.paper_greedy import fit as greedy
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def test_it_is_the_paper_s_growth_with_a_floor():
    trace = generate(300, 200, 1)
    for floor in (0.0, 1.0, 3.5, 20.0):
        ours, paper = (
            fit(trace, 200, floor=floor),
            greedy(trace, 200, tolerance=floor, policy="floor"),
        )
        np.testing.assert_array_equal(ours.set_items_S, paper.set_items_S)


def test_a_higher_floor_stores_less_and_one_that_nothing_reaches_stores_nothing():
    trace = generate(300, 200, 1)
    stored = [fit(trace, 300, floor=floor).num_sums for floor in (1.0, 5.0, 25.0, 1e6)]
    assert stored == sorted(stored, reverse=True)
    assert stored[-1] == 0


def test_validation_picks_the_best_floor_tried_and_scales_it_to_all_train_bags():
    split = split_bags(generate(400, 300, 1), 0)
    counted = CountedTrace(split.fit, 400, split.fit.num_bags)
    found = judge(counted, split.validation, 400, ("grace_floor",))
    floors = {name: float(name.removeprefix("grace_floor floor=")) for name in found.cuts}
    for name, cut in found.cuts.items():
        sums = fit(split.fit, 400, floor=floors[name])
        assert cut == count_reads(split.validation, sums).cut
    best = found.best["grace_floor"].candidate
    assert found.cuts[best.name] == max(found.cuts.values()) > 0
    scale = split.train.num_bags / split.fit.num_bags
    refit = fit(split.train, 400, floor=floors[best.name] * scale)
    again = best.build(CountedTrace(split.train, 400, split.fit.num_bags), 400)
    np.testing.assert_array_equal(again.set_items_S, refit.set_items_S)


@pytest.mark.parametrize("peak", [0.25, 1.3, 7.0, 90.0, 256.0])
def test_the_search_ends_near_the_best_floor_of_a_curve_with_one_peak(peak):
    cuts = floor_cuts(lambda floor: -abs(np.log(floor / peak)))
    assert abs(np.log(best_floor(cuts) / peak)) <= np.log(2) / 4 + 1e-9
    assert len(cuts) <= 10


def test_equal_cuts_go_to_the_higher_floor():
    assert best_floor({1.0: 0.2, 4.0: 0.2, 16.0: 0.1}) == 4.0


@pytest.mark.parametrize(("budget", "floor"), [(-1, 1.0), (3, -0.5), (3, float("nan"))])
def test_arguments_outside_their_range_are_refused(budget, floor):
    with pytest.raises(GraceError):
        fit(Trace.from_bags([[0, 1]]), budget, floor=floor)
