"""Observed: a lowered model is run and watched before it stands for its model.

Flow: traced model, lowered GraphModule, example -> *why_unlike* -> a reason to stay on one stream.
The race check of :mod:`in_flight` believes what the operators say they touch.  This one believes the
run: its program is read from the lowered nodes and the memory that they were seen to touch.
"""

from typing import Any

import torch
from torch import fx

from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.graph_module import (
    begin_query,
    record_event,
    release_values,
    retire_values,
    use_stream,
    wait_event,
)
from grace_torchrec.schedule.program import Instruction, Launch, Program, Record, Wait
from grace_torchrec.schedule.race_check import Race, find_races
from grace_torchrec.schedule.same_values import same_values
from grace_torchrec.schedule.touched import touched

CALLER = "the caller"
KEPT = (begin_query, release_values, retire_values)  # calls of the host that touch no memory


def why_unlike(gm: fx.GraphModule, lowered: fx.GraphModule, example: tuple[Any, ...]) -> str | None:
    """Return why a lowered model may not stand for the traced one, or None.

    Args:
        gm: The traced model.
        lowered: The same in another order, without a backend.
        example: Positional arguments of one batch; it is not changed.
    """
    given, given_lowered = cloned(example), cloned(example)
    with torch.no_grad():
        wanted, found = gm(*given), lowered(*given_lowered)
    if not same_values((wanted, given), (found, given_lowered)):
        return "in the order of the schedule it computes other values on the example"
    races = observed_races(lowered, example)
    if races:
        return f"{len(races)} accesses of memory on different streams have no order: {races[0]}"
    return None


def observed_races(lowered: fx.GraphModule, example: tuple[Any, ...]) -> list[Race]:
    """Run a lowered model; return the races between its streams over memory that nodes touch.

    Args:
        lowered: Without a backend: all runs in the host's order.
        example: Positional arguments of one batch; it is not changed.
    """
    seen = touched(lowered, cloned(example))
    inputs = frozenset().union(
        *(seen[node.name].shows for node in lowered.graph.nodes if node.op == "placeholder")
    )
    told: list[Instruction] = [Launch(CALLER, 0, (), _sorted(inputs))]
    made, stream = set(inputs), 0
    for node in lowered.graph.nodes:
        now = seen[node.name]
        if node.target is use_stream:
            stream = node.args[1]
        elif node.target is record_event:
            told.append(Record(node.args[1], stream))
        elif node.target is wait_event:
            told.append(Wait(node.args[1], stream))
        elif node.op == "output":
            told.append(Launch(CALLER, 0, _sorted(now.shows | inputs), _sorted(inputs)))
        elif node.op.startswith("call_") and node.target not in KEPT:
            made |= now.makes
            writes = _sorted(now.makes | now.writes)
            told.append(Launch(node.name, stream, _sorted(now.reads), writes))
    there = frozenset().union(*(now.reads for now in seen.values())) - made
    return find_races(Program(tuple(told), {}), tuple(there))


def _sorted(names: frozenset[str]) -> tuple[str, ...]:
    """Return names in one order, whatever their hashes are."""
    return tuple(sorted(names))
