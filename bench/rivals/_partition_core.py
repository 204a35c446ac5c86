"""Numba core of the hypergraph partitioner: coarsening, contraction, the weight of a cut.

Flow: called by ``partition``.  Source: heavy-connectivity clustering as in the open
multilevel partitioners, written anew.
Shapes: V vertices, V1 = V + 1, E nets, E1 = E + 1, T pins of all nets.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
LONGEST_RATED = 1000  # pins; longer nets say little about a pair and cost the square of their pins


@jit
def nets_of_vertices(net_E1: Int64s, pin_T: Int32s, num_vertices: int) -> tuple[Int64s, Int32s]:
    """Invert the pins: (indptr ``[V + 1]``, net ``[T]``)."""
    starts = np.zeros(num_vertices + 1, np.int64)
    for pin in pin_T:
        starts[pin + 1] += 1
    for vertex in range(num_vertices):
        starts[vertex + 1] += starts[vertex]
    fill = starts[:-1].copy()
    nets = np.empty(pin_T.size, np.int32)
    for net in range(net_E1.size - 1):
        for place in range(net_E1[net], net_E1[net + 1]):
            nets[fill[pin_T[place]]] = net
            fill[pin_T[place]] += 1
    return starts, nets


@jit
def coarsen(
    net_E1: Int64s,
    pin_T: Int32s,
    net_weight_E: Int64s,
    vertex_V1: Int64s,
    nets_T: Int32s,
    weight_V: Int64s,
    order_V: Int64s,
    heaviest: int,
) -> tuple[Int32s, int]:
    """Let every vertex join the cluster it shares the most net weight with.

    A net of n pins counts ``weight / (n - 1)`` for each other pin, and the sum is divided by the
    weight of the cluster, so that clusters grow evenly.

    Args:
        net_E1: Start of each net in ``pin_T``.
        pin_T: Vertices of each net.
        net_weight_E: Weight of each net.
        vertex_V1: Start of each vertex in ``nets_T``.
        nets_T: Nets of each vertex.
        weight_V: Items behind each vertex.
        order_V: The order in which vertices choose.
        heaviest: Most items of a cluster.

    Returns:
        (cluster of each vertex ``[V]``, numbered from 0; number of clusters).
    """
    num_vertices = weight_V.size
    leader = np.arange(num_vertices).astype(np.int32)
    alone = np.ones(num_vertices, np.bool_)
    weight = weight_V.copy()
    score = np.zeros(num_vertices, np.float64)
    touched = np.empty(num_vertices, np.int32)
    for vertex in order_V:
        if not alone[vertex]:
            continue
        num_touched = 0
        for entry in range(vertex_V1[vertex], vertex_V1[vertex + 1]):
            net = nets_T[entry]
            length = net_E1[net + 1] - net_E1[net]
            if length > LONGEST_RATED:
                continue
            share = net_weight_E[net] / (length - 1)
            for place in range(net_E1[net], net_E1[net + 1]):
                other = leader[pin_T[place]]
                if score[other] == 0.0:
                    touched[num_touched] = other
                    num_touched += 1
                score[other] += share
        best, best_score = -1, 0.0
        for other in touched[:num_touched]:
            value = score[other] / weight[other]
            score[other] = 0.0
            fits = other != vertex and weight[other] + weight[vertex] <= heaviest
            if fits and (value > best_score or (value == best_score and other < best)):
                best, best_score = other, value
        if best >= 0:
            leader[vertex] = best
            alone[vertex] = alone[best] = False
            weight[best] += weight[vertex]
    number = np.full(num_vertices, -1, np.int32)
    count = 0
    for vertex in range(num_vertices):
        if leader[vertex] == vertex:
            number[vertex] = count
            count += 1
    for vertex in range(num_vertices):
        number[vertex] = number[leader[vertex]]
    return number, count


@jit
def contract(
    net_E1: Int64s, pin_T: Int32s, cluster_V: Int32s, num_clusters: int
) -> tuple[Int64s, Int32s, Int32s, Int64s]:
    """Replace pins by their clusters, each once a net; nets of one pin are dropped.

    Returns:
        (indptr, pins, the old net of each new one, a hash of the pins of each new net).
    """
    indptr = np.zeros(net_E1.size, np.int64)
    pins = np.empty(pin_T.size, np.int32)
    source = np.empty(net_E1.size - 1, np.int32)
    hashes = np.empty(net_E1.size - 1, np.int64)
    seen = np.full(num_clusters, -1, np.int64)
    used, kept = 0, 0
    for net in range(net_E1.size - 1):
        start, mixed = used, np.uint64(0)
        for place in range(net_E1[net], net_E1[net + 1]):
            cluster = cluster_V[pin_T[place]]
            if cluster >= 0 and seen[cluster] != net:
                seen[cluster] = net
                pins[used] = cluster
                used += 1
                bits = np.uint64(cluster + 1) * np.uint64(0x9E3779B97F4A7C15)
                bits ^= bits >> np.uint64(29)
                mixed += bits * np.uint64(0xBF58476D1CE4E5B9)
        if used - start < 2:
            used = start
            continue
        source[kept] = net
        hashes[kept] = np.int64(mixed)
        kept += 1
        indptr[kept] = used
    return indptr[: kept + 1], pins[:used].copy(), source[:kept], hashes[:kept]


@jit
def cut_of(net_E1: Int64s, pin_T: Int32s, net_weight_E: Int64s, side_V: Bytes) -> int:
    """Return the weight of the nets with pins on both sides."""
    cut = 0
    for net in range(net_E1.size - 1):
        first = side_V[pin_T[net_E1[net]]]
        for place in range(net_E1[net] + 1, net_E1[net + 1]):
            if side_V[pin_T[place]] != first:
                cut += net_weight_E[net]
                break
    return cut
