"""Cells: the schedule of every model and number of streams, from the committed costs.

Flow: cost files -> *cells* -> bound, events, race, memory: all judge the very same schedules.
"""

from bench.scheduling.costs import load_costs
from grace_torchrec.models.bundled import MODELS
from grace_torchrec.schedule.schedule import Machine, Schedule
from grace_torchrec.schedule.search import make_schedule

STREAMS = (2, 4, 8)


def cells(device: str = "") -> dict[str, Schedule]:
    """Return the schedule of every model and number of streams, by ``model/S``."""
    found = {}
    for name in MODELS:
        costs = load_costs(name, device)
        for streams in STREAMS:
            found[f"{name}/{streams}"] = make_schedule(costs.graph, costs.stats, Machine(streams))
    return found
