# mypy: ignore-errors
"""The simulator's event loop, compiled.

Flow: a model's operators, a policy, a load -> *run* -> latencies.  Each query has a host thread that
prepares one ready operator at a time, one driver lock that launches them, streams that run their
operators in order, processors that running operators share by their grids, and cache locks that
lengthen an embedding operator for every other holder.
Shapes: n operators, Q query slots, S streams, E events.
"""

import numba
import numpy as np

from grace_torchrec.schedule._simulator_choice import choose
from grace_torchrec.schedule._simulator_state import (
    ARRIVAL,
    BUSY,
    CONTENDED,
    DEMAND,
    DRIVER,
    EMBEDDINGS,
    ERROR,
    EVENTS,
    FINISHED,
    HEAP,
    LAST,
    LAUNCHED,
    LINE_BUSY,
    LINE_HEAD,
    LINE_SIZE,
    MONITOR,
    NAIVE,
    NOW,
    PREPARED,
    READY,
    RUNNING,
    START,
    STARTED,
    TIMED,
    VIRTUAL,
    WAIT_HEAD,
    WAIT_TAIL,
    drop_event,
    push_event,
)


def _rate(st, rules):
    """Return the speed at which every running operator gets on."""
    speed = 1.0
    if st.count[DEMAND] > rules.processors:
        speed = rules.processors / st.count[DEMAND]
    if st.count[RUNNING] > 1:
        speed /= 1 + rules.interference * (st.count[RUNNING] - 1)
    return speed


def _advance(st, rules, time):
    """Move the clocks to ``time``."""
    passed = time - st.clock[NOW]
    st.clock[VIRTUAL] += passed * rate(st, rules)
    st.clock[BUSY] += passed * min(st.count[DEMAND], rules.processors)
    st.clock[NOW] = time


def _pump(st, model, rules, stream):
    """Start the next operator of an idle stream if what it waits for is done."""
    if st.run_op[stream, 0] >= 0 or st.head_S[stream] == st.tail_S[stream]:
        return
    place = st.head_S[stream] % st.queue.shape[1]
    slot, op = st.queue[stream, place]
    waits = False
    for at in range(model.need_ptr[op], model.need_ptr[op + 1]):
        need = model.needs[at]
        if not st.done[slot, need]:
            return
        waits |= st.stream_of[slot, need] != stream
    st.head_S[stream] += 1
    length = st.queue_us[stream, place, 0] + rules.gap_us
    if waits:
        length += rules.wait_us
    lock = model.lock_n[op]
    if lock >= 0:
        st.count[EMBEDDINGS] += 1
        if st.holders[lock] > 0:
            st.count[CONTENDED] += 1
            length += model.time_n[op] * rules.lock_factor * st.holders[lock]
        st.holders[lock] += 1
    st.count[DEMAND] += min(model.grid_n[op], rules.processors)
    st.count[RUNNING] += 1
    st.run_op[stream, 0], st.run_op[stream, 1] = slot, op
    st.run_end[stream] = st.clock[VIRTUAL] + length
    st.run_predicted[stream] = st.queue_us[stream, place, 1]


def _become_ready(st, model, rules, slot, op):
    """An operator may be launched: put it where its policy takes it from."""
    st.order[slot] += 1
    key = float(st.order[slot])
    if rules.urgent_first:
        if model.lock_n[op] >= 0 or model.turn_n[op] >= 0:
            key = 1e6 + (model.turn_n[op] - st.first[slot]) % rules.tables
        else:
            key = -1e3 * model.key_n[op] + 1e-3 * st.order[slot]
    st.ready_key[slot, op] = key


def _prepare(st, model, rules, slot):
    """The query's host thread takes its next ready operator."""
    if st.preparing[slot]:
        return
    op = -1
    for candidate in range(model.time_n.size):
        ready = st.ready_key[slot, candidate] < np.inf
        if ready and (op < 0 or st.ready_key[slot, candidate] < st.ready_key[slot, op]):
            op = candidate
    if op < 0:
        return
    st.ready_key[slot, op] = np.inf
    st.preparing[slot] = True
    spread = np.random.uniform(1 - rules.jitter, 1 + rules.jitter)
    push_event(st, st.clock[NOW] + rules.framework_us * spread, PREPARED, slot, op, 0)


def _begin_query(st, model, rules, slot, number, born):
    """A query gets a slot and a host thread."""
    st.count[STARTED] += 1
    tables = rules.tables
    if rules.start_rule == 0:
        first = (st.count[LAST] + tables // 2) % tables
    elif rules.start_rule == 1:
        first = (st.count[LAST] + 1) % tables
    elif rules.start_rule == 2:
        first = (st.count[START] + st.count[LAST] + 1) % tables
    elif rules.start_rule == 3:
        first = (st.count[LAST] - st.count[START]) % tables
    else:
        first = 0
    st.count[START] = st.count[LAST] = first
    st.first[slot], st.number[slot], st.born[slot] = first, number, born
    st.left[slot], st.order[slot] = model.time_n.size, 0
    st.preparing[slot] = False
    st.done[slot] = False
    st.stream_of[slot] = -1
    st.ready_key[slot] = np.inf
    for op in range(model.time_n.size):
        st.missing[slot, op] = model.need_ptr[op + 1] - model.need_ptr[op]
        if st.missing[slot, op] == 0:
            become_ready(st, model, rules, slot, op)
    prepare(st, model, rules, slot)


def _drive(st, model, rules):
    """The driver lock takes the next prepared operator."""
    if st.count[LINE_BUSY] or st.count[LINE_SIZE] == 0:
        return
    place = st.count[LINE_HEAD] % st.line.shape[0]
    slot, op = st.line[place, 0], st.line[place, 1]
    st.count[LINE_HEAD] += 1
    st.count[LINE_SIZE] -= 1
    st.count[LINE_BUSY] = 1
    stream = choose(st, model, rules, slot, op)
    cost = rules.driver_us
    if rules.placement == MONITOR or rules.avoid_locks or rules.urgent_first:
        cost += rules.decision_us
    if rules.sync == EVENTS:
        foreign = 0
        for at in range(model.need_ptr[op], model.need_ptr[op + 1]):
            foreign += st.stream_of[slot, model.needs[at]] != stream
        cost += rules.event_us * min(foreign, rules.streams - 1) + rules.event_us * (foreign > 0)
    st.stream_of[slot, op] = stream
    st.backlog_S[stream] += model.time_n[op] + rules.gap_us
    if model.lock_n[op] >= 0:
        st.queued[stream, model.lock_n[op]] += 1
    st.clock[DRIVER] += cost
    push_event(st, st.clock[NOW] + cost, LAUNCHED, slot, op, stream)


def _launched(st, model, rules, slot, op, stream):
    """An operator is in its stream's queue; without naive waiting its users are ready."""
    st.count[LINE_BUSY] = 0
    st.preparing[slot] = False
    place = st.tail_S[stream] % st.queue.shape[1]
    st.tail_S[stream] += 1
    st.queue[stream, place, 0], st.queue[stream, place, 1] = slot, op
    spread = np.random.uniform(1 - rules.jitter, 1 + rules.jitter)
    st.queue_us[stream, place, 0] = model.time_n[op] * spread
    st.queue_us[stream, place, 1] = st.clock[NOW] + st.backlog_S[stream]
    pump(st, model, rules, stream)
    if rules.sync != NAIVE:
        for at in range(model.user_ptr[op], model.user_ptr[op + 1]):
            user = model.users[at]
            st.missing[slot, user] -= 1
            if st.missing[slot, user] == 0:
                become_ready(st, model, rules, slot, user)
    drive(st, model, rules)
    prepare(st, model, rules, slot)


def _finish(st, model, rules, stream):
    """The operator that runs on a stream is done; return its slot if its query is done, else -1."""
    slot, op = st.run_op[stream]
    st.run_op[stream, 0] = -1
    st.count[DEMAND] -= min(model.grid_n[op], rules.processors)
    st.count[RUNNING] -= 1
    lock = model.lock_n[op]
    if lock >= 0:
        st.holders[lock] -= 1
        st.queued[stream, lock] -= 1
    st.backlog_S[stream] -= model.time_n[op] + rules.gap_us
    st.clock[ERROR] += abs(st.clock[NOW] - st.run_predicted[stream])
    st.count[TIMED] += 1
    st.done[slot, op] = True
    st.left[slot] -= 1
    if rules.sync == NAIVE:
        for at in range(model.user_ptr[op], model.user_ptr[op + 1]):
            user = model.users[at]
            st.missing[slot, user] -= 1
            if st.missing[slot, user] == 0:
                push_event(st, st.clock[NOW] + rules.sync_us, READY, slot, user, 0)
    if st.left[slot] > 0:
        return -1
    st.latency[st.number[slot]] = st.clock[NOW] - st.born[slot]
    st.count[FINISHED] += 1
    return slot


def _handle(st, model, rules, free_slot):
    """Carry out the first event; return the slot that an arrival took, else -1."""
    kind, a, b, c = st.event_what[0]
    drop_event(st)
    if kind == ARRIVAL:
        if free_slot < 0:
            st.waiting[st.count[WAIT_TAIL]] = st.clock[NOW]
            st.count[WAIT_TAIL] += 1
            return -1
        begin_query(st, model, rules, free_slot, st.count[STARTED], st.clock[NOW])
        return free_slot
    if kind == PREPARED:
        place = (st.count[LINE_HEAD] + st.count[LINE_SIZE]) % st.line.shape[0]
        st.line[place, 0], st.line[place, 1] = a, b
        st.count[LINE_SIZE] += 1
        drive(st, model, rules)
    elif kind == LAUNCHED:
        launched(st, model, rules, a, b, c)
    else:
        become_ready(st, model, rules, a, b)
        prepare(st, model, rules, a)
    return -1


def _run(st, model, rules, arrivals, closed, seed):
    """Simulate until every query is done; latencies are in ``st.latency`` by number of query."""
    np.random.seed(seed)
    slots, total = st.left.size, st.latency.size
    for at in range(arrivals.size):
        push_event(st, arrivals[at], ARRIVAL, 0, 0, 0)
    while st.count[FINISHED] < total:
        soonest = -1
        for stream in range(rules.streams):
            if st.run_op[stream, 0] >= 0 and (
                soonest < 0 or st.run_end[stream] < st.run_end[soonest]
            ):
                soonest = stream
        ends = np.inf
        if soonest >= 0:
            left = max(st.run_end[soonest] - st.clock[VIRTUAL], 0.0)
            ends = st.clock[NOW] + left / rate(st, rules)
        if st.count[HEAP] > 0 and st.event_time[0] < ends:
            advance(st, rules, st.event_time[0])
            free = -1
            if st.event_what[0, 0] == ARRIVAL:
                for slot in range(slots):
                    if st.left[slot] == 0:
                        free = slot
                        break
            handle(st, model, rules, free)
            continue
        advance(st, rules, ends)
        slot = finish(st, model, rules, soonest)
        if slot >= 0:
            if closed and st.count[STARTED] < total:
                begin_query(st, model, rules, slot, st.count[STARTED], st.clock[NOW])
            elif st.count[WAIT_HEAD] < st.count[WAIT_TAIL]:
                born = st.waiting[st.count[WAIT_HEAD]]
                st.count[WAIT_HEAD] += 1
                begin_query(st, model, rules, slot, st.count[STARTED], born)
        for stream in range(rules.streams):
            pump(st, model, rules, stream)


_compiled = numba.njit(cache=True, nogil=True)
rate, advance, pump = _compiled(_rate), _compiled(_advance), _compiled(_pump)
become_ready, prepare = _compiled(_become_ready), _compiled(_prepare)
begin_query = _compiled(_begin_query)
drive = _compiled(_drive)
launched, finish, handle = _compiled(_launched), _compiled(_finish), _compiled(_handle)
run = _compiled(_run)
