"""Lifetimes: how long the host holds each value of a lowered model, and the bytes that takes.

Flow: Lowered + bytes of the outputs -> *lifetimes* -> peak bytes -> views, benches.
A value lives from its operator's launch to the step at which the host lets go of it or hands it to
the tensor pool, whose own budget bounds what it keeps.  All known before anything runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grace_torchrec.schedule.lower import (
    Lowered,
    Release,
    Retire,
    Run,
    lower,
)
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.schedule import Machine, single_stream


@dataclass(frozen=True)
class Lifetime:
    """Steps between which a value is held.

    Attributes:
        op: The operator that makes it.
        first: Step at which it is launched.
        last: Step after which the host has let go of it; the number of steps if never.
        num_bytes: Its size.
    """

    op: int
    first: int
    last: int
    num_bytes: int


def lifetimes(lowered: Lowered, bytes_n: Sequence[int]) -> list[Lifetime]:
    """Return the lifetime of every value that has memory of its own.

    Args:
        lowered: Steps.
        bytes_n: Bytes of each operator's output.
    """
    graph = lowered.schedule.graph
    ops, owner = graph.ops, graph.owners()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    kept = set(graph.results())
    for number, step in enumerate(lowered.steps):
        if isinstance(step, Run):
            first.setdefault(owner[step.op], number)
            for base in {owner[need] for need in ops[step.op].needs}:
                last[base] = number
        elif isinstance(step, (Release, Retire)):
            last.update(dict.fromkeys(step.ops, number))
    end = len(lowered.steps)
    return [
        Lifetime(op, at, end if op in kept else last.get(op, at), bytes_n[op])
        for op, at in first.items()
    ]


def peak_bytes(found: Sequence[Lifetime]) -> int:
    """Return the most bytes that are held at one step.

    >>> peak_bytes([Lifetime(0, 0, 2, 8), Lifetime(1, 2, 3, 4), Lifetime(2, 3, 3, 1)])
    12
    """
    change: dict[int, int] = {}
    for life in found:
        change[life.first] = change.get(life.first, 0) + life.num_bytes
        change[life.last + 1] = change.get(life.last + 1, 0) - life.num_bytes
    held = most = 0
    for step in sorted(change):
        held += change[step]
        most = max(most, held)
    return most


def peak_over_single_stream(lowered: Lowered, stats: OpStats) -> float:
    """Return the peak of the lowered model over that of the model's own order on one stream.

    It is what an allocator counts as allocated (``torch.cuda.max_memory_allocated``).
    """
    sizes = [stat.bytes_out for stat in stats.stats]
    least = _single_stream_peak(lowered, stats, sizes)
    return peak_bytes(lifetimes(lowered, sizes)) / least if least else 1.0


def pools_over_single_stream(lowered: Lowered, stats: OpStats) -> float:
    """Return the peaks of all streams' own values, summed, over the peak on one stream.

    An allocator with a pool for each stream reserves so much (``torch.cuda.max_memory_reserved``):
    memory that one stream let go of serves that stream only.
    """
    sizes = [stat.bytes_out for stat in stats.stats]
    least = _single_stream_peak(lowered, stats, sizes)
    stream_n = lowered.schedule.stream_n
    found = lifetimes(lowered, sizes)
    peaks = (
        peak_bytes([life for life in found if stream_n[life.op] == stream])
        for stream in range(lowered.schedule.num_streams)
    )
    return sum(peaks) / least if least else 1.0


def _single_stream_peak(lowered: Lowered, stats: OpStats, sizes: Sequence[int]) -> int:
    """Return the peak of the model's own order on one stream."""
    alone = single_stream(lowered.schedule.graph, stats, Machine(1), "for comparison")
    return peak_bytes(lifetimes(lower(alone), sizes))
