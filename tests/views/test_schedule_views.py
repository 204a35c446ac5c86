"""A schedule as text, as a trace for Perfetto, as a Gantt chart: what they say is what it holds."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.scheduling.costs import load_costs
from grace_torchrec.schedule.lower import lower
from grace_torchrec.schedule.op_graph import Op, OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule
from grace_torchrec.schedule.stream_pass import Scheduled
from grace_torchrec.views.chrome_trace import chrome_trace
from grace_torchrec.views.gantt import gantt
from grace_torchrec.views.schedule_text import latency_table, schedule_lines


@pytest.fixture(scope="module")
def schedule():
    costs = load_costs("din")
    return make_schedule(costs.graph, costs.stats, Machine(4))


def test_the_trace_has_a_slice_an_operator_and_an_arrow_a_wait(schedule):
    events = chrome_trace(schedule)["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(slices) == len(schedule.graph.ops)
    for place, op in enumerate(schedule.graph.ops):
        assert slices[op.name]["tid"] == schedule.stream_n[place]
        assert slices[op.name]["ts"] == schedule.begin_us[place]
    tails = [event for event in events if event["ph"] == "s"]
    heads = [event for event in events if event["ph"] == "f"]
    assert len(tails) == len(heads) == schedule.num_waits
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {f"stream {s}" for s in range(schedule.num_streams)}


def test_the_chart_is_xml_with_a_box_an_operator(schedule):
    root = ElementTree.fromstring(gantt(schedule))
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(schedule.graph.ops)
    dashed = [n for n in root.iter("{http://www.w3.org/2000/svg}line") if n.get("stroke-dasharray")]
    assert len(dashed) == schedule.num_waits + 1  # and one in the legend
    assert "bound" in "".join(root.itertext())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 37.0, 1e6])
def test_the_axis_has_a_few_round_times_whatever_the_span(schedule, scale):
    stretched = replace(
        schedule,
        begin_us=tuple(t * scale for t in schedule.begin_us),
        times_us=tuple(t * scale for t in schedule.times_us),
    )
    root = ElementTree.fromstring(gantt(stretched))
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    said = [text.removesuffix(" us") for text in texts[1:] if text.endswith(" us")]
    ticks = [float(number) for number in said]
    assert 4 <= len([tick for tick in ticks if tick <= stretched.makespan_us]) <= 11


def test_names_are_escaped():
    graph = OpGraph("<&>", (Op("a<b", "other", ()), Op("c&d", "other", ())))
    stats = OpStats.of(graph, [OpStat(1.0)] * 2, "json", "")
    found = ElementTree.fromstring(gantt(make_schedule(graph, stats, Machine(2))))
    assert "a<b" in "".join(found.itertext())


def test_the_text_says_makespan_bound_and_proof(schedule):
    lowered = lower(schedule)
    lines = schedule_lines(Scheduled(None, True, None, schedule, lowered))
    text = "\n".join(lines)
    assert f"makespan           predicted {schedule.makespan_us:.1f} us" in text
    assert f"{schedule.bound_us:.1f} us" in text
    assert "... 3 more ..." in text
    assert len(lines) == 62 + 4  # a heading, 60 operators and the gap


def test_a_model_that_was_not_scheduled_says_why():
    assert schedule_lines(Scheduled(None, False, "cannot be traced")) == [
        "not scheduled: cannot be traced"
    ]


def test_a_table_has_a_row_a_load():
    assert latency_table({"1": {"TSSS": 1.25, "RecOS": 2.0}}, "clients") == [
        "     clients         TSSS        RecOS",
        "           1          1.2          2.0",
    ]
