"""Outlook: how often bags to come will read a row, by how often the bags so far did.

Flow: reads of fit bags + reads of held-out bags, row by row -> *Outlook* -> the order in which rows
fill HBM.  Derived, not in the paper: counts alone mislead twice.  Sums were chosen because the fit
bags held them, so they are read less by other bags and the rows they replace are read more; and
rows that no fit bag read are read all the same (the held-out estimate of the missing mass, as Good
and Turing's).  So every class of counts is worth what held-out bags read of it.
Shapes: R rows of one kind, X classes of counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Ranks = npt.NDArray[np.integer[Any]]
Value = TypeVar("Value", Floats, Ranks)
_TIE = 1e-6
_GROWTH = 1.25  # of the counts from one class to the next
_CLASSES = np.unique(np.floor(_GROWTH ** np.arange(4, 124)).astype(np.int64))
_SINGLE = np.arange(1, _CLASSES[0])
EDGES = np.concatenate([_SINGLE, _CLASSES]).astype(np.float64)  # lowest count of each class


@dataclass(frozen=True, eq=False)
class Outlook:
    """Expected reads of a row, over as many bags as the held-out ones.

    Attributes:
        counted_X: Mean count of the rows of each class, rising; the first is 0.
        expected_X: Expected reads of such a row, not falling; the first is 0.
        unread: Expected reads of a row that was never read.
    """

    counted_X: Floats
    expected_X: Floats
    unread: float

    @classmethod
    def fit(
        cls, counted_R: Numbers, held_out_R: Numbers, unread: tuple[int, int] = (0, 0)
    ) -> "Outlook":
        """Learn from rows of one kind.

        Args:
            counted_R: Reads of each row by the fit bags, 0 or more.
            held_out_R: Reads of the same rows by the held-out bags.
            unread: (further rows that no fit bag read, their held-out reads).

        >>> outlook = Outlook.fit(np.array([0, 0, 4, 4]), np.array([1, 0, 1, 2]))
        >>> outlook.unread, outlook.expected(np.array([0, 4, 8])).round(3).tolist()
        (0.5, [0.5, 1.5, 3.0])
        """
        counts, rows, reads = _by_count(counted_R, held_out_R)
        class_of = np.searchsorted(EDGES, counts, side="right")
        size = EDGES.size + 1
        rows_X = np.bincount(class_of, rows, size).astype(np.float64)
        counts_X = np.bincount(class_of, counts * rows, size).astype(np.float64)
        reads_X = np.bincount(class_of, reads, size).astype(np.float64)
        num_unread = int(rows_X[0]) + unread[0]
        unread_reads = float(reads_X[0]) + unread[1]
        held = np.flatnonzero(rows_X[1:]) + 1
        rising = _not_falling(reads_X[held] / rows_X[held], rows_X[held])
        zero = np.zeros(1)
        return cls(
            np.concatenate([zero, counts_X[held] / rows_X[held]]),
            np.concatenate([zero, rising]),
            unread_reads / num_unread if num_unread else 0.0,
        )

    def expected(self, counted_R: Numbers, scale: float = 1.0) -> Floats:
        """Return the expected reads of rows.

        Args:
            counted_R: Their reads.
            scale: Fit bags over the bags that these reads come from.
        """
        return each_count(lambda counts: self._expected(_scaled(counts, scale)), counted_R)

    def _expected(self, scaled: Floats) -> Floats:
        """Return the expected reads of rows, whose reads are scaled to the fit bags."""
        last = float(self.counted_X[-1])
        inside = np.interp(scaled, self.counted_X, self.expected_X)
        if last > 0:
            inside = np.where(scaled > last, self.expected_X[-1] * (scaled / last), inside)
        inside = inside * (1 + _TIE * np.log1p(scaled))  # equal classes keep the order of counts
        return np.where(scaled == 0, self.unread, inside)


def _scaled(counts: Numbers, scale: float) -> Floats:
    """Return counts times ``scale``."""
    return np.asarray(counts, np.float64) * scale


def _by_count(counted_R: Numbers, held_out_R: Numbers) -> tuple[Numbers, Floats, Floats]:
    """Return different counts, how many rows have each, and their held-out reads.

    Where counts are not few beside the rows: the count, 1 and the reads of each row.
    """
    if not _few_counts(counted_R):
        return counted_R, np.ones(counted_R.size), np.asarray(held_out_R, np.float64)
    rows = np.bincount(counted_R).astype(np.float64)
    reads = np.bincount(counted_R, held_out_R).astype(np.float64)
    return np.arange(rows.size, dtype=np.int64), rows, reads


def _few_counts(counted_R: Numbers) -> bool:
    """Tell whether a value for each count up to the highest takes less than one for each row."""
    return counted_R.dtype.kind in "iu" and 0 <= counted_R.max(initial=-1) < counted_R.size


def each_count(function: Callable[[Numbers], Value], counted_R: Numbers) -> Value:
    """Return ``function(counted_R)``, once for each count where counts are few beside the rows.

    Args:
        function: Of counts, element by element.
        counted_R: Reads of each row.
    """
    if _few_counts(counted_R):
        return np.take(
            function(np.arange(counted_R.max() + 1)), counted_R.astype(np.int64, copy=False)
        )
    return function(counted_R)


def rank_worth(worth_R: Floats) -> Ranks:
    """Return the place of each worth among all different ones, the highest first.

    >>> rank_worth(np.array([0.5, 2.0, 0.5])).tolist()
    [1, 0, 1]
    """
    different, rank_R = np.unique(-worth_R, return_inverse=True)
    return rank_R.astype(np.uint16 if different.size <= 2**16 else np.int64)


def _not_falling(values_X: Floats, weights_X: Floats) -> Floats:
    """Return the closest values that do not fall (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, classes
    for value, weight in zip(values_X.tolist(), weights_X.tolist(), strict=True):
        mean, total, classes = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, more = pools.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, classes = total + heavy, classes + more
        pools.append((mean, total, classes))
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools]).astype(np.float64)
