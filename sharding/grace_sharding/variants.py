"""Variants: the ways in which one table may use the two memories, each with what it costs.

Flow: expected and held-out reads of rows -> rungs -> *Variant* -> choosing for all tables together.
Rows go to HBM in steps (rungs) of falling worth, host reads avoided per HBM byte, so the whole
curve "bytes of HBM -> reads by memory" of a variant is a few dozen numbers, whatever its rows.
Held-out reads are kept apart for groups of bags: their spread is what bags to come may differ by.
Shapes: R rows of one kind, K rungs, G groups of held-out bags, P rows read.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from grace_sharding.outlook import Ranks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
GROUPS = 32  # of held-out bags; bag b is in group b % GROUPS
RUNGS = 96  # of one kind of row, at most about so many


@dataclass(frozen=True, eq=False)
class Rungs:
    """Rows of one kind in the order in which they go to HBM.

    Attributes:
        worth_K: Expected reads of a row, falling.
        rows_K: Rows of each rung.
        reads_GK: What each group of held-out bags reads of it.
        counted_K: What the fit bags read of it.
    """

    worth_K: Floats
    rows_K: Ints
    reads_GK: Floats
    counted_K: Floats

    @classmethod
    def none(cls) -> "Rungs":
        """No rows of that kind."""
        return cls(np.zeros(0), np.zeros(0, np.int64), np.zeros((GROUPS, 0)), np.zeros(0))

    @classmethod
    def of(
        cls,
        worth_R: Floats,
        counted_R: Ints,
        row_P: Ints,
        group_P: Ints,
        unread: tuple[int, float] = (0, 0.0),
        most: int = RUNGS,
        rank_R: Ranks | None = None,
    ) -> "Rungs":
        """Sort rows into rungs of about equal weight.

        Args:
            worth_R: Expected reads of each row.
            counted_R: Its reads by the fit bags.
            row_P: Row behind each held-out read, R for a row outside ``worth_R``.
            group_P: Group of its bag.
            unread: (how many rows are outside ``worth_R``, expected reads of each).
            most: Rungs at most, about.
            rank_R: Place of each worth among the different ones, the highest first, where it is
                known: small integers are sorted faster.
        """
        num_rows, (outside, each) = worth_R.size, unread
        order = np.argsort(-worth_R if rank_R is None else rank_R, kind="stable")
        sorted_worth = worth_R[order]
        weight = np.cumsum(sorted_worth)
        total = weight[-1] if num_rows else 0.0
        steps = np.arange(1, num_rows + 1) / max(num_rows, 1)
        steps += weight / total if total > 0 else 0.0
        steps *= most / 2
        rung_sorted = np.minimum(steps.astype(np.int32), most)
        starts = np.searchsorted(rung_sorted, np.arange(most + 2))
        first = starts[:-1][np.diff(starts) > 0]  # of rungs that have rows
        rows_K = np.diff(first, append=num_rows)
        worth_K = np.add.reduceat(sorted_worth, first) / rows_K if num_rows else np.zeros(0)
        counted_K = np.add.reduceat(counted_R[order], first) if num_rows else np.zeros(0)
        rung_R = np.empty(num_rows + 1, np.int32)
        rung_R[order] = np.repeat(np.arange(rows_K.size, dtype=np.int32), rows_K)
        rung_R[num_rows] = rows_K.size
        parts = min(max(most // 4, 1), outside) if each > 0 else min(1, outside)
        reads_GK = _grouped(rung_R[row_P], group_P, rows_K.size + 1)
        spread = np.diff(np.arange(parts + 1) * outside // max(parts, 1))
        tail = reads_GK[:, -1:] * (spread / max(outside, 1))
        return _sorted(
            np.concatenate([worth_K, np.full(parts, each)]),
            np.concatenate([rows_K, spread]).astype(np.int64),
            np.concatenate([reads_GK[:, :-1], tail], axis=1),
            np.concatenate([counted_K, np.zeros(parts)]),
        )


def _grouped(rung_P: npt.NDArray[np.integer[Any]], group_P: Ints, num_rungs: int) -> Floats:
    """Count reads by group and rung."""
    key = group_P * num_rungs + rung_P
    counts = np.bincount(key, minlength=GROUPS * num_rungs)
    return counts.reshape(GROUPS, num_rungs).astype(np.float64)


def _sorted(worth_K: Floats, rows_K: Ints, reads_GK: Floats, counted_K: Floats) -> Rungs:
    """Rungs in order of falling worth."""
    order = np.argsort(-worth_K, kind="stable")
    return Rungs(worth_K[order], rows_K[order], reads_GK[:, order], counted_K[order])


Originals = Literal["hbm", "host"]


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to place one table.

    Attributes:
        originals: Memory of the whole original table.
        split: Whether original rows may be copied to HBM one by one.
        hbm_bytes: Bytes taken in HBM before any rung.
        host_bytes: Bytes taken in host memory when no rung is in HBM.
        hbm_read_G: Bytes that each group of held-out bags reads from HBM in any case.
        host_read_G: The same from host memory.
        worth_K: Expected bytes read per byte of each rung, falling.
        bytes_K: Bytes of each rung.
        rung_read_GK: Bytes that each group reads of a rung, from the memory it is in.
        counted_K: Bytes that the fit bags read of it.
        price: Share that this one must save of the least time of its table's variants without a price.
        moved: Whether rungs of another variant are in HBM for good here (:meth:`all_in_hbm`).
    """

    originals: Originals
    split: bool
    hbm_bytes: int
    host_bytes: int
    hbm_read_G: Floats = field(repr=False)
    host_read_G: Floats = field(repr=False)
    worth_K: Floats = field(repr=False)
    bytes_K: Floats = field(repr=False)
    rung_read_GK: Floats = field(repr=False)
    counted_K: Floats = field(repr=False)
    price: float = 0.0
    moved: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in HBM, and none may leave it."""
        return self.originals == "hbm" and not self.bytes_K.size

    def all_in_hbm(self) -> "Variant":
        """Return it with every rung in HBM for good: host memory is neither read nor needed for them."""
        rungs = int(self.bytes_K.sum())
        return replace(
            self,
            hbm_bytes=self.hbm_bytes + rungs,
            host_bytes=self.host_bytes - rungs,
            hbm_read_G=self.hbm_read_G + self.rung_read_GK.sum(axis=1),
            worth_K=self.worth_K[:0],
            bytes_K=self.bytes_K[:0],
            rung_read_GK=self.rung_read_GK[:, :0],
            counted_K=self.counted_K[:0],
            moved=True,
        )


def climb(
    rungs: tuple[Rungs, ...], row_bytes: int, read_bytes: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Merge kinds of rows of one table into one order.

    Args:
        rungs: Of each kind that may be in either memory.
        row_bytes: Bytes that a row takes.
        read_bytes: Bytes that a read of it moves.

    Returns:
        worth ``[K]``, bytes ``[K]``, bytes read ``[G, K]`` and bytes counted ``[K]``, as
        :class:`Variant` has them.
    """
    merged = _sorted(
        np.concatenate([part.worth_K for part in rungs]),
        np.concatenate([part.rows_K for part in rungs]),
        np.concatenate([part.reads_GK for part in rungs], axis=1),
        np.concatenate([part.counted_K for part in rungs]),
    )
    worth_K = merged.worth_K * (read_bytes / row_bytes)
    sizes_K = (merged.rows_K * row_bytes).astype(np.float64)
    return worth_K, sizes_K, merged.reads_GK * read_bytes, merged.counted_K * read_bytes
