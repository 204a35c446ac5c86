"""Measuring: entrants take turns, figures are taken over rounds."""

import numpy as np
import pytest

from bench.measure import machine
from grace_torchrec.errors import GraceError
from grace_torchrec.timing import Samples, interleave


def test_every_entrant_runs_once_a_round_and_the_first_one_changes():
    calls = []
    samples = interleave(
        {name: lambda name=name: calls.append(name) for name in "ABC"}, rounds=3, warmup=1
    )
    rounds = [calls[k : k + 3] for k in range(0, 12, 3)]
    assert all(sorted(one) == ["A", "B", "C"] for one in rounds)
    assert [one[0] for one in rounds[1:]] == ["A", "B", "C"]
    assert {name: s.values_R.size for name, s in samples.items()} == {"A": 3, "B": 3, "C": 3}


def test_ratios_are_taken_round_by_round():
    stock, ours = Samples(np.array([2.0, 20.0, 6.0])), Samples(np.array([1.0, 10.0, 2.0]))
    assert stock.over(ours).values_R.tolist() == [2, 2, 3]
    assert stock.over(ours).median == 2


def test_quantiles():
    samples = Samples(np.arange(11.0))
    assert samples.summary() == {"median": 5, "q20": 2, "q80": 8}


def test_samples_of_different_runs_have_no_ratio():
    with pytest.raises(GraceError, match="measure both together"):
        Samples(np.ones(2)).over(Samples(np.ones(3)))


@pytest.mark.parametrize(("entrants", "rounds"), [({}, 3), ({"A": int}, 0)])
def test_nothing_to_measure_is_refused(entrants, rounds):
    with pytest.raises(GraceError, match="one or more of both"):
        interleave(entrants, rounds)


def test_machine_names_what_a_figure_depends_on():
    assert {"processor", "cores", "load", "commit"} <= set(machine())
