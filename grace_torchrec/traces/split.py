"""Splits: which bags decide what is stored, which choose among methods, which judge.

Flow: Trace -> *Split* -> grouping (fit, train), choosing (validation), reported figures (test).
Everything that is fitted sees ``train`` only; a parameter is chosen with ``fit`` against
``validation`` and then refitted on ``train``.  Shapes: B bags, L ids.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.hashed import hashed
from grace_torchrec.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Split:
    """Four traces over the same items.

    Attributes:
        train: All bags that may be learned from: ``fit`` and ``validation``.
        fit: The part of ``train`` that candidates are fitted on.
        validation: The part of ``train`` that chooses among candidates.
        test: Held-out bags, for reported figures only.
    """

    train: Trace
    fit: Trace
    validation: Trace
    test: Trace


def split_bags(trace: Trace, seed: int = 0, parts: int = 5) -> Split:
    """Hold out whole bags at random.

    With n bags and ``perm = numpy.random.default_rng(seed).permutation(n)``: test is
    ``perm[n - n // parts:]``, train the rest in the order of perm, validation the last
    ``m // parts`` of the m train bags, fit the others. Nothing is filtered; ``num_items`` stays.

    Raises:
        GraceError: fewer than ``parts + 1`` bags (a part would be empty), or parts < 2.
    """
    _check_parts(trace.num_bags, parts, "bags")
    return _cut(trace, np.random.default_rng(seed).permutation(trace.num_bags), parts)


def split_time(trace: Trace, parts: int = 5) -> Split:
    """Hold out the latest bags: the plan is made from the past and judged on what came after.

    Bags in order of ``time_B`` (equal times keep their order): the latest ``n // parts`` are
    test, the latest ``m // parts`` of the m others validation.

    Raises:
        GraceError: the trace has no time, fewer than ``parts + 1`` bags, or parts < 2.
    """
    if trace.time_B is None:
        raise GraceError(
            "split by time: the trace has no time for its bags; give one, or split by bags"
        )
    _check_parts(trace.num_bags, parts, "bags")
    return _cut(trace, np.argsort(trace.time_B, kind="stable"), parts)


def split_column(trace: Trace, seed: int = 0, parts: int = 5) -> Split:
    """Split every bag by the mark that the source gave each interaction.

    Marks in ``split_L``: 0 is train, the highest is test, those between are validation. A bag is
    cut into the ids of each part, in order, with their weights; parts of bags without ids are
    dropped. So one user may stand in several parts, with different interactions. ``train``
    holds every interaction below the highest mark. Without marks between, train bags are split
    as in :func:`split_bags` (order of ``seed``, the last ``m // parts`` are validation).

    Raises:
        GraceError: the trace has no marks, they are not 0 and up to at least 1, or a part
            would be empty.
    """
    if trace.split_L is None:
        raise GraceError(
            "split by column: the trace has no mark for its ids; give split_L, or split by bags"
        )
    marks = trace.split_L
    lowest, highest = (int(marks.min()), int(marks.max())) if marks.size else (0, 0)
    if lowest != 0 or highest < 1:
        raise GraceError(
            f"split by column: marks run from {lowest} to {highest}; 0 must be train and the highest test"
        )
    test, train = _ids_where(trace, marks == highest), _ids_where(trace, marks < highest)
    if ((marks > 0) & (marks < highest)).any():
        between = _ids_where(trace, (marks > 0) & (marks < highest))
        return Split(train, _ids_where(trace, marks == 0), between, test)
    _check_parts(train.num_bags, parts, "train bags", least=parts)
    order = np.random.default_rng(seed).permutation(train.num_bags)
    keep = order.size - order.size // parts
    return Split(train.take(order), train.take(order[:keep]), train.take(order[keep:]), test)


def _cut(trace: Trace, order_B: npt.NDArray[np.int64], parts: int) -> Split:
    """Cut the bags in the given order: fit, validation, test."""
    num_train = order_B.size - order_B.size // parts
    num_fit = num_train - num_train // parts
    return Split(
        train=trace.take(order_B[:num_train]),
        fit=trace.take(order_B[:num_fit]),
        validation=trace.take(order_B[num_fit:num_train]),
        test=trace.take(order_B[num_train:]),
    )


def _ids_where(trace: Trace, kept_L: npt.NDArray[np.bool_]) -> Trace:
    """Return the trace of the kept ids, without the bags that they leave empty."""
    kept = trace.keep(kept_L)
    return kept.take(kept.filled())


def _check_parts(num_bags: int, parts: int, what: str, least: int = 0) -> None:
    """Refuse splits that would leave a part without bags."""
    if parts < 2:
        raise GraceError(f"split: parts is {parts}; give 2 or more")
    least = least or parts + 1
    if num_bags < least:
        raise GraceError(
            f"split: {num_bags} {what} are too few for parts={parts}; give at least {least}"
        )


def repeated_share(bags: Trace, earlier: Trace, least_ids: int = 3) -> float:
    """Return the share of bags that stand in ``earlier`` with the same ids, in whatever order.

    A log that repeats a user's history has such bags on both sides of a random split, and what was
    fitted on one side knows the other.  Bags are compared by a 64-bit hash.

    Args:
        bags: Judged on.
        earlier: Fitted on.
        least_ids: Shorter bags repeat by chance, and do not count.

    >>> repeated_share(Trace.from_bags([[3, 1, 2], [0, 1, 2]]), Trace.from_bags([[1, 2, 3]], 4))
    0.5
    """
    long = np.diff(bags.offsets_B1) >= least_ids
    if not long.any():
        return 0.0
    return float(np.isin(_hashes(bags)[long], _hashes(earlier)).mean())


def _hashes(trace: Trace) -> npt.NDArray[np.uint64]:
    """Return a hash of the multiset of ids of each bag: the sum of the hashes of its ids."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashed(trace.ids_L))])
    hashes: npt.NDArray[np.uint64] = sums[trace.offsets_B1[1:]] - sums[trace.offsets_B1[:-1]]
    return hashes
