"""The instant guess: its properties mean what they say, its coefficients come from what is kept."""

import math

import numpy as np
import pytest

from bench.fit_guess import fit, load
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.choose import LEAST_GAIN, fit_auto
from grace_torchrec.grouping.guess import (
    COEFFICIENTS,
    METHODS,
    Properties,
    guess,
    measure_properties,
)
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

DENSE = Properties(pooling_factor=100, requests_per_item=50, recurrence=0.95)


def uniform(num_bags=1500, length=60, num_items=10_000):
    ids = np.random.default_rng(1).integers(0, num_items, num_bags * length)
    return Trace(np.arange(0, ids.size + 1, length), ids, num_items)


def test_the_coefficients_are_those_of_the_kept_measurements():
    assert fit(load()) == COEFFICIENTS


def test_properties_of_bags_that_can_be_counted_by_hand():
    # the pair 0, 1 meets in two bags, the pairs of 2, 3, 4 in one: two pairs of five recur
    known = measure_properties(Trace.from_bags([[0, 1], [1, 0], [2, 3, 4], [5]], 9))
    assert known.pooling_factor == 2
    assert known.requests_per_item == 8 / 6
    assert known.recurrence == pytest.approx(2 / 5, abs=0.05)


def test_neither_the_order_of_ids_nor_rows_that_nobody_requests_matter():
    trace = generate(400, 300, 2)
    shuffled = [
        np.random.default_rng(0).permutation(part).tolist()
        for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])
    ]
    assert measure_properties(trace) == measure_properties(Trace.from_bags(shuffled, 4000))


@pytest.mark.parametrize("allow", METHODS)
def test_bags_without_structure_are_guessed_to_gain_nothing(allow):
    for trace in (uniform(), uniform(3000, 20), Trace.from_bags([[i % 50] for i in range(500)])):
        guessed = guess(measure_properties(trace), 1.0, allow)
        assert (guessed.method, guessed.cut) == ("none", 0)
        assert set(guessed.cuts) == set(METHODS[allow])


@pytest.mark.parametrize("allow", METHODS)
def test_the_guess_is_the_method_of_the_greatest_expected_cut(allow):
    guessed = guess(DENSE, 1.0, allow)
    assert guessed.method in METHODS[allow]
    assert guessed.cut == guessed.cuts[guessed.method] == max(guessed.cuts.values()) > LEAST_GAIN


def test_more_budget_and_more_recurrence_promise_more():
    cuts = [guess(DENSE, share).cut for share in (0.25, 0.5, 1.0)]
    assert cuts == sorted(cuts)
    rarer = Properties(DENSE.pooling_factor, DENSE.requests_per_item, 0.4)
    assert guess(rarer, 1.0).cut < guess(DENSE, 1.0).cut


def test_a_generated_trace_cuts_about_what_is_guessed():
    split = split_bags(generate(2000, 3000, 5), 0)
    guessed = guess(measure_properties(split.train), 1.0, "ahead")
    choice = fit_auto(split.fit, split.validation, split.train, 2000, "ahead")
    assert guessed.cut == pytest.approx(count_reads(split.test, choice.sums).cut, abs=0.1)


@pytest.mark.parametrize("name", ["ml100k", "retail"])
def test_the_guess_of_a_real_trace_is_close(trace_path, name):
    split = split_bags(read_npz(trace_path(name)), 0)
    measured = next(row for row in load() if row.trace == name and row.budget_share == 1.0)
    guessed = guess(measure_properties(split.train), 1.0, "ahead")
    assert guessed.cut == pytest.approx(measured.cuts[guessed.method], abs=0.08)


@pytest.mark.parametrize("share", [-0.1, math.inf, math.nan])
def test_a_budget_that_is_no_share_is_refused(share):
    with pytest.raises(GraceError, match="budget_share"):
        guess(DENSE, share)


def test_no_budget_and_no_bags_give_no_sums():
    assert guess(DENSE, 0.0).method == "none"
    assert guess(measure_properties(Trace.from_bags([])), 1.0).method == "none"
