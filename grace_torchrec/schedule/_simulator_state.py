# mypy: ignore-errors
"""The simulator's state: constants, arrays, the heap of events.

Flow: simulator.py makes a *State* -> the event loop of _simulator_core.py changes it.
Shapes: n operators, Q query slots, S streams, E events.
"""

from typing import NamedTuple

import numba
import numpy as np

ARRIVAL, PREPARED, LAUNCHED, READY = 0, 1, 2, 3  # kinds of events
SINGLE, BY_QUERY, ROUND_ROBIN, CHAIN, MONITOR, BLIND = range(6)  # placements
ASYNC, NAIVE, EVENTS = range(3)  # how an operator learns that its inputs are there
# clock: now, virtual time, area of busy processors, driver time, monitor error, operators timed
NOW, VIRTUAL, BUSY, DRIVER, ERROR = range(5)
# count: events, sequence, demand, running, driver head, driver size, driver busy, started, finished,
#        previous start, previous now, contended, embeddings, timed, waiting head, waiting tail
(HEAP, SEQUENCE, DEMAND, RUNNING, LINE_HEAD, LINE_SIZE, LINE_BUSY, STARTED, FINISHED, START, LAST,
 CONTENDED, EMBEDDINGS, TIMED, WAIT_HEAD, WAIT_TAIL) = range(16)  # fmt: skip


class Model(NamedTuple):
    """Operators: times, grids, lock (-1: none), place among embeddings, chain, priority, CSR."""

    time_n: np.ndarray
    grid_n: np.ndarray
    lock_n: np.ndarray
    turn_n: np.ndarray
    chain_n: np.ndarray
    key_n: np.ndarray
    need_ptr: np.ndarray
    needs: np.ndarray
    user_ptr: np.ndarray
    users: np.ndarray


class Rules(NamedTuple):
    """A policy and the machine's numbers; see Policy and Calibration in simulator.py."""

    placement: int
    sync: int
    urgent_first: int
    avoid_locks: int
    start_rule: int
    streams: int
    processors: int
    framework_us: float
    driver_us: float
    decision_us: float
    event_us: float
    sync_us: float
    gap_us: float
    wait_us: float
    lock_factor: float
    interference: float
    threshold: float
    jitter: float
    tables: int


class State(NamedTuple):
    """Everything that changes."""

    clock: np.ndarray
    count: np.ndarray
    event_time: np.ndarray
    event_what: np.ndarray
    queue: np.ndarray  # [S, cap, 2] slot and operator
    queue_us: np.ndarray  # [S, cap, 2] duration, predicted end
    head_S: np.ndarray
    tail_S: np.ndarray
    run_op: np.ndarray  # [S, 2] slot and operator that runs, -1 none
    run_end: np.ndarray  # virtual end
    run_predicted: np.ndarray
    backlog_S: np.ndarray
    holders: np.ndarray  # running holders of each lock
    queued: np.ndarray  # [S, locks] queued or running users of each lock
    done: np.ndarray  # [Q, n]
    missing: np.ndarray
    stream_of: np.ndarray
    ready_key: np.ndarray  # [Q, n], inf: not ready
    left: np.ndarray
    born: np.ndarray
    number: np.ndarray
    first: np.ndarray  # rotation of the embeddings
    order: np.ndarray  # operators that became ready so far
    preparing: np.ndarray
    line: np.ndarray  # driver queue
    latency: np.ndarray
    waiting: np.ndarray  # arrivals without a slot


def _push_event(st, time, kind, a, b, c):
    """Add an event to the heap."""
    place = st.count[HEAP]
    st.count[HEAP] += 1
    st.count[SEQUENCE] += 1
    while place > 0:
        above = (place - 1) >> 1
        if st.event_time[above] <= time:
            break
        st.event_time[place] = st.event_time[above]
        st.event_what[place] = st.event_what[above]
        place = above
    st.event_time[place] = time
    st.event_what[place, 0], st.event_what[place, 1] = kind, a
    st.event_what[place, 2], st.event_what[place, 3] = b, c


def _drop_event(st):
    """Remove the first event from the heap."""
    st.count[HEAP] -= 1
    size = st.count[HEAP]
    time = st.event_time[size]
    what = st.event_what[size].copy()
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and st.event_time[below + 1] < st.event_time[below]:
            below += 1
        if time <= st.event_time[below]:
            break
        st.event_time[place] = st.event_time[below]
        st.event_what[place] = st.event_what[below]
        place = below
    st.event_time[place] = time
    st.event_what[place] = what


_compiled = numba.njit(cache=True, nogil=True)
push_event, drop_event = _compiled(_push_event), _compiled(_drop_event)
