"""Issue order: the fewest waits that keep every need, and a host order with few stream switches.

Flow: streams of the operators -> *waits* -> *host order* -> Schedule.
A wait is needed where nothing else orders two operators: their stream, or a wait before it.  With
vector clocks and the latest need first, exactly the edges of the transitive reduction remain.
Shapes: n operators, S streams.
"""

from collections import deque
from collections.abc import Sequence

Waits = tuple[tuple[int, ...], ...]


def fewest_waits(
    needs: Sequence[Sequence[int]], stream_n: Sequence[int], order_n: Sequence[int], streams: int
) -> Waits:
    """Return, for each operator, the operators on other streams that its stream must wait for.

    Args:
        needs: Places that each operator needs.
        stream_n: Stream of each operator.
        order_n: Operators in an order that respects the needs and gives each stream's own order.
        streams: Number of streams S.

    >>> fewest_waits([[], [0], [0, 1]], [0, 1, 0], [0, 1, 2], 2)
    ((), (0,), (1,))
    """
    known = [[0] * streams for _ in range(streams)]
    seen: list[list[int]] = [[] for _ in needs]
    clock, rank = [0] * len(needs), [0] * len(needs)
    for place, op in enumerate(order_n):
        rank[op] = place
    waits: list[tuple[int, ...]] = [()] * len(needs)
    for op in order_n:
        here = known[stream_n[op]]
        found = []
        for need in sorted(needs[op], key=rank.__getitem__, reverse=True):
            source = stream_n[need]
            if source != stream_n[op] and here[source] < clock[need]:
                found.append(need)
                for other, value in enumerate(seen[need]):
                    if value > here[other]:
                        here[other] = value
        here[stream_n[op]] += 1
        clock[op] = here[stream_n[op]]
        seen[op] = here.copy()
        waits[op] = tuple(found)
    return tuple(waits)


def with_few_switches(
    stream_n: Sequence[int], order_n: Sequence[int], waits: Waits, streams: int
) -> list[int]:
    """Return a host order that stays on a stream until it would wait for what is not issued yet.

    Args:
        stream_n: Stream of each operator.
        order_n: Operators; each stream keeps its own order.
        waits: What each operator waits for: issued before it, in any order given back.
        streams: Number of streams.
    """
    queues: list[deque[int]] = [deque() for _ in range(streams)]
    for op in order_n:
        queues[stream_n[op]].append(op)
    issued = [False] * len(order_n)
    order: list[int] = []
    current = stream_n[order_n[0]] if order_n else 0
    while len(order) < len(order_n):
        queue = queues[current]
        while queue and all(issued[need] for need in waits[queue[0]]):
            op = queue.popleft()
            issued[op] = True
            order.append(op)
        ready = [
            (_run_length(queues[stream], issued, waits), -stream)
            for stream in range(streams)
            if queues[stream] and all(issued[need] for need in waits[queues[stream][0]])
        ]
        if ready:
            current = -max(ready)[1]  # the longest run next: it switches least
    return order


def count_switches(stream_n: Sequence[int], order_n: Sequence[int]) -> int:
    """Return how often the host changes the stream; the first operator's stream counts.

    >>> count_switches([0, 1, 0], [0, 2, 1])
    2
    """
    streams = [stream_n[op] for op in order_n]
    return sum(a != b for a, b in zip([-1, *streams[:-1]], streams, strict=True)) if streams else 0


def _run_length(queue: deque[int], issued: list[bool], waits: Waits) -> int:
    """Return how many operators a stream could issue now."""
    length, own = 0, set()
    for op in queue:
        if not all(issued[need] or need in own for need in waits[op]):
            break
        own.add(op)
        length += 1
    return length
