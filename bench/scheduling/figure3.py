"""fig3: the seven panels of the paper's figure 3, from one derived graph of six unit operators.

Flow: v1 -> v2 -> v3 -> v4, v3 -> v6, v5 alone (an embedding with a lock) -> rows (a) to (g).
Derived: the smallest of all 32,768 labelled graphs of six operators that gives every printed number
of (a) to (e).  (f) prints 8.47, exact locks give 8.40.  (g) prints a throughput of 0.635: five
queries would need 7.87 units, which unit operators cannot take; 5 / 8 = 0.625 is a misprint
corrected, and our greedy schedule has a lower mean latency (6.0) than the printed 6.2.
"""

import heapq
from collections import deque
from typing import Any

from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.priority import dep_local
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.search import list_schedule

GRAPH = OpGraph.from_needs([[], [0], [1], [2], [], [2]], "figure 3")
STATS = OpStats.of(GRAPH, [OpStat(1.0)] * 6, "json", "unit times")
EMBEDDING, QUERIES = 4, 5
FINISH_TIMES = {"a": 6.0, "b": 5.0, "c": 4.0, "d": 4.0}
PRINTED: dict[str, tuple[float, float]] = {  # mean latency, throughput
    "e": (26.0, 0.167),
    "f": (8.47, 0.417),
    "g": (6.2, 0.635),
}
NOTES = {
    "f": "8.47 needs 5.6 % more for each lock handed on",
    "g": "0.635 is a misprint: 5 queries / 8 units = 0.625",
}


def figure3() -> dict[str, Any]:
    """Return the rows and how many are exact."""
    ours = {
        "a": in_turn(1),
        "b": in_turn(2),
        "c": in_turn(3),
        "d": list_schedule(GRAPH, STATS, Machine(2, wait_us=0.0), "dep_local"),
    }
    rows: list[dict[str, Any]] = [
        {"row": row, "printed": printed, "ours": ours[row], "exact": ours[row] == printed}
        for row, printed in FINISH_TIMES.items()
    ]
    for row, finish in (("e", one_queue()), ("f", by_query(4)), ("g", greedy(4))):
        mean, throughput = sum(finish) / QUERIES, QUERIES / max(finish)
        printed_mean, printed_throughput = PRINTED[row]
        exact = mean == printed_mean and round(throughput, 3) == printed_throughput
        rows.append(
            {
                "row": row,
                "printed": printed_mean,
                "ours": mean,
                "printed_throughput": printed_throughput,
                "throughput": throughput,
                "off_by": mean / printed_mean - 1,
                "exact": exact,
                **({"note": NOTES[row]} if row in NOTES else {}),
            }
        )
    return {
        "graph": [list(op.needs) for op in GRAPH.ops],
        "graph_is": "derived",
        "rows": rows,
        "rows_exact": sum(row["exact"] for row in rows),
    }


def in_turn(streams: int) -> float:
    """Launch operators in the model's order to streams in turn; return when the last is done."""
    free, end = [0.0] * streams, [0.0] * len(GRAPH.ops)
    for place, op in enumerate(GRAPH.ops):
        stream = place % streams
        end[place] = 1 + max([free[stream], *(end[need] for need in op.needs)])
        free[stream] = end[place]
    return max(end)


def one_queue() -> list[float]:
    """One stream for all queries: operators join its queue when what they need is done."""
    users, queue = GRAPH.needed_by(), deque[tuple[int, int]]()
    missing = [[len(op.needs) for op in GRAPH.ops] for _ in range(QUERIES)]
    left, finish, now = [len(GRAPH.ops)] * QUERIES, [0.0] * QUERIES, 0.0
    for query in range(QUERIES):
        queue.extend((query, op) for op, count in enumerate(missing[query]) if not count)
    while queue:
        query, op = queue.popleft()
        now += 1
        left[query] -= 1
        finish[query] = now
        for user in users[op]:
            missing[query][user] -= 1
            if not missing[query][user]:
                queue.append((query, user))
    return finish


def by_query(streams: int) -> list[float]:
    """All of a query on one stream, queries in turn; one query at a time holds the lock."""
    waiting = [deque(range(stream, QUERIES, streams)) for stream in range(streams)]
    finish, lock_free = [0.0] * QUERIES, 0.0
    events = [(0.0, stream, 0) for stream in range(streams)]
    while events:
        now, stream, op = heapq.heappop(events)
        if not waiting[stream]:
            continue
        start = max(now, lock_free) if op == EMBEDDING else now
        if op == EMBEDDING:
            lock_free = start + 1
        if op + 1 == len(GRAPH.ops):
            finish[waiting[stream].popleft()] = start + 1
            op = -1
        heapq.heappush(events, (start + 1, stream, op + 1))
    return finish


def greedy(streams: int) -> list[float]:
    """RecOS's order on any free stream: highest DepValue, oldest query, no two lock holders."""
    worth = dep_local(GRAPH, STATS)
    done: list[set[int]] = [set() for _ in range(QUERIES)]
    finish, now = [0.0] * QUERIES, 0.0
    while not all(finish):
        ready = sorted(
            (-worth[op], query, op)
            for query in range(QUERIES)
            for op in range(len(GRAPH.ops))
            if op not in done[query] and set(GRAPH.ops[op].needs) <= done[query]
        )
        chosen: list[tuple[int, int]] = []
        for _, query, op in ready:
            locked = op == EMBEDDING and any(other == EMBEDDING for _, other in chosen)
            if len(chosen) < streams and not locked:
                chosen.append((query, op))
        now += 1
        for query, op in chosen:
            done[query].add(op)
            if len(done[query]) == len(GRAPH.ops):
                finish[query] = now
    return finish
