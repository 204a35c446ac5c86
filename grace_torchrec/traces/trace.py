"""Trace: the bags that users requested, validated once at the door.

Flow: readers / generator / recorder -> *Trace* -> grouping, sums, plans.
Shapes: B bags, B1 = B + 1, L ids in all, N items.
"""

import dataclasses
import operator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError


@dataclass(frozen=True, eq=False)
class Trace:
    """Bags in CSR form: bag ``b`` holds ``ids_L[offsets_B1[b]:offsets_B1[b + 1]]``.

    Repeated ids count, order inside a bag is kept, bags may be empty.

    Attributes:
        offsets_B1: int64 ``[B + 1]``, from 0, never falling, last entry L.
        ids_L: int32 or int64 ``[L]``, every id in ``0 .. num_items - 1``.
        num_items: Rows of the table the ids index (0: largest id + 1).
        weights_L: Optional float32 ``[L]``, finite: the weight of each id in its bag.
        time_B: Optional ``[B]`` numbers, one for each bag, for splits by time.
        split_L: Optional integers ``[L]`` that mark each interaction (0 train, others later).
        note: What a reader of any figure on this trace must know; empty for plain traffic.

    Raises:
        GraceError: an array has the wrong shape, type or range; the message names it.

    >>> Trace.from_bags([[0, 1, 1], [], [2]]).num_bags
    3
    """

    offsets_B1: npt.NDArray[np.int64]
    ids_L: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    num_items: int = 0
    weights_L: npt.NDArray[np.float32] | None = None
    time_B: npt.NDArray[np.number] | None = None
    split_L: npt.NDArray[np.integer] | None = None
    note: str = ""
    _counts: list[npt.NDArray[np.int64]] = field(default_factory=list, repr=False, init=False)

    def __post_init__(self) -> None:
        """Check every array and store it in its one canonical type."""
        set_ = object.__setattr__
        set_(self, "offsets_B1", _checked_offsets(self.offsets_B1, np.asarray(self.ids_L).size))
        set_(self, "ids_L", _checked_ids(self.ids_L))
        largest = int(self.ids_L.max(initial=-1))
        if not isinstance(self.num_items, int | np.integer) or self.num_items < 0:
            raise GraceError(f"trace: num_items is {self.num_items!r}; give the rows of the table")
        num_items = int(self.num_items) or largest + 1
        if largest >= num_items:
            where = int(np.argmax(self.ids_L >= num_items))
            bag = int(np.searchsorted(self.offsets_B1, where, side="right")) - 1
            raise GraceError(
                f"trace: bag {bag} holds id {int(self.ids_L[where])}, "
                f"the table has {num_items} rows; give num_items >= {largest + 1} or fix the ids"
            )
        set_(self, "num_items", num_items)
        if self.weights_L is not None:
            weights = finite_weights(self.weights_L, "trace")
            _same_length("weights", weights, self.num_ids, "ids")
            set_(self, "weights_L", weights)
        if self.time_B is not None:
            time = np.asarray(self.time_B)
            _same_length("time", time, self.num_bags, "bags")
            if time.dtype.kind not in "iuf" or not np.isfinite(time).all():
                raise GraceError("trace: time holds entries that are not finite numbers")
            set_(self, "time_B", time)
        if self.split_L is not None:
            split = np.asarray(self.split_L)
            _same_length("split", split, self.num_ids, "ids")
            if split.dtype.kind not in "iu":
                raise GraceError(f"trace: split has type {split.dtype}, integers expected")
            set_(self, "split_L", split)

    @classmethod
    def from_bags(cls, bags: list[list[int]], num_items: int = 0) -> "Trace":
        """Build a trace from plain lists of ids, one list a bag.

        Raises:
            GraceError: they are no lists of integers.
        """
        wrong = next((item for bag in bags for item in bag if not _is_integer(item)), None)
        if wrong is not None:
            raise GraceError(f"trace: {wrong!r} is no id; bags hold integers")
        offsets = np.zeros(len(bags) + 1, np.int64)
        np.cumsum([len(bag) for bag in bags], out=offsets[1:])
        ids = np.fromiter((item for bag in bags for item in bag), np.int64, int(offsets[-1]))
        return cls(offsets, ids, num_items)

    @property
    def num_bags(self) -> int:
        """Number of bags, empty ones included."""
        return int(self.offsets_B1.size - 1)

    @property
    def num_ids(self) -> int:
        """Number of ids in all bags together: the rows a plain lookup reads."""
        return int(self.ids_L.size)

    @property
    def pooling_factor(self) -> float:
        """Mean ids per bag (0 for a trace without bags)."""
        return self.num_ids / self.num_bags if self.num_bags else 0.0

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each item is requested, int64 ``[N]`` (computed once)."""
        if not self._counts:
            counts_N = np.bincount(self.ids_L, minlength=self.num_items)
            self._counts.append(counts_N.astype(np.int64, copy=False))
        return self._counts[0]

    def over(self, num_items: int) -> "Trace":
        """Return the same bags over a table of ``num_items`` rows.

        Raises:
            GraceError: an id is outside of it.
        """
        return dataclasses.replace(self, num_items=num_items)

    def take(self, bags_K: npt.NDArray[np.int64]) -> "Trace":
        """Return the bags ``bags_K`` in that order, with everything that belongs to them."""
        lengths = np.diff(self.offsets_B1)[bags_K]
        offsets = np.zeros(len(bags_K) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        source = np.repeat(self.offsets_B1[:-1][bags_K] - offsets[:-1], lengths)
        source += np.arange(offsets[-1])
        return Trace(
            offsets,
            self.ids_L[source],
            self.num_items,
            None if self.weights_L is None else self.weights_L[source],
            None if self.time_B is None else self.time_B[bags_K],
            None if self.split_L is None else self.split_L[source],
            self.note,
        )

    def keep(self, kept_L: npt.NDArray[np.bool_]) -> "Trace":
        """Return the same bags, some of them empty now, with the kept ids and what belongs to them.

        >>> Trace.from_bags([[5, 6], [6], [5]]).keep(np.array([1, 0, 0, 1], bool)).offsets_B1.tolist()
        [0, 1, 1, 2]
        """
        before_L1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept_L)])
        return Trace(
            before_L1[self.offsets_B1],
            self.ids_L[kept_L],
            self.num_items,
            None if self.weights_L is None else self.weights_L[kept_L],
            self.time_B,
            None if self.split_L is None else self.split_L[kept_L],
            self.note,
        )

    def filled(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the bags that hold an id."""
        return np.flatnonzero(np.diff(self.offsets_B1))


def finite_weights(weights_L: npt.ArrayLike, where: str) -> npt.NDArray[np.float32]:
    """Return weights as float32.

    Args:
        weights_L: Numbers.
        where: What they belong to, for the message.

    Raises:
        GraceError: one is not finite, or is not as float32.

    >>> finite_weights([0.5, 2], "trace").dtype
    dtype('float32')
    """
    with np.errstate(over="ignore"):
        weights = np.ascontiguousarray(weights_L, dtype=np.float32)
    if not np.isfinite(weights).all():
        at = int(np.argmin(np.isfinite(weights)))
        raise GraceError(f"{where}: weight {at} is not finite as float32")
    return weights


def _is_integer(item: object) -> bool:
    """Tell an id from anything else, numbers with a fraction and texts included."""
    try:
        operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _checked_offsets(offsets: npt.ArrayLike, num_ids: int) -> npt.NDArray[np.int64]:
    """Return offsets as int64 that cover the ids and never fall."""
    array = np.asarray(offsets)
    if array.ndim != 1 or array.size < 1 or array.dtype.kind not in "iu":
        raise GraceError(f"trace: offsets must be a vector of integers, got {_shape(array)}")
    array = np.ascontiguousarray(array, dtype=np.int64)
    if array[0] != 0 or array[-1] != num_ids:
        raise GraceError(
            f"trace: offsets run from {array[0]} to {array[-1]}, expected 0 to {num_ids} (the number of ids)"
        )
    falls = np.flatnonzero(np.diff(array) < 0)
    if falls.size:
        raise GraceError(f"trace: offsets fall at bag {falls[0]}; they must never decrease")
    return array


def _checked_ids(ids: npt.ArrayLike) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """Return non-negative ids as int32 where they fit, else int64."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise GraceError(f"trace: ids must be a vector of integers, got {_shape(array)}")
    if array.size and int(array.min()) < 0:
        raise GraceError(
            f"trace: id {int(array.min())} at position {int(array.argmin())} is negative"
        )
    if array.size and int(array.max()) >= 2**62:
        raise GraceError(f"trace: id {int(array.max())} is too large")
    if not array.size or int(array.max()) < 2**31:
        return np.ascontiguousarray(array, dtype=np.int32)
    return np.ascontiguousarray(array, dtype=np.int64)


def _same_length(name: str, array: npt.NDArray[np.generic], want: int, of: str) -> None:
    """Refuse an array that is not a vector of ``want`` entries."""
    if array.ndim != 1 or array.size != want:
        raise GraceError(
            f"trace: {name} has {_shape(array)}, expected one entry for each of {want} {of}"
        )


def _shape(array: npt.NDArray[np.generic]) -> str:
    """Say shape and type in a message."""
    return f"shape {array.shape} and type {array.dtype}"
