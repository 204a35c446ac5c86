"""Cases that only the scoreboard reads: settings of the growth, degree of the graph, the example."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from bench.cases import degree, growth, walkthrough
from bench.run import cli
from bench.scheduling.figure7 import figure7
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.trace import Trace


def test_the_example_has_the_printed_numbers():
    found = walkthrough.walkthrough()
    assert found["weights"] == {"2-3": 3, "0-2": 2, "4-5": 2}
    assert found["anchor"] == 2
    assert found["triple"] == {"together_at_least": 0, "together_at_most": 3}
    assert (found["rows_before"], found["rows_after"], found["sums_of_five_items"]) == (15, 8, 26)


def test_sweeps_change_one_setting_and_keep_to_the_budget():
    done = CliRunner().invoke(
        growth.command, ["--generate", "300,200", "--json"], catch_exceptions=False
    )
    found = json.loads(done.stdout)
    assert [one["size_limit"] for one in found["size_limit"]] == [2, 3, 4, 5, 6, 7, 8]
    assert all(one["sums"] <= 300 for name in growth.SWEEPS for one in found[name])
    assert found["size_limit"][0]["mean_cluster_size"] == 2
    same = [found["size_limit"][2], found["tolerance"][2], found["interpolation"][2]]
    assert len({one["cut"] for one in same}) == 1  # limit 4, tolerance .4, interpolation .5


def test_a_graph_of_all_pairs_has_density_1():
    found = degree.of_trace(Trace.from_bags([[0, 1, 2, 3]] * 20, num_items=11), 1.0, 0)
    assert (found["mean_degree"], found["density"]) == (3, 1)
    assert found["cut"] == 0.75


def test_orders_that_agree_and_disagree():
    assert degree.rank_correlation([1, 5, 9], [2, 3, 4]) == 1
    assert degree.rank_correlation([1, 5, 9], [4, 3, 2]) == -1


def test_two_traces_show_no_tendency(tmp_path):
    file = tmp_path / "t.npz"
    np.savez(file, indptr=np.arange(0, 11, 2), indices=np.tile([0, 1], 5))
    done = CliRunner().invoke(cli, ["degree", "--trace", str(file), "--trace", str(file)])
    assert isinstance(done.exception, GraceError)


@pytest.mark.soak
def test_traffic_shapes_gain_more_where_traffic_is_high():
    for shapes in figure7(queries=200)["gain_percent"].values():
        assert all(gains["low"] < gains["high"] for gains in shapes.values())
