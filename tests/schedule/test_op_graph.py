"""Op graphs: order, parallel share, critical path, resources, files."""

import itertools

import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import Op, OpGraph


def test_parallel_share_counts_operators_with_an_unordered_partner():
    chain = OpGraph.from_needs([[], [0], [1]])
    fork = OpGraph.from_needs([[], [0], [0], [1, 2]])
    assert chain.parallel_share() == 0
    assert fork.parallel_share() == 0.5
    assert OpGraph("none", ()).parallel_share() == 0


def test_parallel_share_is_that_of_brute_force():
    needs = [[], [], [0], [0, 1], [3], [2], [4, 5], []]
    graph = OpGraph.from_needs(needs)
    reach = {(a, b) for b, found in enumerate(needs) for a in found}
    for mid, a, b in itertools.product(range(8), repeat=3):
        if (a, mid) in reach and (mid, b) in reach:
            reach.add((a, b))
    for mid, a, b in itertools.product(range(8), repeat=3):
        if (a, mid) in reach and (mid, b) in reach:
            reach.add((a, b))
    alone = [
        a for a in range(8) if all((a, b) in reach or (b, a) in reach or a == b for b in range(8))
    ]
    assert graph.parallel_share() == 1 - len(alone) / 8


def test_critical_path_is_the_heaviest_not_the_longest():
    graph = OpGraph.from_needs([[], [0], [1], [0]])
    assert graph.critical_path([1, 1, 1, 10]) == 11


@pytest.mark.parametrize("needs", [(1,), (0,), (-1,)])
def test_an_operator_must_follow_what_it_needs(needs):
    with pytest.raises(GraceError, match="list operators after those they need"):
        OpGraph("g", (Op("a", "other", needs),))


def test_names_are_unique():
    with pytest.raises(GraceError, match="share a name"):
        OpGraph("g", (Op("a", "other", ()), Op("a", "other", ())))


def test_a_resource_orders_writes_and_reads_as_the_model_calls_them():
    graph = OpGraph.from_needs([[], [], [], []]).with_resources(
        reads={"v1": ["w"], "v2": ["w"], "v4": ["w"]}, writes={"v3": ["w"]}
    )
    assert [op.needs for op in graph.ops] == [(), (), (0, 1), (2,)]


def test_a_resource_of_no_operator_is_refused():
    with pytest.raises(GraceError, match="no operator 'v9'"):
        OpGraph.from_needs([[]]).with_resources({}, {"v9": ["cache"]})


def test_the_fingerprint_knows_structure_and_not_names():
    graph = OpGraph.from_needs([[], [0]], "a")
    assert graph.fingerprint() == OpGraph.from_needs([[], [0]], "b").fingerprint()
    assert graph.fingerprint() != OpGraph.from_needs([[], []]).fingerprint()
    assert graph.fingerprint() != graph.with_resources({}, {"v1": ["c"]}).fingerprint()


def test_json_keeps_everything():
    graph = OpGraph.from_needs([[], [0]]).with_resources({"v2": ["w"]}, {"v1": ["c"]})
    assert OpGraph.from_json(graph.to_json()) == graph
    with pytest.raises(GraceError, match="not readable"):
        OpGraph.from_json({"name": "x", "ops": [{"what": 1}]})
