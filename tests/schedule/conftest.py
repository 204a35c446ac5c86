"""Graphs and schedules that several tests use."""

import pytest

from bench.scheduling.costs import load_costs
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import make_schedule


@pytest.fixture(scope="session")
def schedule_of():
    """Return a function from (model, streams) to the schedule of its committed costs."""
    made = {}

    def make(name, streams):
        if (name, streams) not in made:
            costs = load_costs(name)
            made[name, streams] = make_schedule(costs.graph, costs.stats, Machine(streams))
        return made[name, streams]

    return make
