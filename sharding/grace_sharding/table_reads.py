"""Table reads: what one table holds and how often each of its rows is read.

Flow: rewritten bags of a profile -> *TableReads* -> placement.
Shapes: N items, R sums, K blocks of sums.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from grace_sharding.errors import GraceError
from grace_sharding.outlook import Outlook

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Layout = Literal["auto", "all", "whole", "split", "apart"]
SUM_BLOCKS = 256  # sums are valued in at most so many blocks a table
HOT_MAP_BYTES = 4  # the map item -> hot row is int32


class DoesNotFit(GraceError):
    """Something fits in no memory.

    Attributes:
        table: Name of the table.
        what: ``originals`` or ``sums``.
        need_bytes: What it needs.
        have_bytes: What is left for it in the largest memory.
    """

    def __init__(
        self, table: str, what: Literal["originals", "sums"], need_bytes: int, have_bytes: int
    ):
        """Write the one line that says what, where and what to do."""
        self.table, self.what = table, what
        self.need_bytes, self.have_bytes = need_bytes, have_bytes
        super().__init__(
            f"table {table}: its {what} need {need_bytes:,} bytes, {have_bytes:,} are left; "
            "give more host or HBM bytes, or store fewer sums"
        )


@dataclass(frozen=True, eq=False)
class TableReads:
    """One table to place.

    Attributes:
        name: For messages.
        plain_reads_N: How often each original row is read (sums already applied).
        sum_reads_R: How often each sum is read, in order of the stored rows.
        row_bytes: Bytes of one row of any kind.
        metadata_bytes: Bytes that turn ids into stored rows.
        stock: A stock table: it is never split and has no hot rows.
        layout: Where the originals go: ``whole`` (HBM), ``split`` (host, with hot rows in HBM),
            ``apart`` (host, without), ``all`` (HBM, with all sums), or ``auto``: what HBM has room for.
        code_in_host: Metadata stays in host memory: it is not read while serving.
        plain_outlook: What reads of original rows say about bags to come; None: just that.
        sum_outlook: The same of sums.
        outlook_scale: Bags that the outlooks were learned on over the bags of these reads.

    Raises:
        GraceError: reads are negative or not vectors, or bytes are out of range.
    """

    name: str
    plain_reads_N: Ints
    sum_reads_R: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    row_bytes: int = 256
    metadata_bytes: int = 0
    stock: bool = False
    layout: Layout = "auto"
    code_in_host: bool = False
    plain_outlook: Outlook | None = field(default=None, repr=False)
    sum_outlook: Outlook | None = field(default=None, repr=False)
    outlook_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check shapes and signs once."""
        for what, reads in (("plain", self.plain_reads_N), ("sum", self.sum_reads_R)):
            if reads.ndim != 1 or reads.dtype.kind not in "iu" or (reads.size and reads.min() < 0):
                raise GraceError(
                    f"table {self.name}: {what} reads must be a vector of integers >= 0"
                )
        if self.row_bytes < 1 or self.metadata_bytes < 0 or not self.plain_reads_N.size:
            raise GraceError(
                f"table {self.name}: needs one row or more of one byte or more, and metadata_bytes >= 0"
            )

    @property
    def original_bytes(self) -> int:
        """Bytes of the original table."""
        return self.plain_reads_N.size * self.row_bytes

    @cached_property
    def total_reads(self) -> int:
        """Rows read of this table."""
        return int(self.plain_reads_N.sum() + self.sum_reads_R.sum())

    @cached_property
    def read_items(self) -> Ints:
        """Items whose row is read at least once."""
        return np.flatnonzero(self.plain_reads_N).astype(np.int64)

    @cached_property
    def item_worth(self) -> Floats:
        """Expected reads of each of :attr:`read_items`."""
        reads = self.plain_reads_N[self.read_items]
        if self.plain_outlook is None:
            return reads.astype(np.float64)
        return self.plain_outlook.expected(reads, self.outlook_scale)

    @property
    def unread_worth(self) -> float:
        """Expected reads of a row that was never read."""
        return 0.0 if self.plain_outlook is None else self.plain_outlook.unread

    @cached_property
    def sum_worth_R(self) -> Floats:
        """Expected reads of each sum."""
        if self.sum_outlook is None:
            return self.sum_reads_R.astype(np.float64)
        return self.sum_outlook.expected(self.sum_reads_R, self.outlook_scale)

    @cached_property
    def sum_blocks(self) -> tuple[Ints, Floats]:
        """Blocks of sums, see :func:`blocks_of_sums`."""
        return blocks_of_sums(self.sum_worth_R)

    @property
    def hot_map_bytes(self) -> int:
        """Bytes of the map item -> hot row that the table needs if it has hot rows."""
        return self.plain_reads_N.size * HOT_MAP_BYTES

    @property
    def sum_bytes(self) -> int:
        """Bytes of all sums."""
        return self.sum_reads_R.size * self.row_bytes


def blocks_of_sums(worth_R: Ints | Floats) -> tuple[Ints, Floats]:
    """Cut the sums into blocks of falling worth per row (upper hull of the running total).

    A prefix has to be taken in order, so sums that are read little stand in the way of those
    behind them; a block is what is worth taking together.

    Args:
        worth_R: Reads of each sum, counted or expected.

    Returns:
        (rows ``[K]``, worth per row ``[K]``); blocks that are never read are left out.
    """
    step = max(1, -(-worth_R.size // SUM_BLOCKS))
    starts = np.arange(0, worth_R.size, step)
    blocks: list[tuple[int, float]] = []
    for start, worth in zip(
        starts.tolist(),
        np.add.reduceat(worth_R, starts).tolist() if starts.size else [],
        strict=True,
    ):
        rows = min(step, worth_R.size - start)
        while blocks and blocks[-1][1] * rows <= worth * blocks[-1][0]:
            rows, worth = rows + blocks[-1][0], worth + blocks[-1][1]
            blocks.pop()
        blocks.append((rows, worth))
    kept = [block for block in blocks if block[1] > 0]
    rows_K = np.array([rows for rows, _ in kept], np.int64)
    return rows_K, np.array([worth for _, worth in kept], np.float64) / np.maximum(rows_K, 1)
