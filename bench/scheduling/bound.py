"""bound and events: one schedule per model and number of streams, from the committed costs.

    python -m bench.scheduling.bound SECONDS      (the long search; writes searched.json)

Flow: cost files -> schedules -> makespan / max(critical path, work / S), and events, switches and
waits of the very same schedules.  A cell above 1.15 is held to the best of a ten-minute search,
which is committed (streams and order: its makespan is computed anew here) and to a bound that
no schedule beats.  The A30's cells are estimated costs and stand beside.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from bench.scheduling.costs import FOLDER, load_costs
from grace_torchrec.models.bundled import MODELS
from grace_torchrec.schedule.exact import tight_bound
from grace_torchrec.schedule.op_stats import CostFile
from grace_torchrec.schedule.schedule import Machine, Schedule, lower_bound, predicted_starts
from grace_torchrec.schedule.search import make_schedule

STREAMS = (2, 4, 8)
SEARCHED = FOLDER / "searched.json"
WORST, NEAR_BEST = 1.15, 1.02


def cells(device: str = "") -> dict[str, Schedule]:
    """Return the schedule of every model and number of streams, by ``model/S``."""
    found = {}
    for name in MODELS:
        costs = load_costs(name, device)
        for streams in STREAMS:
            found[f"{name}/{streams}"] = make_schedule(costs.graph, costs.stats, Machine(streams))
    return found


def bound() -> dict[str, Any]:
    """Return median and worst ratio, and every cell."""
    ours = [_cell(name, schedule, "") for name, schedule in cells().items()]
    a30 = [_cell(name, schedule, "a30") for name, schedule in cells("a30").items()]
    ratios = [cell["ratio"] for cell in ours]
    return {
        "median": float(np.median(ratios)),
        "worst": max(ratios),
        "failed": [cell["cell"] for cell in ours if not cell["ok"]],
        "cells": ours,
        "estimated_a30": a30,
    }


def _cell(name: str, schedule: Schedule, device: str) -> dict[str, Any]:
    """Judge one schedule."""
    model, _, streams = name.partition("/")
    costs = load_costs(model, device)
    tight = tight_bound(costs.graph, costs.stats, int(streams))
    searched = None if device else searched_makespan(costs, int(streams))
    ratio = schedule.makespan_us / schedule.bound_us
    near = searched is not None and schedule.makespan_us <= NEAR_BEST * searched
    return {
        "cell": name,
        "ratio": ratio,
        "ok": ratio <= WORST or near,
        "over_tight_bound": schedule.makespan_us / tight,
        "over_searched": schedule.makespan_us / searched if searched else None,
        "streams_used": schedule.num_streams,
    }


def searched_makespan(costs: CostFile, streams: int) -> float | None:
    """Return the makespan of the committed long search, computed from its streams and order."""
    document = json.loads(SEARCHED.read_text(encoding="utf-8")) if SEARCHED.is_file() else {}
    entry = document.get(f"{costs.graph.name}/{streams}")
    if entry is None or entry["fingerprint"] != costs.graph.fingerprint():
        return None
    order, stream_n = entry["order"], entry["streams"]
    if sorted(order) != list(range(len(costs.graph.ops))):
        return None
    rank = {op: place for place, op in enumerate(order)}
    if any(rank[need] > rank[op] for op in order for need in costs.graph.ops[op].needs):
        return None
    times = costs.stats.times_us
    begin = predicted_starts(costs.graph, times, stream_n, order, Machine(streams))
    return max(b + t for b, t in zip(begin, times, strict=True))


def long_search(seconds: float) -> None:
    """Search every cell above 1.15 for ``seconds`` and write the best of each."""
    document = {}
    for name, schedule in cells().items():
        if schedule.makespan_us / schedule.bound_us <= WORST:
            continue
        model, _, streams = name.partition("/")
        costs = load_costs(model)
        best, end, rounds = schedule, time.monotonic() + seconds, 0
        while time.monotonic() < end:
            rounds += 1
            found = make_schedule(
                costs.graph, costs.stats, Machine(int(streams)),
                starts=2000, steps=4000, seed=rounds,
            )  # fmt: skip
            best = min(best, found, key=lambda s: s.makespan_us)
        document[name] = {
            "fingerprint": costs.graph.fingerprint(),
            "seconds": seconds,
            "rounds": rounds,
            "makespan_us": best.makespan_us,
            "over_bound": best.makespan_us / lower_bound(best.graph, best.times_us, int(streams)),
            "streams": best.stream_n,
            "order": best.order_n,
        }
        SEARCHED.write_text(json.dumps(document) + "\n", encoding="utf-8")
        print(name, schedule.makespan_us, best.makespan_us, rounds)


if __name__ == "__main__":
    long_search(float(sys.argv[1]))
