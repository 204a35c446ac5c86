"""Priorities: small graphs whose numbers are known."""

import numpy as np
import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.priority import PRIORITIES, perturbed, priority

# v1 -> v2 -> v3 -> v4, v3 -> v6, v5 alone: the graph of the paper's figure 3
FIGURE_3 = OpGraph.from_needs([[], [0], [1], [2], [], [2]])
STATS = OpStats.of(
    FIGURE_3, [OpStat(float(t), grid=g) for t, g in ((1, 4), (2, 8), (3, 1), (4, 2), (5, 16), (6, 2))], "json", ""
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dep_local", [1, 1, 2, 0, 0, 0]),
        ("dep_recursive", [4, 3, 2, 0, 0, 0]),
        ("time_to_end", [12, 11, 9, 4, 5, 6]),
        ("topological", [6, 5, 4, 3, 2, 1]),
        ("opara", [1 / 4, 1 / 8, 1, 1 / 2, 1 / 16, 1 / 2]),
    ],
)
def test_priorities_of_the_papers_figure_3(name, wanted):
    assert priority(name, FIGURE_3, STATS).tolist() == wanted


def test_in_degree_divides():
    join = OpGraph.from_needs([[], [], [0, 1]])
    stats = OpStats.of(join, [OpStat(1.0)] * 3, "json", "")
    assert priority("dep_local", join, stats).tolist() == [0.5, 0.5, 0]


def test_an_unknown_priority_lists_the_known_ones():
    with pytest.raises(GraceError, match=", ".join(PRIORITIES)):
        priority("dep", FIGURE_3, STATS)


def test_the_first_start_is_the_priority_itself_and_the_others_are_near():
    keys = perturbed(np.array([2.0, 1.0]), 8, 0.3, 0)
    assert keys[0].tolist() == [2, 1]
    assert bool((np.abs(keys / keys[0] - 1) <= 0.3).all())
    assert np.array_equal(keys, perturbed(np.array([2.0, 1.0]), 8, 0.3, 0))
