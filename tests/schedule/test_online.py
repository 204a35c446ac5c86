"""Online decisions: monitor, stream choice, embedding order, scheduler, segments."""

import random

import pytest

from bench.scheduling.costs import load_costs
from bench.scheduling.overhead import segment_graph
from grace_torchrec.errors import GraceError
from grace_torchrec.schedule._simulator_choice import choose as simulator_choice
from grace_torchrec.schedule._simulator_state import DEMAND
from grace_torchrec.schedule.embedding_order import START_RULES, EmbeddingOrder
from grace_torchrec.schedule.fusing import Workload
from grace_torchrec.schedule.lower import Use, lower
from grace_torchrec.schedule.monitor import WorkloadMonitor
from grace_torchrec.schedule.online import OnlineScheduler, launch_order
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.priority import priority
from grace_torchrec.schedule.resources import resource_groups
from grace_torchrec.schedule.segments import cut
from grace_torchrec.schedule.simulator import POLICIES, Calibration, _model, _rules, _state
from grace_torchrec.schedule.stream_choice import CHOICES, Asked, chains, recos


def test_expected_completion_is_the_queue_less_what_has_run():
    monitor = WorkloadMonitor(2)
    assert monitor.launch(0, 5.0, 28, (), 100.0) == 105
    assert monitor.launch(0, 3.0, 28, (), 101.0) == 108
    assert monitor.expected_completion_us(0, 102.0) == 6
    assert monitor.expected_completion_us(0, 150.0) == 3
    assert monitor.expected_completion_us(1, 102.0) == 0


def test_occupancy_is_blocks_of_running_operators_over_processors():
    monitor = WorkloadMonitor(3, processors=56)
    monitor.launch(0, 5.0, 28, (), 0.0)
    monitor.launch(0, 5.0, 56, (), 0.0)
    monitor.launch(1, 5.0, 999, (), 0.0)
    assert monitor.occupancy() == 1.5
    monitor.complete(0, 5.0)
    assert monitor.occupancy() == 2


def test_a_monitor_that_was_right_has_no_error():
    monitor = WorkloadMonitor(1)
    for now in (0.0, 10.0):
        done = monitor.launch(0, 5.0, 1, (), now)
        monitor.complete(0, done)
    assert monitor.mean_error_us == 0
    monitor.launch(0, 5.0, 1, (), 20.0)
    monitor.complete(0, 28.0)
    assert monitor.mean_error_us == 1
    with pytest.raises(GraceError, match="nothing to complete"):
        monitor.complete(0, 30.0)


def test_recos_takes_an_idle_stream_best_one_that_ran_the_inputs():
    monitor = WorkloadMonitor(3)
    assert recos()(Asked(0, 0, 8), monitor) == 0
    assert recos()(Asked(0, 0, 8, streams_needed=(2,)), monitor) == 2
    monitor.launch(0, 5.0, 8, (), 0.0)
    assert recos()(Asked(0, 0, 8, streams_needed=(0,)), monitor) == 1


def test_recos_takes_the_second_shortest_where_the_shortest_overloads():
    monitor = WorkloadMonitor(2, processors=56)
    monitor.launch(0, 5.0, 8, (), 0.0)
    monitor.launch(1, 9.0, 56, (), 0.0)
    assert recos(threshold=2.0)(Asked(0, 0, 28), monitor) == 0
    assert recos(threshold=1.2)(Asked(0, 0, 28), monitor) == 1


def test_recos_keeps_a_cache_on_its_stream_while_it_is_used():
    monitor = WorkloadMonitor(3)
    monitor.launch(2, 50.0, 8, ("cache",), 0.0)
    asked = Asked(0, 0, 8, resources=("cache",))
    assert recos()(asked, monitor) == 2
    monitor.complete(2, 50.0)
    assert recos()(asked, monitor) == 0


@pytest.mark.parametrize(
    ("name", "wanted"), [("TSSS", 0), ("MSSS", 1), ("TSMS", 2), ("StreamRec", 3), ("Opara", 3)]
)
def test_the_rivals_see_only_numbers(name, wanted):
    asked = Asked(op=1, query=5, grid=1, chain=2)
    assert CHOICES[name](asked, WorkloadMonitor(4)) == wanted


def test_a_chain_goes_on_until_it_is_taken():
    assert chains(OpGraph.from_needs([[], [0], [0], [1, 2], []])) == [0, 0, 1, 0, 2]


@pytest.mark.parametrize("rule", START_RULES)
def test_every_query_launches_every_embedding_once(rule):
    order = EmbeddingOrder(7, rule)
    starts = []
    for query in range(10):
        mine = order.begin_query()
        assert sorted(mine) == list(range(7))
        starts.append(mine[0])
        order.launched(mine[query % 7])
    assert (len(set(starts)) > 1) == (rule != "first")


def test_an_unknown_rule_is_refused():
    with pytest.raises(GraceError, match="half_round"):
        EmbeddingOrder(3, "middle")


@pytest.mark.parametrize("name", ["dlrm", "wide_deep", "din", "bst"])
def test_the_online_scheduler_launches_every_operator_after_what_it_needs(name):
    costs = load_costs(name, "a30")
    scheduler = OnlineScheduler(costs.graph, costs.stats, 4)
    queries = [scheduler.begin() for _ in range(3)]
    launched = [set() for _ in queries]
    pending = []
    rng = random.Random(0)
    while waiting := [k for k, done in enumerate(launched) if len(done) < len(costs.graph.ops)]:
        k = rng.choice(waiting)
        op, stream = next(queries[k])
        assert set(costs.graph.ops[op].needs) <= launched[k]
        launched[k].add(op)
        pending.append(stream)
        if rng.random() < 0.6:
            scheduler.complete(pending.pop(rng.randrange(len(pending))))
    for stream in pending:
        scheduler.complete(stream)
    assert all(next(query, None) is None for query in queries)
    assert scheduler.backlog_us == [0.0] * 4
    assert scheduler.blocks == 0


@pytest.mark.parametrize("grid", [8, 28, 56])
@pytest.mark.parametrize("threshold", [0.0, 1.2, 2.0])
def test_operators_that_are_alike_go_where_recos_sends_them(grid, threshold):
    """Queues of the same length are the rule then: the second shortest is not the shortest."""
    graph = OpGraph.from_needs([[] for _ in range(12)])
    stats = OpStats.of(graph, [OpStat(5.0, grid=grid)] * 12, "json", "")
    scheduler = OnlineScheduler(graph, stats, 3, threshold=threshold)
    monitor, choose = WorkloadMonitor(3), recos(threshold)
    for op, stream in scheduler.begin():
        assert stream == choose(Asked(op, 0, grid), monitor)
        monitor.launch(stream, 5.0, grid, (), 0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_the_simulator_chooses_as_the_policies_in_plain_python(name):
    rng = random.Random(0)
    costs = load_costs("din", "a30")
    calibration = Calibration.named()
    model = _model(Workload(costs.graph, costs.stats), POLICIES[name], calibration)
    rules = _rules(POLICIES[name], calibration, 1)
    choose = recos(calibration.threshold) if name == "RecOS" else CHOICES[name]
    for _ in range(100):
        state = _state(model, rules, slots=3, total=1, arrivals=1)
        monitor = WorkloadMonitor(rules.streams, rules.processors)
        for stream in range(rules.streams):
            launched = rng.choices(range(len(costs.graph.ops)), k=rng.randint(0, 3))
            for op in launched:
                lock = int(model.lock_n[op])
                held = (str(lock),) if lock >= 0 else ()
                monitor.launch(stream, model.time_n[op], int(model.grid_n[op]), held, 0.0)
                state.queued[stream, lock] += lock >= 0
                state.backlog_S[stream] += model.time_n[op]
            if launched:
                state.run_op[stream] = 0, launched[0]
                state.tail_S[stream] = len(launched) - 1
                state.count[DEMAND] += min(model.grid_n[launched[0]], rules.processors)
        op, query = rng.randrange(len(costs.graph.ops)), rng.randrange(9)
        state.number[1] = query
        state.stream_of[1] = [rng.randrange(rules.streams) for _ in costs.graph.ops]
        lock = int(model.lock_n[op])
        asked = Asked(
            op,
            query,
            int(model.grid_n[op]),
            (str(lock),) if rules.avoid_locks and lock >= 0 else (),
            tuple(int(state.stream_of[1, need]) for need in costs.graph.needs[op]),
            int(model.chain_n[op]),
        )
        assert simulator_choice(state, model, rules, 1, op) == choose(asked, monitor)


def test_a_cache_in_use_decides_the_stream():
    graph = OpGraph.from_needs([[], [], []]).with_resources({}, {"v1": ["c"], "v2": ["d"]})
    stats = OpStats.of(graph, [OpStat(5.0)] * 3, "json", "")
    scheduler = OnlineScheduler(graph, stats, 3)
    streams = {}
    for query in (scheduler.begin(), scheduler.begin()):
        for op, stream in query:
            streams.setdefault(op, []).append(stream)
    assert len(set(streams[0])) == len(set(streams[1])) == 1


@pytest.mark.parametrize("start", [0, 3, 25])
def test_the_worthiest_ready_operator_is_launched_first_and_embeddings_in_their_round(start):
    costs = load_costs("dlrm", "a30")
    graph = costs.graph
    worth = priority("dep_local", graph, costs.stats).tolist()
    tables = [place for place, op in enumerate(graph.ops) if op.kind == "embedding"]
    round_of = tables[start:] + tables[:start]
    order = launch_order(graph, worth, start)
    for at, op in enumerate(order):
        before = set(order[:at])
        ready = [k for k in set(range(len(graph.ops))) - before if before >= set(graph.needs[k])]
        computing = [k for k in ready if k not in tables]
        if computing:
            assert op == max(computing, key=lambda k: (worth[k], -k))
        else:
            assert op == min(ready, key=round_of.index)


def test_the_round_of_a_query_starts_behind_what_the_query_before_has_launched():
    costs = load_costs("dlrm", "a30")
    tables = [place for place, op in enumerate(costs.graph.ops) if op.kind == "embedding"]
    scheduler = OnlineScheduler(costs.graph, costs.stats, 4, start_rule="next_one")
    first = scheduler.begin()
    for op, _ in first:
        if op == tables[7]:
            break
    launched = [op for op, _ in scheduler.begin() if op in tables]
    assert launched == tables[8:] + tables[:8]


def test_caches_that_share_an_operator_are_kept_on_one_stream():
    graph = OpGraph.from_needs([[], [], [], []]).with_resources(
        {"v4": ["d"]}, {"v1": ["c"], "v2": ["c", "d"]}
    )
    stats = OpStats.of(graph, [OpStat(5.0)] * 4, "json", "")
    assert resource_groups(graph) == [0, 0, -1, 0]
    scheduler = OnlineScheduler(graph, stats, 4)
    streams = [dict(scheduler.begin()) for _ in range(2)]
    assert len({found[op] for found in streams for op in (0, 1, 3)}) == 1


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_segments_hold_every_operator_once_and_form_a_graph(schedule_of, streams):
    schedule = schedule_of("wide_deep", streams)
    runs = cut(lower(schedule), Use)
    assert sorted(op for run in runs for op in run) == list(range(len(schedule.graph.ops)))
    assert all(len({schedule.stream_n[op] for op in run}) == 1 for run in runs)
    graph, stats = segment_graph(schedule)
    assert sum(stats.times_us) == pytest.approx(sum(schedule.times_us))
    assert len(graph.ops) == len(runs) < len(schedule.graph.ops) / 3
