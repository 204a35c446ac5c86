"""Kept: a schedule as plain values, so that the same model is scheduled again without a search.

Flow: Schedule -> *KeptSchedule* -> file -> *schedule_again* with the newly traced model -> Scheduled.
Nothing in a file is believed but which nodes are operators: whether one copies may depend on the
batch.  What they need is seen by a run, the order must respect it, waits are formed anew, and the steps
that are written are proven free of races like those of a search.  A schedule that does not hold, as one
of an earlier release may not, is searched again.
Shapes: n operators.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from grace_torchrec.errors import GraceError, PlanMismatch
from grace_torchrec.schedule.copied import cloned
from grace_torchrec.schedule.issue_order import fewest_waits
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.schedule import Machine, Schedule, predicted_starts, single_stream
from grace_torchrec.schedule.stream_pass import Scheduled, carried_out, schedule_
from grace_torchrec.schedule.touched import touched
from grace_torchrec.schedule.tracing import code_hash, op_graph

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptSchedule:
    """What a schedule decided.

    Attributes:
        names: Of the operators, in order; every other node is issued with the one it follows, as a
            view, and may be a copy on another batch than that of the search.
        stream_n: Stream of each operator.
        order_n: Operators in the order in which the host issues them.
        code: Hash of the traced nodes.
        reason: Why it is a single stream; None where it is not.

    Raises:
        GraceError: the parts do not belong together.
    """

    names: tuple[str, ...]
    stream_n: tuple[int, ...]
    order_n: tuple[int, ...]
    code: str
    reason: str | None

    def __post_init__(self) -> None:
        """Check what can be without the model."""
        places = range(len(self.names))
        numbers = (*self.stream_n, *self.order_n)
        if (
            not all(type(number) is int for number in numbers)
            or not all(type(name) is str for name in self.names)
            or sorted(self.order_n) != list(places)
            or len(self.stream_n) != len(places)
            or min(self.stream_n, default=0) < 0
            or not isinstance(self.code, str)
            or not isinstance(self.reason, str | None)
        ):
            raise GraceError("kept schedule: streams and order are not those of its operators")

    @classmethod
    def of(cls, scheduled: Scheduled) -> "KeptSchedule | None":
        """Keep what became of a model; None where it could not be traced."""
        schedule = scheduled.schedule
        if schedule is None:
            return None
        names = tuple(op.name for op in schedule.graph.ops)
        return cls(names, schedule.stream_n, schedule.order_n, scheduled.code, schedule.reason)

    def schedule(self, graph: OpGraph, costs: OpStats, machine: Machine) -> Schedule:
        """Return the schedule of a graph with these operators.

        Raises:
            PlanMismatch: the costs belong to another graph.
            GraceError: it takes more streams than the machine has, or an operator comes before
                one it needs.
        """
        costs.check(graph)
        if self.reason is not None:
            return single_stream(graph, costs, machine, self.reason)
        rank = {op: place for place, op in enumerate(self.order_n)}
        early = any(
            rank[need] > rank[place] for place, op in enumerate(graph.ops) for need in op.needs
        )
        if early or max(self.stream_n, default=0) >= machine.streams:
            raise GraceError(
                f"kept schedule of {graph.name!r}: is no order of its operators on "
                f"{machine.streams} streams; schedule the model again"
            )
        times, stream_n, order_n = costs.times_us, self.stream_n, self.order_n
        waits = fewest_waits(graph.needs, stream_n, order_n, machine.streams)
        begin = predicted_starts(graph, times, stream_n, order_n, machine)
        return Schedule(graph, machine, stream_n, order_n, waits, tuple(begin), tuple(times))


def schedule_again(
    gm: fx.GraphModule,
    example: tuple[Any, ...],
    machine: Machine,
    costs: OpStats,
    kept: KeptSchedule,
) -> Scheduled:
    """Schedule a traced model as it was scheduled before: nothing is measured or searched.

    Where the kept schedule does not hold for what the example shows, both are done again, and a
    warning says why.

    Args:
        gm: The traced model; changed in place by a new search.
        example: Positional arguments of one batch, on the model's device.
        machine: Streams at most, and what a wait costs.
        costs: Of its operators.
        kept: Its schedule.

    Raises:
        PlanMismatch: the model computes something else.
        GraceError: the schedule of a new search has a race.
    """
    if code_hash(gm) != kept.code:
        raise PlanMismatch(
            f"schedule: was made for another model than this {type(gm).__name__}: its operators, "
            "or their arguments, differ"
        )
    try:
        again = _as_kept(gm, example, machine, costs, kept)
        why_not = again.reason if kept.reason is None else None
    except GraceError as error:
        why_not = str(error)
    if why_not is None:
        return again
    _log.warning(
        "schedule: that kept for %s does not hold, it is searched again: %s",
        type(gm).__name__, why_not,
    )  # fmt: skip
    return schedule_(gm, example, machine.streams, wait_us=machine.wait_us)


def _as_kept(
    gm: fx.GraphModule,
    example: tuple[Any, ...],
    machine: Machine,
    costs: OpStats,
    kept: KeptSchedule,
) -> Scheduled:
    """Schedule the kept operators of a model of the same code, with the needs that a run shows.

    Raises:
        GraceError: the model has other operators, or their order does not respect their needs.
    """
    graph = op_graph(gm, type(gm).__name__, touched(gm, cloned(example)), frozenset(kept.names))
    if tuple(op.name for op in graph.ops) != kept.names:
        raise GraceError(f"kept schedule of {graph.name!r}: has other operators")
    # Needs, which the fingerprint covers, may be others on this batch; the operators are the same.
    costs = replace(costs, fingerprint=graph.fingerprint())
    schedule = kept.schedule(graph, costs, machine)
    if kept.reason is not None:
        return Scheduled(gm, False, kept.reason, schedule, stats=costs, code=kept.code)
    return carried_out(gm, schedule, costs, example)
