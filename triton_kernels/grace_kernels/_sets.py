"""Numba core of rewriting with a set code: find the sets a bag holds, then pack them greedily.

Flow: cpu_codes.py calls :func:`rewrite_all`.  Meaning: reference_sets.py, equal row by row.
Counters of all items live in two arrays that are clean between bags; only what a bag touched is
cleared.
"""

from typing import Any

import numpy as np

from grace_kernels._jit import jit
from grace_kernels.reference import DROP, PADDING, RAISE

U = np.uintp


@jit
def rewrite_all(ids: Any, offsets: Any, weight_bits: Any, home_indptr: Any, set_row: Any,
                others_indptr: Any, others: Any, policy: int, left: Any, wanted: Any, rows: Any,
                origin: Any) -> Any:  # fmt: skip
    """Rewrite every bag into ``rows``.

    Args:
        ids: Raw ids.
        offsets: int64 ``[B + 1]``.
        weight_bits: int32 view of the weights, or empty: all weights count as equal.
        home_indptr: int32 ``[N + 1]``, see reference_sets.py, as the next three.
        set_row: int32 ``[R]``.
        others_indptr: int32 ``[R + 1]``.
        others: int32 ``[S]``.
        policy: RAISE, DROP or ZERO_ROW of reference.py.
        left: int32 ``[N]`` of zeros, zeros again on return.
        wanted: int32 ``[N]`` of zeros, zeros again on return.
        rows: int64, as many as ids; receives rows.
        origin: int64, receives the position each row came from.

    Returns:
        (ends ``[B + 1]``, ids asked for, -1 or the position of a bad id).
    """
    ends = np.zeros(offsets.size, np.int64)
    longest = np.int64(1)
    for bag in range(offsets.size - 1):
        longest = max(longest, offsets[bag + 1] - offsets[bag])
    places = np.empty(longest, np.int64)
    found = np.empty((3, 1024), np.int64)  # stored row and place here, carried set, its carrier
    asked, out = np.int64(0), np.int64(0)
    for bag in range(offsets.size - 1):
        before = out
        out, count, bad = _clean(
            ids, offsets[bag], offsets[bag + 1], home_indptr.size - 1, policy, places, rows,
            origin, out,
        )  # fmt: skip
        if bad >= 0:
            return ends, asked, bad
        asked += out - before + count
        ordered = places[:count]
        if weight_bits.size > 0:
            patterns = np.empty(count, np.int32)
            for at in range(count):
                patterns[at] = weight_bits[ordered[at]]
            ordered = ordered[np.argsort(patterns, kind="mergesort")]  # stable
        first = 0
        while first < count:
            last = count
            if weight_bits.size > 0:
                last = first + 1
                while last < count and weight_bits[ordered[last]] == weight_bits[ordered[first]]:
                    last += 1
            out, found = _pack(
                ids, ordered[first:last], home_indptr, set_row, others_indptr, others, left, wanted,
                found, rows, origin, out,
            )  # fmt: skip
            first = last
        ends[bag + 1] = out
    return ends, asked, np.int64(-1)


@jit
def _clean(ids: Any, begin: int, end: int, num_items: int, policy: int, places: Any, rows: Any,
           origin: Any, out: int) -> Any:  # fmt: skip
    """Collect the positions of good ids, write row 0 for bad ones under ZERO_ROW.

    Returns:
        (new ``out``, number of positions, -1 or the position of a bad id).
    """
    count = np.int64(0)
    for position in range(begin, end):
        item = np.int64(ids[U(position)])
        if item >= 0 and item < num_items:
            places[U(count)] = position
            count += 1
        elif item == PADDING or policy == DROP:
            continue
        elif policy == RAISE:
            return out, count, np.int64(position)
        else:
            rows[U(out)], origin[U(out)] = 0, position
            out += 1
    return out, count, np.int64(-1)


@jit
def _pack(ids: Any, places: Any, home_indptr: Any, set_row: Any, others_indptr: Any, others: Any,
          left: Any, wanted: Any, found: Any, rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Pack the items at ``places``, all of one weight, into sets and write the rows.

    Returns:
        (new ``out``, ``found``, grown where it was short).
    """
    for at in range(places.size):
        left[U(ids[U(places[at])])] += 1
    count = 0
    for at in range(places.size):
        item = np.int64(ids[U(places[at])])
        if left[U(item)] < 0:
            continue  # a further copy: its sets are found already
        for carried in range(home_indptr[U(item)], home_indptr[U(item + 1)]):
            if not _holds(carried, others_indptr, others, left):
                continue
            if count == found.shape[1]:
                found = np.concatenate((found, np.empty((3, count), np.int64)), axis=1)
            found[0, U(count)] = (np.int64(set_row[U(carried)]) << 32) | np.int64(count)
            found[1, U(count)], found[2, U(count)] = carried, item
            count += 1
            wanted[U(item)] += 1
            for other in range(others_indptr[U(carried)], others_indptr[U(carried + 1)]):
                wanted[U(others[U(other)])] += 1
        left[U(item)] = -left[U(item)]  # negative: looked through
    for at in range(places.size):
        item = np.int64(ids[U(places[at])])
        left[U(item)] = abs(left[U(item)])
    if count > 0:
        out = _take_sets(
            found[:, :count], home_indptr.size - 1, places[0], others_indptr, others, left, wanted,
            rows, origin, out,
        )  # fmt: skip
    for at in range(places.size):
        item = np.int64(ids[U(places[at])])
        wanted[U(item)] = 0
        if left[U(item)] > 0:
            left[U(item)] -= 1
            rows[U(out)], origin[U(out)] = item, places[at]
            out += 1
    return out, found


@jit
def _holds(carried: int, others_indptr: Any, others: Any, left: Any) -> Any:
    """Tell whether the bag holds every other item of a set (its counter is not 0)."""
    for other in range(others_indptr[U(carried)], others_indptr[U(carried + 1)]):
        if left[U(others[U(other)])] == 0:
            return False
    return True


@jit
def _take_sets(found: Any, num_items: int, place: int, others_indptr: Any, others: Any, left: Any,
               wanted: Any, rows: Any, origin: Any, out: int) -> Any:  # fmt: skip
    """Take the found sets by rising price, each as often as copies are left; return the new end."""
    count = found.shape[1]
    by_row = np.sort(found[0])
    prices = np.empty(count, np.float64)
    for at in range(count):
        where = by_row[at] & 0xFFFFFFFF
        carried = found[1, where]
        price = np.sqrt(np.float64(wanted[found[2, where]]))
        first, last = others_indptr[carried], others_indptr[carried + 1]
        for other in range(first, last):
            price += np.sqrt(np.float64(wanted[U(others[U(other)])]))
        prices[at] = price / (last - first)
    order = np.argsort(prices, kind="mergesort")  # stable: equal prices by row
    for at in order:
        row, where = by_row[at] >> 32, by_row[at] & 0xFFFFFFFF
        carried, item = found[1, where], found[2, where]
        while left[item] > 0 and _left_for(carried, others_indptr, others, left):
            left[item] -= 1
            for other in range(others_indptr[carried], others_indptr[carried + 1]):
                left[U(others[U(other)])] -= 1
            rows[U(out)], origin[U(out)] = num_items + row, place
            out += 1
    return out


@jit
def _left_for(carried: int, others_indptr: Any, others: Any, left: Any) -> Any:
    """Tell whether a copy of every other item of a set is left."""
    for other in range(others_indptr[U(carried)], others_indptr[U(carried + 1)]):
        if left[U(others[U(other)])] <= 0:
            return False
    return True
