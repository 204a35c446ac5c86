# mypy: ignore-errors
"""The simulator's stream choice, compiled.

Flow: an operator that the driver is about to launch -> *its stream*, by the rules of a policy.
The rules are those of :mod:`stream_choice`, over arrays.
"""

import numba

from grace_torchrec.schedule._simulator_state import (
    BLIND,
    BY_QUERY,
    CHAIN,
    DEMAND,
    LAST,
    ROUND_ROBIN,
    SEQUENCE,
    SINGLE,
)


def _idle_stream(st, model, rules, slot, op):
    """Return an idle stream, best one that ran what the operator needs; -1 if none is idle."""
    found = -1
    for stream in range(rules.streams):
        if st.run_op[stream, 0] < 0 and st.head_S[stream] == st.tail_S[stream]:
            if found < 0:
                found = stream
            for at in range(model.need_ptr[op], model.need_ptr[op + 1]):
                if st.stream_of[slot, model.needs[at]] == stream:
                    return stream
    return found


def _shortest(st, rules, among_lock, without):
    """Return the stream that is expected to finish first; -1 if none qualifies.

    ``among_lock`` >= 0 takes only streams that hold the lock; ``without`` leaves one stream out.
    """
    best = -1
    for stream in range(rules.streams):
        if stream == without or (among_lock >= 0 and st.queued[stream, among_lock] == 0):
            continue
        if best < 0 or st.backlog_S[stream] < st.backlog_S[best]:
            best = stream
    return best


def _choose(st, model, rules, slot, op):
    """Return the stream of an operator."""
    number = st.number[slot]
    if rules.placement == SINGLE:
        return 0
    lock = model.lock_n[op]
    if rules.avoid_locks and lock >= 0:
        st.count[LAST] = model.turn_n[op]
        held = shortest(st, rules, lock, -1)
        if held >= 0:
            return held
    if rules.placement == BY_QUERY:
        return number % rules.streams
    if rules.placement == ROUND_ROBIN:
        return (op + number) % rules.streams
    if rules.placement == CHAIN:
        return (model.chain_n[op] + number) % rules.streams
    if rules.placement == BLIND:
        return st.count[SEQUENCE] % rules.streams
    if rules.avoid_locks and lock >= 0:
        return shortest(st, rules, -1, -1)
    idle = idle_stream(st, model, rules, slot, op)
    if idle >= 0 or rules.streams == 1:
        return max(idle, 0)
    first = shortest(st, rules, -1, -1)
    load = st.count[DEMAND] + model.grid_n[op]
    if st.run_op[first, 0] >= 0:
        load -= min(model.grid_n[st.run_op[first, 1]], rules.processors)
    if load / rules.processors > rules.threshold:
        return shortest(st, rules, -1, first)
    return first


_compiled = numba.njit(cache=True, nogil=True)
idle_stream, shortest = _compiled(_idle_stream), _compiled(_shortest)
choose = _compiled(_choose)
