"""Online: the decisions of a server that launches operators, or whole segments, as queries come.

Flow: OpGraph + OpStats -> *OnlineScheduler* -> (operator, stream) one at a time.
Source: RecOS, IJCAI'25, section 3.4: highest DepValue first, embeddings in a round of their own,
streams by expected completion, caches on the stream that holds them.  It runs once for every
launch, so the rules of :mod:`stream_choice` and :mod:`monitor` are written out in one generator.
Derived: a *segment* (a run of operators that a static schedule issues to one stream) is one unit,
which spreads a decision over its operators.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.embedding_order import EmbeddingOrder
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.priority import priority
from grace_torchrec.schedule.resources import resource_groups


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
        self.graph, self.needs = graph, graph.needs
        self.times, self.limit = stats.times_us, threshold * processors
        self.grids = [min(grid, processors) for grid in stats.grids]
        self.groups = resource_groups(graph)
        self.worth = priority("dep_local", graph, stats).tolist()
        self.turns = turns(graph)
        tables = max(self.turns, default=-1) + 1
        self.rounds = EmbeddingOrder(tables, start_rule) if tables else None
        self.orders: dict[int, list[int]] = {}  # by start of the round of embeddings
        self.backlog_us = [0.0] * num_streams
        self.running: list[deque[int]] = [deque() for _ in range(num_streams)]
        self.blocks = 0  # of the first operators of all streams
        self.owner = [-1] * len(graph.ops)  # stream of a group of resources
        self.using = [0] * len(graph.ops)  # operators of a group that are launched and not done

    def begin(self) -> Iterator[tuple[int, int]]:
        """Start a query; return its operators and their streams, each decided when it is asked for.

        Operators may be launched one after the other at once: what they need was launched before.
        Queries may be asked in any order.
        """
        return self._decisions(
            self.order_of(0 if self.rounds is None else self.rounds.next_start())
        )

    def order_of(self, start: int) -> list[int]:
        """Return the order of a query's operators, computed when it is first asked for.

        Args:
            start: Embedding that begins its round; 0 where there are none.
        """
        order = self.orders.get(start)
        if order is None:
            order = self.orders[start] = launch_order(self.graph, self.worth, start)
        return order

    def _decisions(self, order: list[int]) -> Iterator[tuple[int, int]]:
        """Choose the stream of one operator after the other; what does not change is local.

        Args:
            order: A query's operators, each after those it needs.
        """
        needs, times, grids, groups = self.needs, self.times, self.grids, self.groups
        turn_n, rounds, limit = self.turns, self.rounds, self.limit
        backlog, queues, owner, using = self.backlog_us, self.running, self.owner, self.using
        several, stream_of = len(backlog) > 1, [-1] * len(order)
        for op in order:
            group = groups[op]
            if group >= 0 and using[group]:
                stream = owner[group]
            else:
                least = min(backlog)
                stream = backlog.index(least)
                if least == 0.0:  # idle: best one that ran what it needs
                    for need in needs[op]:
                        if backlog[stream_of[need]] == 0.0:
                            stream = stream_of[need]
                            break
                elif several and self.blocks + grids[op] > limit:
                    first = grids[queues[stream][0]]
                    if self.blocks - first + grids[op] > limit:
                        stream = sorted(range(len(backlog)), key=backlog.__getitem__)[1]
            if group >= 0:
                owner[group] = stream
                using[group] += 1
            queue = queues[stream]
            if not queue:
                self.blocks += grids[op]
            queue.append(op)
            backlog[stream] += times[op]
            stream_of[op] = stream
            if rounds is not None and turn_n[op] >= 0:
                rounds.launched(turn_n[op])
            yield op, stream

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
        if self.groups[op] >= 0:
            self.using[self.groups[op]] -= 1
        return op


def turns(graph: OpGraph) -> list[int]:
    """Return the place of each operator in the round of embeddings; -1 for all others."""
    tables = [place for place, op in enumerate(graph.ops) if op.kind == "embedding"]
    turn_n = [-1] * len(graph.ops)
    for turn, place in enumerate(tables):
        turn_n[place] = turn
    return turn_n


def launch_order(graph: OpGraph, worth_n: Sequence[float], start: int) -> list[int]:
    """Return the order in which a query's operators are launched.

    An operator is ready once what it needs was launched (events do the rest): among those that are,
    the worthiest goes first, and embeddings in their round after all others.  So the order depends
    on the start of the round alone, and is computed once for each.

    Args:
        graph: Operators.
        worth_n: Their priorities.
        start: Embedding that begins the round.
    """
    turn_n, users = turns(graph), graph.needed_by()
    tables = max(turn_n, default=-1) + 1
    key_n = [
        (turn >= 0, (turn - start) % tables if turn >= 0 else -worth)
        for turn, worth in zip(turn_n, worth_n, strict=True)
    ]
    missing = [len(op.needs) for op in graph.ops]
    ready = [(key_n[op], op) for op, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, op = heappop(ready)
        order.append(op)
        for user in users[op]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (key_n[user], user))
    return order
