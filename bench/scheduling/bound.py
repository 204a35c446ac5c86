"""bound: makespan / max(critical path, work / S) of one schedule per model and number of streams.

Flow: cells -> ratios.  A cell above 1.15 is held to the best of a ten-minute search, which is
committed, and to a bound that no schedule beats.  The A30's cells are estimated costs and stand
beside.
"""

from typing import Any

import numpy as np

from bench.scheduling.cells import cells
from bench.scheduling.costs import load_costs
from bench.scheduling.long_search import WORST, searched_makespan
from grace_torchrec.schedule.exact import tight_bound
from grace_torchrec.schedule.schedule import Schedule

NEAR_BEST = 1.02


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
