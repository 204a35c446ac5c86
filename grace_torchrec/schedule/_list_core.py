# mypy: ignore-errors
"""The hot loops of scheduling: list schedules of many priorities, their waits.

Flow: priorities -> *place_ops* (one list schedule) -> *search* (many, then around the best).
A stream is a queue in order; an operator starts when its stream is free, what it needs is done
(``wait_us`` later if that ran on another stream) and its blocks fit beside the running ones.
Shapes: n operators, S streams; needs and users in CSR form.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_torchrec.schedule._issue_core import held_peak

EPSILON = 1e-9


def _earliest_fit(start, duration, demand, capacity, begin_n, end_n, demand_n, placed_n, count):
    """Return the first time from ``start`` at which ``demand`` fits for ``duration``."""
    while True:
        used_most, next_end, clear = 0, np.inf, True
        # the load can only rise where a placed operator begins: look at those points and the start
        for probe in range(-1, count):
            at = start
            if probe >= 0:
                at = begin_n[placed_n[probe]]
                if at <= start or at >= start + duration - EPSILON:
                    continue
            used = demand
            soonest = np.inf
            for other in range(count):
                op = placed_n[other]
                if begin_n[op] <= at + EPSILON and end_n[op] > at + EPSILON:
                    used += demand_n[op]
                    if end_n[op] < soonest:
                        soonest = end_n[op]
            used_most = max(used_most, used)
            if used > capacity:
                clear = False
                next_end = min(next_end, soonest)
        if clear:
            return start
        start = next_end


def _place_ops(
    key_n, time_n, demand_n, need_ptr, needs, user_ptr, users, streams, capacity, wait_us, pin_n,
    stream_n, begin_n, end_n, order_n,
):  # fmt: skip
    """Place operators by falling key, each where it starts first; return the makespan.

    Ties go to the stream that needs no wait, then to the one that was busy longest.
    ``capacity`` 0 is no limit; ``pin_n`` -1 is free.  Writes the last four arrays.
    """
    n = time_n.size
    missing = np.empty(n, np.int64)
    ready = [(0.0, 0)]
    ready.clear()
    for op in range(n):
        missing[op] = need_ptr[op + 1] - need_ptr[op]
        if missing[op] == 0:
            numba_push(ready, (-key_n[op], op))
    free_S = np.zeros(streams)
    count, makespan = 0, 0.0
    while len(ready) > 0:
        _, op = numba_pop(ready)
        best, best_start, best_wait = -1, np.inf, True
        for stream in range(streams):
            if pin_n[op] >= 0 and pin_n[op] != stream:
                continue
            start, waits = free_S[stream], False
            for place in range(need_ptr[op], need_ptr[op + 1]):
                need = needs[place]
                done = end_n[need]
                if stream_n[need] != stream:
                    done += wait_us
                    waits = True
                if done > start:
                    start = done
            if capacity > 0 and start < best_start - EPSILON:
                start = earliest_fit(
                    start, time_n[op], demand_n[op], capacity,
                    begin_n, end_n, demand_n, order_n, count,
                )  # fmt: skip
            better = start < best_start - EPSILON
            if not better and start < best_start + EPSILON:
                if waits != best_wait:
                    better = best_wait
                else:
                    better = free_S[stream] > free_S[best] + EPSILON
            if better:
                best, best_start, best_wait = stream, start, waits
        stream_n[op], begin_n[op], end_n[op] = best, best_start, best_start + time_n[op]
        free_S[best] = end_n[op]
        order_n[count] = op
        count += 1
        makespan = max(makespan, end_n[op])
        for place in range(user_ptr[op], user_ptr[op + 1]):
            user = users[place]
            missing[user] -= 1
            if missing[user] == 0:
                numba_push(ready, (-key_n[user], user))
    return makespan


def _place_by_time(
    key_n, time_n, demand_n, need_ptr, needs, user_ptr, users, streams, capacity, stream_n, begin_n,
    end_n, order_n,
):  # fmt: skip
    """Start, whenever one ends, the ready operators that fit, by falling key; return the makespan.

    For machines without pins and waits: it finds schedules that placing one by one does not.
    """
    n = time_n.size
    missing = np.empty(n, np.int64)
    state_n = np.zeros(n, np.int64)  # 0 waiting, 1 ready, 2 running, 3 done
    for op in range(n):
        missing[op] = need_ptr[op + 1] - need_ptr[op]
        state_n[op] = 1 if missing[op] == 0 else 0
    busy_S = np.full(streams, -1)
    now, used, running, count = 0.0, 0, 0, 0
    while True:
        while running < streams:
            best = -1
            for op in range(n):
                fits = state_n[op] == 1 and (capacity == 0 or used + demand_n[op] <= capacity)
                if fits and (best < 0 or key_n[op] > key_n[best]):
                    best = op
            if best < 0:
                break
            stream = 0
            while busy_S[stream] >= 0:
                stream += 1
            busy_S[stream], stream_n[best] = best, stream
            begin_n[best], end_n[best], state_n[best] = now, now + time_n[best], 2
            order_n[count] = best
            count += 1
            used += demand_n[best]
            running += 1
        if running == 0:
            return now
        now = np.inf
        for stream in range(streams):
            if busy_S[stream] >= 0:
                now = min(now, end_n[busy_S[stream]])
        for stream in range(streams):
            op = busy_S[stream]
            if op >= 0 and end_n[op] <= now + EPSILON:
                busy_S[stream], state_n[op] = -1, 3
                used -= demand_n[op]
                running -= 1
                for place in range(user_ptr[op], user_ptr[op + 1]):
                    user = users[place]
                    missing[user] -= 1
                    if missing[user] == 0:
                        state_n[user] = 1


def _count_waits(stream_n, order_n, need_ptr, needs, streams):
    """Return (waits, operators waited for) of the fewest events that keep every need."""
    n = order_n.size
    known_SS = np.zeros((streams, streams), np.int64)
    seen_nS = np.zeros((n, streams), np.int64)
    clock_n = np.zeros(n, np.int64)
    rank_n = np.empty(n, np.int64)
    waited = np.zeros(n, np.bool_)
    for rank in range(n):
        rank_n[order_n[rank]] = rank
    waits = 0
    for rank in range(n):
        op = order_n[rank]
        stream = stream_n[op]
        while True:
            latest = -1
            for place in range(need_ptr[op], need_ptr[op + 1]):
                need = needs[place]
                source = stream_n[need]
                unknown = source != stream and known_SS[stream, source] < clock_n[need]
                if unknown and (latest < 0 or rank_n[need] > rank_n[latest]):
                    latest = need
            if latest < 0:
                break
            waits += 1
            waited[latest] = True
            for other in range(streams):
                if seen_nS[latest, other] > known_SS[stream, other]:
                    known_SS[stream, other] = seen_nS[latest, other]
        known_SS[stream, stream] += 1
        clock_n[op] = known_SS[stream, stream]
        seen_nS[op] = known_SS[stream]
    return waits, np.sum(waited)


def _search(
    keys_Kn, noise_Gn, time_n, demand_n, need_ptr, needs, user_ptr, users, streams, capacity,
    wait_us, pin_n, by_time, wait_price, most_n, kept_n, budget,
):  # fmt: skip
    """Try every row of ``keys_Kn``, then the best row times each row of ``noise_Gn`` in turn.

    Returns (makespan, stream_n, begin_n, key_n, order_n) of the lowest makespan plus
    ``wait_price`` for each wait, stretched by what the order holds over ``budget`` bytes (0 is no
    limit).  A step that is no worse is kept, so the search can drift.
    """
    n = time_n.size
    best_score, best_makespan = np.inf, np.inf
    best_stream, best_begin = np.zeros(n, np.int64), np.zeros(n)
    best_order, best_key = np.zeros(n, np.int64), keys_Kn[0].copy()
    stream_n, begin_n, end_n = np.zeros(n, np.int64), np.zeros(n), np.zeros(n)
    order_n, readers_n = np.zeros(n, np.int64), user_ptr[1:] - user_ptr[:-1]
    for attempt in range(keys_Kn.shape[0] + noise_Gn.shape[0]):
        if attempt < keys_Kn.shape[0]:
            key_n = keys_Kn[attempt]
        else:
            key_n = best_key * noise_Gn[attempt - keys_Kn.shape[0]]
        for way in range(2 if by_time else 1):
            if way == 0:
                makespan = place_ops(
                    key_n, time_n, demand_n, need_ptr, needs, user_ptr, users, streams, capacity,
                    wait_us, pin_n, stream_n, begin_n, end_n, order_n,
                )  # fmt: skip
            else:
                makespan = place_by_time(
                    key_n, time_n, demand_n, need_ptr, needs, user_ptr, users, streams, capacity,
                    stream_n, begin_n, end_n, order_n,
                )  # fmt: skip
            waits = 0
            if wait_price > 0 and makespan <= best_score:
                waits, _ = count_waits(stream_n, order_n, need_ptr, needs, streams)
            score = makespan + wait_price * waits
            if budget > 0 and score <= best_score:
                held = held_peak(order_n, need_ptr, needs, readers_n, most_n, kept_n)
                score *= max(1.0, held / budget)
            if score <= best_score:
                best_score, best_makespan = score, makespan
                best_stream[:], best_begin[:], best_order[:] = stream_n, begin_n, order_n
                best_key = key_n.copy()
    return best_makespan, best_stream, best_begin, best_key, best_order


def _push(heap, item):
    """Push onto a binary heap kept in a list."""
    heap.append(item)
    place = len(heap) - 1
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] <= item:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = item


def _pop(heap):
    """Pop the smallest item of a binary heap kept in a list."""
    last = heap.pop()
    if len(heap) == 0:
        return last
    smallest = heap[0]
    place, size = 0, len(heap)
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if last <= heap[below]:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = last
    return smallest


numba_push, numba_pop = jit(_push), jit(_pop)
earliest_fit = jit(_earliest_fit)
place_ops = jit(_place_ops)
place_by_time: Any = jit(_place_by_time)
count_waits = jit(_count_waits)
search: Any = jit(_search)
