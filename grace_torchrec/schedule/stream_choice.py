"""Stream choice: where a ready operator goes, decided when it is launched.

Flow: ready operator + monitor -> *a stream*.  RecOS and its rivals are policies of one shape: they
see the operator, the query's number and the monitor.  These are the rules in plain Python, to which
tests hold what runs: :mod:`online` in a server, ``_simulator_choice`` in the simulator.
Source: RecOS, IJCAI'25, section 3.4.  Derived: the threshold (the text says "certain thresholds"):
running and new blocks over the GPU's processors.
"""

from collections.abc import Callable
from dataclasses import dataclass

from grace_torchrec.schedule.monitor import WorkloadMonitor
from grace_torchrec.schedule.op_graph import OpGraph


@dataclass(frozen=True)
class Asked:
    """An operator that is to be launched.

    Attributes:
        op: Its place in its graph.
        query: Number of its query.
        grid: Its blocks.
        resources: Caches it writes.
        streams_needed: Streams of the operators it needs.
        chain: Chain of the graph it is on.
    """

    op: int
    query: int
    grid: int
    resources: tuple[str, ...] = ()
    streams_needed: tuple[int, ...] = ()
    chain: int = 0


StreamChoice = Callable[[Asked, WorkloadMonitor], int]


def recos(threshold: float = 2.0) -> StreamChoice:
    """RecOS's choice.

    An operator with a cache goes to a stream that already has work on that cache, else to the
    stream expected to finish first.  Another one goes to an idle stream (best one that ran what
    it needs), else to the shortest of all, or the second shortest where the shortest would load
    the GPU beyond ``threshold``.

    Args:
        threshold: Load in whole GPUs.
    """

    def choose(asked: Asked, monitor: WorkloadMonitor) -> int:
        """Return a stream."""
        backlog = monitor.backlog_us
        if asked.resources:
            owner = monitor.owner_of(asked.resources)
            return owner if owner >= 0 else min(range(len(backlog)), key=backlog.__getitem__)
        idle = -1
        for stream, queued in enumerate(monitor.queued):
            if not queued:
                if stream in asked.streams_needed:
                    return stream
                idle = stream if idle < 0 else idle
        if idle >= 0 or len(backlog) == 1:
            return max(idle, 0)
        first, second = sorted(range(len(backlog)), key=backlog.__getitem__)[:2]
        load = monitor.occupancy_with(asked.grid, first)
        return second if load > threshold else first

    return choose


def single(asked: Asked, monitor: WorkloadMonitor) -> int:
    """TSSS: everything on one stream."""
    return 0


def by_query(asked: Asked, monitor: WorkloadMonitor) -> int:
    """MSSS: all of a query on one stream, queries in turn."""
    return asked.query % len(monitor.backlog_us)


def round_robin(asked: Asked, monitor: WorkloadMonitor) -> int:
    """TSMS: operators in turn, in the model's order."""
    return (asked.op + asked.query) % len(monitor.backlog_us)


def by_chain(asked: Asked, monitor: WorkloadMonitor) -> int:
    """StreamRec and Opara: a chain of the graph on one stream."""
    return (asked.chain + asked.query) % len(monitor.backlog_us)


CHOICES: dict[str, StreamChoice] = {
    "TSSS": single,
    "MSSS": by_query,
    "TSMS": round_robin,
    "StreamRec": by_chain,
    "Opara": by_chain,
    "RecOS": recos(),
}


def chains(graph: OpGraph) -> list[int]:
    """Return the chain of each operator: that of the first it needs whose chain goes no further.

    Source: Opara, algorithm 1.
    """
    chain: list[int] = []
    continued: set[int] = set()
    count = 0
    for op in graph.ops:
        free = next((need for need in op.needs if need not in continued), None)
        if free is None:
            chain.append(count)
            count += 1
        else:
            continued.add(free)
            chain.append(chain[free])
    return chain
