"""Hypergraph partitioning: items into parts of bounded size, few parts a bag.

Flow: layered train bags -> *parts* -> MERCI's clustering.  Multilevel recursive bisection: a
hypergraph is coarsened until it is small, cut in two there, and the cut is refined on the way
back; both halves are cut again until each fits in one part. A bag that is cut goes on in both
halves, so the number of parts a bag touches is what falls; single moves between all parts lower
it further at the end.  Written anew after the scheme that
the open partitioners share: PaToH, which MERCI's authors call, is not free to use.
Shapes: V vertices, E nets, T pins of all nets, N items.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.rivals import _partition_core as core
from bench.rivals import _partition_moves as moves
from grace_torchrec.traces.trace import Trace

COARSEST = 120  # vertices at which the first cut is made
STARTS = 8  # first cuts that are tried
PASSES = 4  # of refinement at every level, while they gain
IMPROVEMENTS = 8  # rounds of single moves between all parts at the end, while they gain
MOST_COUNTERS = 1 << 29  # of 16 bits; where bags x parts pass it, those rounds are left out
MOST_SHRUNK = 0.95  # a level that keeps more of its vertices ends the coarsening
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class _Hypergraph:
    """Nets of two or more pins.

    Attributes:
        net_E1: int64 ``[E + 1]``, start of each net in ``pin_T``.
        pin_T: int32, the vertices of each net.
        net_weight_E: int64, how many bags a net stands for.
        weight_V: int64, how many items a vertex stands for.
        vertex_V1: int64 ``[V + 1]``, start of each vertex in ``nets_T``.
        nets_T: int32, the nets of each vertex.
    """

    net_E1: Int64s
    pin_T: Int32s
    net_weight_E: Int64s
    weight_V: Int64s
    vertex_V1: Int64s
    nets_T: Int32s

    @classmethod
    def of(
        cls, net_E1: Int64s, pin_T: Int32s, net_weight_E: Int64s, weight_V: Int64s
    ) -> "_Hypergraph":
        """Add the nets of each vertex."""
        inverse = core.nets_of_vertices(net_E1, pin_T, weight_V.size)
        return cls(net_E1, pin_T, net_weight_E, weight_V, *inverse)


def parts_of_items(bags: Trace, most_items: int, seed: int = 0) -> Int64s:
    """Return the part of each item, int64 ``[N]``; -1 for items that no bag holds.

    Args:
        bags: Bags without repeats.
        most_items: Most items of a part.
        seed: Of the orders that are tried.
    """
    used = np.flatnonzero(bags.counts())
    number_N = np.full(bags.num_items, -1, np.int32)
    number_N[used] = np.arange(used.size)
    whole = _contracted(
        bags.offsets_B1,
        bags.ids_L.astype(np.int32),
        np.ones(bags.num_bags, np.int64),
        number_N,
        used.size,
    )
    graph = _Hypergraph.of(*whole, np.ones(used.size, np.int64))
    num_parts = -(-used.size // max(int(most_items * 0.97), 1))
    part_V = np.zeros(used.size, np.int64)
    rng = np.random.default_rng(seed)
    todo = [(graph, np.arange(used.size), 0, num_parts)]
    while todo:
        piece, vertices, first, parts = todo.pop()
        if parts <= 1:
            part_V[vertices] = first
            continue
        side_V = _bisect(piece, parts, most_items, rng)
        left = parts - parts // 2
        for side, start, share in ((0, first, left), (1, first + left, parts // 2)):
            inside = side_V == side
            todo.append((_half(piece, inside), vertices[inside], start, share))
    if graph.net_weight_E.size * num_parts <= MOST_COUNTERS:
        moves.improve_parts(
            *(graph.net_E1, graph.pin_T, graph.vertex_V1, graph.nets_T),
            *(part_V, num_parts, most_items, IMPROVEMENTS),
        )
    part_N = np.full(bags.num_items, -1, np.int64)
    part_N[used] = part_V
    return part_N


def _contracted(
    net_E1: Int64s, pin_T: Int32s, net_weight_E: Int64s, cluster_V: Int32s, num_clusters: int
) -> tuple[Int64s, Int32s, Int64s]:
    """Replace pins by clusters and join equal nets; vertices of cluster -1 are left out."""
    indptr, pins, source, hashes = core.contract(net_E1, pin_T, cluster_V, num_clusters)
    _, first, same = np.unique(hashes, return_index=True, return_inverse=True)
    weight = np.bincount(same, weights=net_weight_E[source], minlength=first.size)
    lengths = np.diff(indptr)[first]
    joined = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    place = np.repeat(indptr[first] - joined[:-1], lengths) + np.arange(joined[-1])
    return joined, pins[place], weight.astype(np.int64)


def _half(graph: _Hypergraph, inside_V: npt.NDArray[np.bool_]) -> _Hypergraph:
    """Return the hypergraph of some vertices."""
    number_V = np.where(inside_V, np.cumsum(inside_V) - 1, -1).astype(np.int32)
    weight = graph.weight_V[inside_V]
    nets = _contracted(graph.net_E1, graph.pin_T, graph.net_weight_E, number_V, weight.size)
    return _Hypergraph.of(*nets, weight)


def _bisect(graph: _Hypergraph, parts: int, most_items: int, rng: np.random.Generator) -> Bytes:
    """Cut in two so that the halves fit in ``parts - parts // 2`` and ``parts // 2`` parts."""
    items = int(graph.weight_V.sum())
    shares = np.array([parts - parts // 2, parts // 2])
    depth = int(np.ceil(np.log2(parts)))
    slack = (most_items * parts / items) ** (1 / depth)  # what later cuts need stays for them
    most_2 = np.minimum(np.ceil(items * shares / parts * slack), most_items * shares).astype(
        np.int64
    )
    levels: list[tuple[_Hypergraph, Int32s]] = []
    heaviest = max(2, items // 40)
    while graph.weight_V.size > COARSEST:
        order = rng.permutation(graph.weight_V.size)
        cluster_V, count = core.coarsen(
            *(graph.net_E1, graph.pin_T, graph.net_weight_E),
            *(graph.vertex_V1, graph.nets_T, graph.weight_V),
            *(order, heaviest),
        )
        if count > MOST_SHRUNK * cluster_V.size:
            break
        levels.append((graph, cluster_V))
        weight = np.bincount(cluster_V, weights=graph.weight_V).astype(np.int64)
        nets = _contracted(graph.net_E1, graph.pin_T, graph.net_weight_E, cluster_V, count)
        graph = _Hypergraph.of(*nets, weight)
    side_V = _first_cut(graph, most_2, rng)
    for finer, cluster_V in reversed(levels):
        side_V = side_V[cluster_V]
        _refine(finer, side_V, most_2)
    return side_V


def _first_cut(graph: _Hypergraph, most_2: Int64s, rng: np.random.Generator) -> Bytes:
    """Grow one side from a random vertex, several times; return the best cut."""
    best, best_key = np.zeros(0, np.int8), (float("inf"), float("inf"))
    for _ in range(STARTS):
        side_V = np.ones(graph.weight_V.size, np.int8)
        if side_V.size:
            side_V[rng.integers(side_V.size)] = 0
        _refine(graph, side_V, most_2)
        load_2 = np.bincount(side_V, weights=graph.weight_V, minlength=2)
        excess = float(np.maximum(load_2 - _loose(graph, most_2), 0).sum())
        cut = core.cut_of(graph.net_E1, graph.pin_T, graph.net_weight_E, side_V)
        if (excess, cut) < best_key:
            best, best_key = side_V, (excess, cut)
    return best


def _loose(graph: _Hypergraph, most_2: Int64s) -> Int64s:
    """Return the limits with room for one vertex, since coarse vertices cannot fill them exactly."""
    return most_2 + int(graph.weight_V.max(initial=1)) - 1


def _refine(graph: _Hypergraph, side_V: Bytes, most_2: Int64s) -> None:
    """Refine a cut in place until a pass gains nothing."""
    patience = max(100, min(graph.weight_V.size // 20, 2000))
    for _ in range(PASSES):
        gain = moves.refine(
            *(graph.net_E1, graph.pin_T, graph.net_weight_E),
            *(graph.vertex_V1, graph.nets_T, graph.weight_V),
            *(side_V, _loose(graph, most_2), patience),
        )
        if gain <= 0:
            break
