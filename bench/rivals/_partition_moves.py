"""Numba core of the hypergraph partitioner: moves of single vertices that improve a cut.

Flow: called by ``partition``.  Source: Fiduccia and Mattheyses' passes between two sides, and
single moves between all parts, written anew.
Shapes: V vertices, V1 = V + 1, E nets, E1 = E + 1, T pins of all nets, P parts.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
MOST_TRIED = 30  # vertices that do not fit before a side is given up for one move


@jit
def _unlink(vertex: int, bucket: int, head: Int32s, after: Int32s, before: Int32s) -> None:
    """Take a vertex out of its bucket."""
    if before[vertex] >= 0:
        after[before[vertex]] = after[vertex]
    else:
        head[bucket] = after[vertex]
    if after[vertex] >= 0:
        before[after[vertex]] = before[vertex]


@jit
def _link(vertex: int, bucket: int, head: Int32s, after: Int32s, before: Int32s) -> None:
    """Put a vertex at the head of a bucket: the latest change is tried first."""
    before[vertex] = -1
    after[vertex] = head[bucket]
    if head[bucket] >= 0:
        before[head[bucket]] = vertex
    head[bucket] = vertex


@jit
def _gains(
    net_weight_E: Int64s,
    vertex_V1: Int64s,
    nets_T: Int32s,
    side_V: Bytes,
    pins_on_E2: npt.NDArray[np.int32],
) -> tuple[Int64s, int]:
    """Return what moving each vertex cuts less, int64 ``[V]``, and the widest gain there can be."""
    gain = np.zeros(side_V.size, np.int64)
    widest = 1
    for vertex in range(side_V.size):
        side, total = side_V[vertex], 0
        for entry in range(vertex_V1[vertex], vertex_V1[vertex + 1]):
            net = nets_T[entry]
            total += net_weight_E[net]
            if pins_on_E2[net, side] == 1:
                gain[vertex] += net_weight_E[net]
            if pins_on_E2[net, 1 - side] == 0:
                gain[vertex] -= net_weight_E[net]
        widest = max(widest, total)
    return gain, widest


@jit
def _pick(
    head: Int32s, after: Int32s, top: int, weight_V: Int64s, room: int, overweight: bool
) -> tuple[int, int]:
    """Return (vertex, bucket) of the greatest gain that fits in ``room``; -1 where none does."""
    bucket, tried = top, 0
    while bucket >= 0 and tried < MOST_TRIED:
        vertex = head[bucket]
        while vertex >= 0 and tried < MOST_TRIED:
            if overweight or weight_V[vertex] <= room:
                return vertex, bucket
            vertex = after[vertex]
            tried += 1
        bucket -= 1
    return -1, -1


@jit
def _follow(
    net_E1: Int64s,
    pin_T: Int32s,
    weight: int,
    net: int,
    side: int,
    pins_on_E2: npt.NDArray[np.int32],
    side_V: Bytes,
    gain: Int64s,
    widest: int,
    free: npt.NDArray[np.bool_],
    head: Int32s,
    after: Int32s,
    before: Int32s,
    top: Int64s,
) -> None:
    """Count a move from ``side`` in one net and update the gains of its free pins."""
    from_pins, to_pins = pins_on_E2[net, side], pins_on_E2[net, 1 - side]
    pins_on_E2[net, side] -= 1
    pins_on_E2[net, 1 - side] += 1
    if to_pins > 1 and from_pins > 2:
        return  # the net stays cut and no pin can free it: no gain changes
    for place in range(net_E1[net], net_E1[net + 1]):
        vertex = pin_T[place]
        if not free[vertex]:
            continue
        own = side_V[vertex]
        if own == side:
            change = weight * ((to_pins == 0) + (from_pins == 2))
        else:
            change = -weight * ((to_pins == 1) + (from_pins == 1))
        if change:
            _unlink(vertex, gain[vertex] + widest, head[own], after, before)
            gain[vertex] += change
            _link(vertex, gain[vertex] + widest, head[own], after, before)
            top[own] = max(top[own], gain[vertex] + widest)


@jit
def refine(
    net_E1: Int64s,
    pin_T: Int32s,
    net_weight_E: Int64s,
    vertex_V1: Int64s,
    nets_T: Int32s,
    weight_V: Int64s,
    side_V: Bytes,
    most_2: Int64s,
    patience: int,
) -> int:
    """Run one pass of Fiduccia-Mattheyses moves and keep its best point.

    Vertices move one by one, each once, the greatest gain first, from a side that is too heavy
    or to one that has room; the pass ends ``patience`` moves after its best point.

    Args:
        net_E1: Start of each net in ``pin_T``.
        pin_T: Vertices of each net.
        net_weight_E: Weight of each net.
        vertex_V1: Start of each vertex in ``nets_T``.
        nets_T: Nets of each vertex.
        weight_V: Items behind each vertex.
        side_V: 0 or 1 for each vertex; changed in place.
        most_2: Most items of each side.
        patience: Moves without gain after which the pass ends.

    Returns:
        Net weight by which the cut fell (below 0 where it rose to reach the balance).
    """
    num_vertices = weight_V.size
    pins_on = np.zeros((net_E1.size - 1, 2), np.int32)
    for net in range(net_E1.size - 1):
        for place in range(net_E1[net], net_E1[net + 1]):
            pins_on[net, side_V[pin_T[place]]] += 1
    gain, widest = _gains(net_weight_E, vertex_V1, nets_T, side_V, pins_on)
    head = np.full((2, 2 * widest + 1), -1, np.int32)
    after, before = np.full(num_vertices, -1, np.int32), np.full(num_vertices, -1, np.int32)
    load, top = np.zeros(2, np.int64), np.zeros(2, np.int64)
    free = np.ones(num_vertices, np.bool_)
    for vertex in range(num_vertices):
        side, bucket = side_V[vertex], gain[vertex] + widest
        load[side] += weight_V[vertex]
        _link(vertex, bucket, head[side], after, before)
        top[side] = max(top[side], bucket)
    moved = np.empty(num_vertices, np.int32)
    num_moved, best_moved, total_gain, best_gain = 0, 0, 0, 0
    best_excess = max(load[0] - most_2[0], 0) + max(load[1] - most_2[1], 0)
    while num_moved - best_moved < patience or best_excess > 0:
        chosen, chosen_bucket = -1, -1
        for side in range(2):
            if load[1 - side] > most_2[1 - side]:
                continue  # the other side must lose weight, not gain it
            while top[side] > 0 and head[side, top[side]] < 0:
                top[side] -= 1
            room, overweight = most_2[1 - side] - load[1 - side], load[side] > most_2[side]
            vertex, bucket = _pick(head[side], after, top[side], weight_V, room, overweight)
            if bucket > chosen_bucket or (bucket == chosen_bucket >= 0 and load[1] > load[0]):
                chosen, chosen_bucket = vertex, bucket
        if chosen < 0:
            break
        side = side_V[chosen]
        _unlink(chosen, chosen_bucket, head[side], after, before)
        free[chosen] = False
        for entry in range(vertex_V1[chosen], vertex_V1[chosen + 1]):
            net = nets_T[entry]
            _follow(
                *(net_E1, pin_T, net_weight_E[net], net, side, pins_on, side_V),
                *(gain, widest, free, head, after, before, top),
            )
        side_V[chosen] = 1 - side
        load[side] -= weight_V[chosen]
        load[1 - side] += weight_V[chosen]
        total_gain += chosen_bucket - widest
        moved[num_moved] = chosen
        num_moved += 1
        excess = max(load[0] - most_2[0], 0) + max(load[1] - most_2[1], 0)
        if excess < best_excess or (excess == best_excess and total_gain > best_gain):
            best_moved, best_gain, best_excess = num_moved, total_gain, excess
    for vertex in moved[best_moved:num_moved]:
        side_V[vertex] = 1 - side_V[vertex]
    return best_gain


@jit
def improve_parts(
    net_E1: Int64s,
    pin_T: Int32s,
    vertex_V1: Int64s,
    nets_T: Int32s,
    part_V: Int64s,
    num_parts: int,
    most: int,
    passes: int,
) -> int:
    """Move single vertices between all parts while fewer parts are touched, in place.

    A vertex moves to the part with room where the nets touch the fewest parts more; without gain
    only to even out the sizes, which makes room.

    Args:
        net_E1: Start of each net in ``pin_T``.
        pin_T: Vertices of each net.
        vertex_V1: Start of each vertex in ``nets_T``.
        nets_T: Nets of each vertex.
        part_V: Part of each vertex; changed in place.
        num_parts: Parts P; P counters of 16 bits a net are held.
        most: Most vertices of a part.
        passes: Most rounds over all vertices.

    Returns:
        How many (net, part) touches fewer there are.
    """
    pins_in = np.zeros((net_E1.size - 1, num_parts), np.int16)
    for net in range(net_E1.size - 1):
        for place in range(net_E1[net], net_E1[net + 1]):
            pins_in[net, part_V[pin_T[place]]] += 1
    load = np.zeros(num_parts, np.int64)
    for part in part_V:
        load[part] += 1
    touched = np.zeros(num_parts, np.int64)
    total = 0
    for _ in range(passes):
        gained = 0
        for vertex in range(part_V.size):
            own, alone = part_V[vertex], 0
            touched[:] = 0
            nets = nets_T[vertex_V1[vertex] : vertex_V1[vertex + 1]]
            for net in nets:
                alone += pins_in[net, own] == 1
                for part in range(num_parts):
                    touched[part] += pins_in[net, part] > 0
            best, best_gain = -1, 0
            for part in range(num_parts):
                if part == own or load[part] >= most:
                    continue
                gain = alone - (nets.size - touched[part])
                evens = best < 0 and gain == 0 and load[part] + 1 < load[own]
                if gain > best_gain or evens:
                    best, best_gain = part, gain
            if best >= 0:
                for net in nets:
                    pins_in[net, own] -= 1
                    pins_in[net, best] += 1
                load[own] -= 1
                load[best] += 1
                part_V[vertex] = best
                gained += best_gain
        total += gained
        if gained == 0:
            break
    return total
