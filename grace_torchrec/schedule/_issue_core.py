# mypy: ignore-errors
"""Hot loops of the issue order: the bytes it holds, and an order with few switches that holds few.

Flow: streams and a host order -> *held_peak*, *regrouped* -> :mod:`issue_order`, the search.
A value is held from its operator's launch until its last reader is launched; results stay.
A value nobody reads stays.  Shapes: n operators, S streams; waits and values read in CSR form.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit


def _held_peak(order_n, read_ptr, read, readers_n, most_n, kept_n):
    """Return the most bytes held while operators are launched in an order.

    ``most_n`` are the bytes that one takes while it is launched, ``kept_n`` those it leaves behind.
    """
    left_n = readers_n.copy()
    held, most = 0, 0
    for op in order_n:
        most = max(most, held + most_n[op])
        held += kept_n[op]
        for place in range(read_ptr[op], read_ptr[op + 1]):
            value = read[place]
            left_n[value] -= 1
            if left_n[value] == 0:
                held -= kept_n[value]
    return most


def _fits(first, order_n, issued_n, left_n, held, budget, read_ptr, read, bytes_n):
    """Return whether ``first``, then those not issued in their order, stay within ``budget``."""
    left_n = left_n.copy()
    for place in range(-1, order_n.size):
        op = first
        if place >= 0:
            op = order_n[place]
            if issued_n[op] or op == first:
                continue
        held += bytes_n[op]
        if held > budget:
            return False
        for at in range(read_ptr[op], read_ptr[op + 1]):
            value = read[at]
            left_n[value] -= 1
            if left_n[value] == 0:
                held -= bytes_n[value]
    return True


def _regrouped(
    order_n, stream_n, streams, wait_ptr, waits, read_ptr, read, readers_n, bytes_n, budget
):  # fmt: skip
    """Return an order with fewer switches that stays within ``budget`` if ``order_n`` does.

    It stays on a stream while that stream may go on: what its next operator waits for was issued
    and, that one out of turn, those left still fit in the given order.  Then it goes where the
    next operator of that order is.
    """
    n = order_n.size
    left_n = readers_n.copy()
    issued_n = np.zeros(n, np.bool_)
    next_n = np.full(n, -1)  # the operator after each one on its stream
    front_S, back_S = np.full(streams, -1), np.full(streams, -1)
    for op in order_n:
        stream = stream_n[op]
        if back_S[stream] < 0:
            front_S[stream] = op
        else:
            next_n[back_S[stream]] = op
        back_S[stream] = op
    found_n = np.empty(n, np.int64)
    count, first, held = 0, 0, 0
    while count < n:
        while issued_n[order_n[first]]:
            first += 1
        stream = stream_n[order_n[first]]
        while front_S[stream] >= 0:
            op = front_S[stream]
            ready = True
            for place in range(wait_ptr[op], wait_ptr[op + 1]):
                ready = ready and issued_n[waits[place]]
            while first < n and issued_n[order_n[first]]:
                first += 1
            if ready and op != order_n[first]:
                ready = fits(op, order_n, issued_n, left_n, held, budget, read_ptr, read, bytes_n)
            if not ready:
                break
            issued_n[op] = True
            found_n[count] = op
            count += 1
            front_S[stream] = next_n[op]
            held += bytes_n[op]
            for place in range(read_ptr[op], read_ptr[op + 1]):
                value = read[place]
                left_n[value] -= 1
                if left_n[value] == 0:
                    held -= bytes_n[value]
    return found_n


held_peak: Any = jit(_held_peak)
fits: Any = jit(_fits)
regrouped: Any = jit(_regrouped)
