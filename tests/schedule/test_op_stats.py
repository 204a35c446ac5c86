"""Costs: files, profiles of the CPU, of torch.profiler and of Nsight Systems, estimates."""

import json
import sqlite3

import pytest

from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.models.bundled import bundled
from grace_torchrec.schedule.launches import RANGE_PREFIX, from_chrome_trace, from_nsight
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import CostFile, OpStat, OpStats
from grace_torchrec.schedule.profiling import profile_cpu
from grace_torchrec.schedule.roofline import A30, H200, roofline
from grace_torchrec.schedule.tracing import op_graph, trace

GRAPH = OpGraph.from_needs([[], [0]])


def stats(*times, graph=GRAPH):
    return OpStats.of(graph, [OpStat(float(t)) for t in times], "json", "test")


@pytest.mark.parametrize("stat", [OpStat(-1.0), OpStat(float("nan")), OpStat(1.0, grid=0)])
def test_impossible_costs_are_refused(stat):
    with pytest.raises(GraceError, match="op stats: operator 1"):
        OpStats.of(GRAPH, [OpStat(1.0), stat], "json", "test")


def test_costs_of_another_graph_are_refused():
    with pytest.raises(PlanMismatch, match="profile it anew"):
        stats(1, 2).check(OpGraph.from_needs([[], []]))


def test_a_cost_file_comes_back_whole(tmp_path):
    graph = GRAPH.with_resources({}, {"v1": ["cache"]})
    file = CostFile(graph, stats(1.5, 2, graph=graph), "a note")
    file.save(tmp_path / "c.json")
    assert CostFile.load(tmp_path / "c.json") == file


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=9),
        lambda d: d.pop("ops"),
        lambda d: d.update(fingerprint="0"),
        lambda d: d["ops"][0].update(time_us="x"),
        lambda d: d["ops"][1].update(needs=[5]),
    ],
    ids=["format", "no ops", "fingerprint", "time", "needs"],
)
def test_a_damaged_cost_file_is_refused(tmp_path, change):
    path = tmp_path / "c.json"
    CostFile(GRAPH, stats(1, 2)).save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(GraceError):
        CostFile.load(path)


def test_a_missing_cost_file_is_named(tmp_path):
    with pytest.raises(GraceError, match=r"c\.json: cannot be read"):
        CostFile.load(tmp_path / "c.json")


def test_the_cpu_profile_times_every_operator():
    example = bundled("bst", batch=4)
    gm = trace(example.model)
    graph = op_graph(gm)
    found = profile_cpu(gm, graph, example.batches[0], rounds=2)
    assert len(found.stats) == len(graph.ops)
    assert all(stat.time_us > 0 and stat.bytes_out > 0 for stat in found.stats)


def test_the_roofline_grows_with_the_batch_and_shrinks_with_the_gpu():
    totals = []
    for batch, gpu in ((64, A30), (4096, A30), (4096, H200)):
        example = bundled("dlrm", batch=batch)
        gm = trace(example.model)
        totals.append(sum(roofline(gm, op_graph(gm), example.batches[0], gpu).times_us))
    assert totals[0] < totals[2] < totals[1]


def chrome(rounds=2):
    events = []
    for turn in range(rounds):
        for op, kernels in (("v1", [(4, 16), (6, 8)]), ("v2", [(3, 2)])):
            begin = turn * 1000 + (0 if op == "v1" else 100)
            name = RANGE_PREFIX + op
            events.append(
                {"cat": "user_annotation", "name": name, "ts": begin, "dur": 50, "tid": 1}
            )
            for k, (us, grid) in enumerate(kernels):
                number = len(events) + 1000
                args = {"correlation": number}
                events.append(
                    {"cat": "cuda_runtime", "ts": begin + 5 + k, "dur": 2, "tid": 1, "args": args}
                )
                args = {"correlation": number, "grid": [grid, 1, 1]}
                events.append({"cat": "kernel", "ts": begin + 500, "dur": us, "args": args})
    events.append(
        {"cat": "kernel", "ts": 1, "dur": 99, "args": {"correlation": 5, "grid": [1, 1, 1]}}
    )
    return {"traceEvents": events}


def test_kernels_of_torch_profiler_go_to_the_range_that_launched_them(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(chrome()))
    found = from_chrome_trace(GRAPH, path, "gpu", [64, 32])
    assert found.stats == (OpStat(10.0, 4.0, 16, 64), OpStat(3.0, 2.0, 2, 32))


def test_a_trace_without_an_operator_or_no_trace_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    document = chrome()
    document["traceEvents"] = [e for e in document["traceEvents"] if e.get("name") != "grace.op:v2"]
    path.write_text(json.dumps(document))
    with pytest.raises(GraceError, match=r"no range grace\.op:v2"):
        from_chrome_trace(GRAPH, path, "gpu")
    path.write_text("{}")
    with pytest.raises(GraceError, match=r"not a trace of torch\.profiler"):
        from_chrome_trace(GRAPH, path, "gpu")


def test_an_export_of_nsight_systems_gives_the_same(tmp_path):
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        file.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid)")
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid)"
        )
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, correlationId, gridX, gridY, gridZ)"
        )
        file.execute("INSERT INTO StringIds VALUES (7, 'grace.op:v2')")
        file.execute("INSERT INTO NVTX_EVENTS VALUES (0, 9000, 'grace.op:v1', NULL, 1)")
        file.execute("INSERT INTO NVTX_EVENTS VALUES (10000, 19000, NULL, 7, 1)")
        for number, (start, us, grid) in enumerate([(1000, 4, 16), (3000, 6, 8), (11000, 3, 2)]):
            launch = (start, start + 2000, number, 1)
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", launch)
            kernel = (50000, 50000 + us * 1000, number, grid, 1, 1)
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernel)
    found = from_nsight(GRAPH, path)
    assert found.stats == (OpStat(10.0, 4.0, 16), OpStat(3.0, 2.0, 2))
    assert found.source == "nsight"


def test_what_is_no_export_is_refused(tmp_path):
    with pytest.raises(GraceError, match="no such file"):
        from_nsight(GRAPH, tmp_path / "none.sqlite")
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to be read as one")
    with pytest.raises(GraceError, match="not an SQLite export"):
        from_nsight(GRAPH, tmp_path / "text.sqlite")
