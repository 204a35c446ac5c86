"""schedule: order, bound, events, race, overhead, memory of our schedules; the paper's figures.

Flow: ``--what`` -> a file of :mod:`bench.scheduling` -> one JSON object.  One schedule per model and
number of streams, from the committed cost files, is judged by bound, events, race and memory.
"""

from collections.abc import Callable
from typing import Any

import click

from bench.measure import machine
from bench.run import emit
from bench.scheduling.bound import bound
from bench.scheduling.events import events
from bench.scheduling.figure3 import figure3
from bench.scheduling.figure6 import figure6
from bench.scheduling.figure7 import figure7
from bench.scheduling.memory import memory
from bench.scheduling.order import order
from bench.scheduling.overhead import overhead
from bench.scheduling.parts import ablation, sensitivity
from bench.scheduling.race import race
from bench.scheduling.table1 import table1


def _figure6_whole() -> dict[str, Any]:
    """Return figure 6 with its ablation and its sensitivity."""
    return {**figure6(), "ablation_percent": ablation(), "sensitivity_din": sensitivity()}


WHAT: dict[str, Callable[[], dict[str, Any]]] = {
    "order": order,
    "bound": bound,
    "events": events,
    "race": race,
    "overhead": overhead,
    "memory": memory,
    "table1": table1,
    "fig3": figure3,
    "fig6": _figure6_whole,
    "fig7": figure7,
}
TIMED = ("race", "overhead", "memory")


@click.command("schedule")
@click.option("--what", type=click.Choice(list(WHAT)), required=True, help="What is measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(what: str, as_json: bool) -> None:
    """Judge schedules, their proof and their host cost; simulate the paper's figures."""
    result = {"what": what, **WHAT[what]()}
    if what in TIMED:
        result["machine"] = machine()
    emit(result, as_json, f"schedule {what}")
