"""A schedule as a trace that Perfetto and chrome://tracing open.

Times are predicted from the costs of the operators; the process says so.

Flow: Schedule -> *JSON values*: a track a stream, a slice an operator, an arrow a wait.
"""

from typing import Any

from grace_torchrec.schedule.schedule import Schedule

LEAST_US = 0.001  # viewers drop slices without length


def chrome_trace(schedule: Schedule) -> dict[str, Any]:
    """Return the trace events of a schedule.

    Args:
        schedule: What to show.
    """
    events: list[dict[str, Any]] = [
        {
            "ph": "M", "name": "process_name", "pid": 0, "args": {"name": f"{schedule.graph.name}, predicted"},
        }
    ]  # fmt: skip
    for stream in range(schedule.num_streams):
        name = {"name": f"stream {stream}"}
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "args": name})
        order = {"sort_index": stream}
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": stream, "args": order}
        )
    for place, op in enumerate(schedule.graph.ops):
        events.append(
            {
                "ph": "X",
                "name": op.name,
                "cat": op.kind,
                "pid": 0,
                "tid": schedule.stream_n[place],
                "ts": schedule.begin_us[place],
                "dur": max(schedule.times_us[place], LEAST_US),
                "args": {
                    "target": op.target,
                    "needs": [schedule.graph.ops[n].name for n in op.needs],
                },
            }
        )
    for place, needs in enumerate(schedule.waits_n):
        for need in needs:
            end = schedule.begin_us[need] + schedule.times_us[need]
            arrow = {"name": "wait", "cat": "wait", "pid": 0, "id": f"{need}-{place}"}
            tail = {"ph": "s", "tid": schedule.stream_n[need], "ts": max(end - LEAST_US, 0.0)}
            head = {"ph": "f", "bp": "e", "tid": schedule.stream_n[place]}
            events += [arrow | tail, arrow | head | {"ts": schedule.begin_us[place]}]
    return {"traceEvents": events, "displayTimeUnit": "ns"}
