"""Online: the decisions of a server that launches operators, or whole segments, as queries come.

Flow: OpGraph + OpStats -> *OnlineScheduler* -> (operator, stream) one at a time.
Source: RecOS, IJCAI'25, section 3.4: highest DepValue first, embeddings in a round of their own,
streams by expected completion, caches on the stream that holds them.  It runs once for every
launch, so the rules of :mod:`stream_choice` and :mod:`monitor` are written out in one method.
Derived: a *segment* (a run of operators that a static schedule issues to one stream) is one unit,
which spreads a decision over its operators.
"""

from collections import deque
from heapq import heapify, heappop, heappush

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.embedding_order import EmbeddingOrder
from grace_torchrec.schedule.lower import Lowered, Run, Use
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.priority import priority

EMBEDDINGS_AFTER = 1e6  # computing operators that are ready go first


class Query:
    """A query that is being launched: what is ready, what is missing, where operators went."""

    __slots__ = ("missing", "ready", "stream_of")

    def __init__(self, missing: list[int], ready: list[tuple[float, int]]) -> None:
        self.missing, self.ready = missing, ready
        self.stream_of = [-1] * len(missing)


class OnlineScheduler:
    """Chooses the next operator of a query and its stream.

    Args:
        graph: Operators, or segments as operators.
        stats: Their costs.
        num_streams: Streams shared by all queries.
        processors: Streaming multiprocessors.
        threshold: Load, in whole GPUs, above which the second shortest stream is taken.
        start_rule: Where a query starts its round of embeddings.

    Attributes:
        backlog_us: Expected time of each stream's queue.

    Raises:
        PlanMismatch: the costs belong to another graph.
        GraceError: there is no stream.
    """

    def __init__(
        self,
        graph: OpGraph,
        stats: OpStats,
        num_streams: int,
        processors: int = 56,
        threshold: float = 2.0,
        start_rule: str = "half_round",
    ) -> None:
        stats.check(graph)
        if num_streams < 1:
            raise GraceError(f"online scheduler: {num_streams} streams; give one or more")
        self.needs, self.users = graph.needs, graph.needed_by()
        self.times, self.limit = stats.times_us, threshold * processors
        self.grids = [min(grid, processors) for grid in stats.grids]
        self.caches = [op.writes[0] if op.writes else None for op in graph.ops]
        self.keys = [-value for value in priority("dep_local", graph, stats).tolist()]
        tables = [place for place, op in enumerate(graph.ops) if op.kind == "embedding"]
        self.turn_of = {place: turn for turn, place in enumerate(tables)}
        self.tables = tables
        self.rounds = EmbeddingOrder(len(tables), start_rule) if tables else None
        self.backlog_us = [0.0] * num_streams
        self.running: list[deque[int]] = [deque() for _ in range(num_streams)]
        self.blocks = 0  # of the first operators of all streams
        self.owner: dict[str, list[int]] = {}  # cache -> [stream, operators launched there]

    def begin(self) -> Query:
        """Start a query."""
        missing = [len(needed) for needed in self.needs]
        keys = list(self.keys)
        if self.rounds is not None:
            for place, table in enumerate(self.rounds.begin_query()):
                keys[self.tables[table]] = EMBEDDINGS_AFTER + place
        ready = [(keys[op], op) for op, count in enumerate(missing) if not count]
        heapify(ready)
        return Query(missing, ready)

    def launch_next(self, query: Query) -> tuple[int, int]:
        """Return the next operator of a query and its stream; all that needs it may follow.

        Raises:
            IndexError: every operator was launched.
        """
        _, op = heappop(query.ready)
        backlog, cache = self.backlog_us, self.caches[op]
        held = self.owner.get(cache) if cache is not None else None
        if held is not None and held[1]:
            stream = held[0]
        else:
            least = min(backlog)
            stream = backlog.index(least)
            if least == 0.0:  # idle: best one that ran what it needs
                for need in self.needs[op]:
                    if backlog[query.stream_of[need]] == 0.0:
                        stream = query.stream_of[need]
                        break
            elif self.blocks + self.grids[op] > self.limit and len(backlog) > 1:
                first = self.grids[self.running[stream][0]]
                if self.blocks - first + self.grids[op] > self.limit:
                    stream = backlog.index(sorted(backlog)[1])
        if cache is not None:
            if held is None or not held[1]:
                self.owner[cache] = [stream, 1]
            else:
                held[1] += 1
        running = self.running[stream]
        if not running:
            self.blocks += self.grids[op]
        running.append(op)
        backlog[stream] += self.times[op]
        query.stream_of[op] = stream
        missing = query.missing
        for user in self.users[op]:
            missing[user] -= 1
            if not missing[user]:
                heappush(query.ready, (self.keys[user], user))
        return op, stream

    def complete(self, stream: int) -> int:
        """Note that the first operator of a stream is done; return it.

        Raises:
            IndexError: the stream has none.
        """
        running = self.running[stream]
        op = running.popleft()
        self.blocks -= self.grids[op]
        if running:
            self.backlog_us[stream] -= self.times[op]
            self.blocks += self.grids[running[0]]
        else:
            self.backlog_us[stream] = 0.0
        cache = self.caches[op]
        if cache is not None:
            self.owner[cache][1] -= 1
        return op


def segments(lowered: Lowered) -> list[tuple[int, ...]]:
    """Return the runs of operators that the host issues to one stream before it turns to another.

    A run waits only for runs that were issued before it, so each can be launched as a whole.

    Args:
        lowered: Steps of a schedule.
    """
    found: list[list[int]] = [[]]
    for step in lowered.steps:
        if isinstance(step, Run):
            found[-1].append(step.op)
        elif isinstance(step, Use) and found[-1]:
            found.append([])
    return [tuple(run) for run in found if run]
