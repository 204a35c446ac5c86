"""Numba core of the greedy growth: clusters from the busiest item outwards.

Flow: called by ``paper_greedy``.  Source: GRACE, ASPLOS'23 (anchor = busiest item that is free;
admit the neighbour of greatest value; a cluster of k items costs 2**k - 1 - k rows).  The stop
rules are derived, see ``paper_greedy``.  ``grow`` is one function, for each of its steps needs all
that is known of the cluster so far.
Shapes: N items, N1 = N + 1, E directed edges, C clusters, C1 = C + 1, M members.
"""

import numpy as np
import numpy.typing as npt

from grace_kernels._jit import jit

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ENLARGED, MARGINAL, LAST_ADDED, FIRST_EDGE, FLOOR = range(5)


@jit
def interpolate(lower: float, upper: float, interpolation: float) -> float:
    """Return the point between two bounds: 0 is ``lower``, 1 is ``upper``."""
    return lower + interpolation * (upper - lower)


@jit
def admits(
    policy: int,
    tolerance: float,
    value: float,
    rows: int,
    more_value: float,
    more_rows: int,
    last: float,
    first: float,
) -> bool:
    """Say whether a cluster may grow by a candidate.

    Args:
        policy: One of the five constants of this module.
        tolerance: The user's threshold; reads per row for ``FLOOR``, a ratio elsewhere.
        value: Reads that the cluster saves now (0 for one item).
        rows: Stored rows of the cluster now (0 for one item).
        more_value: Reads that the candidate adds.
        more_rows: Stored rows that the candidate adds.
        last: Value per row that the newest member added.
        first: Value per row of the first pair.
    """
    if policy == FLOOR:
        return more_value >= tolerance * more_rows
    if rows == 0:
        return True
    if policy == ENLARGED:
        return (value + more_value) / (rows + more_rows) >= tolerance * value / rows
    if policy == MARGINAL:
        return more_value / more_rows >= tolerance * value / rows
    if policy == LAST_ADDED:
        return more_value / more_rows >= tolerance * last
    return more_value / more_rows >= tolerance * first


@jit
def grow(
    indptr_N1: Int64s,
    partners_E: Int32s,
    counts_E: Int32s,
    anchors_N: Int64s,
    budget: int,
    size_limit: int,
    interpolation: float,
    tolerance: float,
    policy: int,
) -> tuple[Int64s, Int64s, Floats]:
    """Grow disjoint clusters until no row of the budget is left.

    A candidate's marginal value lies between its strongest edge into the cluster and the sum of
    those edges. Ties go to the lower id, so the order of partners has no influence.

    Args:
        indptr_N1: Start of each item's edges.
        partners_E: Partner of each edge.
        counts_E: Count of each edge.
        anchors_N: Items in the order in which they may start a cluster.
        budget: Stored rows that all clusters together may cost.
        size_limit: Most items of a cluster.
        interpolation: Where between the bounds the value is taken.
        tolerance: See :func:`admits`.
        policy: See :func:`admits`.

    Returns:
        (cluster offsets ``[C + 1]``, members ``[M]`` in the order they joined, value ``[C]``).
    """
    num_items = indptr_N1.size - 1
    taken = np.zeros(num_items, np.bool_)
    strongest = np.zeros(num_items, np.int64)
    summed = np.zeros(num_items, np.int64)
    touched = np.empty(num_items, np.int64)
    offsets = np.zeros(num_items // 2 + 1, np.int64)
    members = np.empty(num_items, np.int64)
    values = np.empty(num_items // 2, np.float64)
    num_clusters, used = 0, 0
    for anchor in anchors_N:
        if used >= budget:
            break
        if taken[anchor]:
            continue
        start = offsets[num_clusters]
        members[start] = anchor
        taken[anchor] = True
        size, rows, num_touched = 1, 0, 0
        value, last, first = 0.0, 0.0, 0.0
        while size < size_limit:
            newest = members[start + size - 1]
            edges = slice(indptr_N1[newest], indptr_N1[newest + 1])
            num_touched = _add_edges(
                partners_E[edges], counts_E[edges], taken, strongest, summed, touched, num_touched
            )
            more_rows = (1 << size) - 1
            if used + rows + more_rows > budget:
                break
            best, more = _best_candidate(
                touched[:num_touched], taken, strongest, summed, interpolation
            )
            if best < 0 or not admits(policy, tolerance, value, rows, more, more_rows, last, first):
                break
            last = more / more_rows
            if size == 1:
                first = last
            value += more
            rows += more_rows
            members[start + size] = best
            taken[best] = True
            size += 1
        for candidate in touched[:num_touched]:
            summed[candidate] = 0
            strongest[candidate] = 0
        if size == 1:
            continue  # no partner pays for one row, so none pays for the more rows of a later join
        values[num_clusters] = value
        used += rows
        num_clusters += 1
        offsets[num_clusters] = start + size
    return offsets[: num_clusters + 1], members[: offsets[num_clusters]], values[:num_clusters]


@jit
def _add_edges(
    partners: Int32s,
    counts: Int32s,
    taken_N: npt.NDArray[np.bool_],
    strongest_N: Int64s,
    summed_N: Int64s,
    touched_N: Int64s,
    num_touched: int,
) -> int:
    """Add a new member's edges to the bounds of its free partners; return how many are touched."""
    for edge in range(partners.size):
        partner = partners[edge]
        if taken_N[partner]:
            continue
        if summed_N[partner] == 0:
            touched_N[num_touched] = partner
            num_touched += 1
        summed_N[partner] += counts[edge]
        strongest_N[partner] = max(strongest_N[partner], counts[edge])
    return num_touched


@jit
def _best_candidate(
    candidates: Int64s,
    taken_N: npt.NDArray[np.bool_],
    strongest_N: Int64s,
    summed_N: Int64s,
    interpolation: float,
) -> tuple[int, float]:
    """Return the free candidate of greatest value, and that value; -1 if there is none."""
    best, best_value = -1, -1.0
    for candidate in candidates:
        if taken_N[candidate]:
            continue
        value = interpolate(strongest_N[candidate], summed_N[candidate], interpolation)
        if value > best_value or (value == best_value and candidate < best):
            best, best_value = candidate, value
    return best, best_value
