"""Placement: which original rows, sums and hot rows live in HBM, and which in host memory.

Flow: reads of every row + memory model -> *Placement* per table -> plans.  Source: GRACE,
ASPLOS'23 (what is read most lives in the fast memory).  Derived: the order of filling (host reads
avoided per HBM byte), the treatment of sums as a prefix, and whole stock tables.

Rules: originals live whole in one memory.  Where they live in host memory, the most-read items
are copied to HBM (hot rows) and found by a map beside them.  Sums are kept in order of value, so
those in HBM are a prefix and an address stays one comparison.  Metadata (id -> code, item -> hot
row) takes HBM before any row does: it is read most; from there on more HBM never reads less of it.
Shapes: N items, R sums, H hot rows.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from grace_sharding.errors import GraceError
from grace_sharding.filling import (
    fill,
    forced_to_hbm,
    list_units,
    promote,
    reserve_metadata,
    stock_in_hbm,
)
from grace_sharding.memory_tiers import MemoryModel, TierName
from grace_sharding.table_reads import HOT_MAP_BYTES, DoesNotFit, Ints, TableReads

_NO_ITEMS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True)
class TierUse:
    """What one table puts in one memory, and how many rows the given bags read there."""

    rows: int
    bytes: int
    reads: int


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the rows of one table live.

    Attributes:
        originals: Memory of the whole original table.
        num_hbm_sums: The first so many sums are in HBM, the others in host memory.
        hot_items: int64 ``[H]`` ids copied to HBM, rising; empty where the originals are there.
        metadata: Memory of the code that turns ids into sums (the map of hot rows is in HBM).
        num_rows: Rows N of the original table.
        num_sums: Sums R.
        row_bytes: Bytes of one row.
        hbm: Rows, bytes and reads in HBM.
        host: Rows, bytes and reads in host memory.

    Raises:
        GraceError: fields contradict each other.
    """

    originals: TierName
    num_hbm_sums: int
    hot_items: Ints = field(repr=False)
    metadata: TierName
    num_rows: int
    num_sums: int
    row_bytes: int
    hbm: TierUse
    host: TierUse

    def __post_init__(self) -> None:
        """Check that the fields describe one layout: placements also come from files."""
        hot = self.hot_items
        if self.originals not in ("hbm", "host") or self.metadata not in ("hbm", "host"):
            raise GraceError(
                f"placement: memory {self.originals!r} or {self.metadata!r} unknown, use hbm or host"
            )
        if not 0 <= self.num_hbm_sums <= self.num_sums:
            raise GraceError(
                f"placement: {self.num_hbm_sums} sums in HBM, the table has {self.num_sums}"
            )
        if hot.dtype != np.int64 or hot.ndim != 1 or (np.diff(hot) <= 0).any():
            raise GraceError("placement: hot_items must be rising int64 ids")
        if hot.size and (self.originals == "hbm" or hot[0] < 0 or hot[-1] >= self.num_rows):
            raise GraceError(
                "placement: hot_items must be rows of a table whose originals are in host memory"
            )
        in_hbm = (self.num_rows if self.originals == "hbm" else hot.size) + self.num_hbm_sums
        in_host = (
            (0 if self.originals == "hbm" else self.num_rows) + self.num_sums - self.num_hbm_sums
        )
        if (self.hbm.rows, self.host.rows) != (in_hbm, in_host):
            raise GraceError(
                f"placement: rows {(self.hbm.rows, self.host.rows)} by tier, expected {(in_hbm, in_host)}"
            )
        for rows, use in ((in_hbm, self.hbm), (in_host, self.host)):
            if use.bytes < rows * self.row_bytes or use.reads < 0:
                raise GraceError(
                    f"placement: {use} does not hold {rows} rows of {self.row_bytes} bytes"
                )

    @property
    def hot_map_bytes(self) -> int:
        """Bytes of the map item -> hot row, 0 without hot rows."""
        return self.num_rows * HOT_MAP_BYTES if self.hot_items.size else 0

    def reads_by_tier(self, plain_reads_N: Ints, sum_reads_R: Ints) -> dict[TierName, int]:
        """Count the reads of other bags in each memory.

        Args:
            plain_reads_N: How often each original row is read.
            sum_reads_R: How often each sum is read.
        """
        in_hbm = int(sum_reads_R[: self.num_hbm_sums].sum())
        in_hbm += int(
            (plain_reads_N if self.originals == "hbm" else plain_reads_N[self.hot_items]).sum()
        )
        return {"hbm": in_hbm, "host": int(plain_reads_N.sum() + sum_reads_R.sum()) - in_hbm}


def place(
    plain_reads_N: Ints,
    sum_reads_R: Ints,
    row_bytes: int,
    memory: MemoryModel,
    metadata_bytes: int = 0,
) -> Placement:
    """Place one table that has the memories to itself.

    Args:
        plain_reads_N: How often each original row is read once sums are applied.
        sum_reads_R: How often each sum is read, in order of the stored rows.
        row_bytes: Bytes of one row of any kind.
        memory: The machine.
        metadata_bytes: Bytes that turn ids into stored rows.

    Raises:
        DoesNotFit: originals or sums fit in no memory.

    >>> memory = MemoryModel.named("h200", hbm_bytes=3 * 256 + 3 * 4)
    >>> place(np.array([5, 0, 9]), np.array([4]), 256, memory).hot_items
    array([0, 2])
    """
    table = TableReads(
        "table", np.asarray(plain_reads_N), np.asarray(sum_reads_R), row_bytes, metadata_bytes
    )
    return place_tables([table], memory)[0]


def place_tables(
    tables: Sequence[TableReads],
    memory: MemoryModel,
    fill_bytes: int | None = None,
    slow_share: float = 1.0,
) -> tuple[Placement, ...]:
    """Place many tables that share one HBM and one host memory; most-read rows fill HBM first.

    Args:
        tables: What each table holds and how often it is read.
        memory: The machine; with one tier everything is host.
        fill_bytes: Bytes of HBM at which filling stops (default: all of them); what has to be
            there, whole tables and metadata, may pass it.
        slow_share: Filling goes on past ``fill_bytes`` until no more than this share of the reads
            is left to host memory, of the rows that may be in either.

    Raises:
        DoesNotFit: originals or sums of a table fit in no memory.
    """
    hbm_bytes = memory.hbm.num_bytes if memory.hbm else 0
    if not tables:
        return ()
    if any(table.layout == "all" for table in tables):
        return _all_and_others(tables, memory, fill_bytes, slow_share)
    everything = sum(t.original_bytes + t.sum_bytes + t.metadata_bytes for t in tables)
    free = fill_bytes is None and all(table.layout == "auto" for table in tables)
    if memory.hbm and everything <= hbm_bytes and free:
        return tuple(
            _placement(t, True, not t.code_in_host, _NO_ITEMS, t.sum_reads_R.size) for t in tables
        )
    in_hbm = forced_to_hbm(tables, hbm_bytes, memory.host.num_bytes)
    left = hbm_bytes - sum(tables[t].original_bytes for t in in_hbm)
    for t, table in enumerate(tables):
        if table.layout == "whole" and t not in in_hbm and table.original_bytes <= left:
            in_hbm.add(t)
            left -= table.original_bytes
    code_in_hbm, mapped, left = reserve_metadata(tables, in_hbm, left)
    units = list_units(tables, mapped)
    if fill_bytes is not None:
        left = min(left, max(left - (hbm_bytes - fill_bytes), units.bytes_for(slow_share)))
    stock = stock_in_hbm(tables, units, in_hbm, left)
    in_hbm |= stock
    left -= sum(tables[t].original_bytes for t in stock)
    hot, num_sums, left = fill(tables, units, left)
    promote(tables, in_hbm, mapped, hot, num_sums, left)
    placements = tuple(
        _placement(table, t in in_hbm, t in code_in_hbm, hot[t], num_sums[t])
        for t, table in enumerate(tables)
    )
    _check_host(tables, placements, memory.host.num_bytes)
    return placements


def _all_and_others(
    tables: Sequence[TableReads], memory: MemoryModel, fill_bytes: int | None, slow_share: float
) -> tuple[Placement, ...]:
    """Place tables that are in HBM with all sums, and the others in what they leave of the memories.

    Where that leaves too little (more sums than were judged), they are filled up like the others:
    rows of tables come before sums.
    """
    apart = {t: _placement(table, True, not table.code_in_host, _NO_ITEMS, table.sum_reads_R.size)
             for t, table in enumerate(tables) if table.layout == "all"}  # fmt: skip
    taken = {
        "hbm": sum(placed.hbm.bytes for placed in apart.values()),
        "host": sum(placed.host.bytes for placed in apart.values()),
    }
    whole = sum(
        table.original_bytes + (0 if table.code_in_host else table.metadata_bytes)
        for table in tables
        if table.layout == "whole"
    )
    needed = {"hbm": taken["hbm"] + whole, "host": taken["host"]}
    if memory.hbm and all(needed[tier.name] <= tier.num_bytes for tier in memory.tiers):
        left = [replace(tier, num_bytes=tier.num_bytes - taken[tier.name]) for tier in memory.tiers]
        beside = None if fill_bytes is None else max(0, fill_bytes - taken["hbm"])
        rest = [t for t in range(len(tables)) if t not in apart]
        with suppress(DoesNotFit):
            placed = place_tables(
                [tables[t] for t in rest], replace(memory, tiers=tuple(left)), beside, slow_share
            )
            apart |= zip(rest, placed, strict=True)
            return tuple(apart[t] for t in range(len(tables)))
    filled = [replace(t, layout="whole") if t.layout == "all" else t for t in tables]
    return place_tables(filled, memory, None, slow_share)


def _placement(
    table: TableReads, originals_in_hbm: bool, code_in_hbm: bool, hot: Ints, num_sums: int
) -> Placement:
    """Write down the layout of one table, with rows, bytes and reads by tier."""
    num_rows, all_sums = table.plain_reads_N.size, table.sum_reads_R.size
    hot = _NO_ITEMS if originals_in_hbm else hot
    hbm_rows = (num_rows if originals_in_hbm else hot.size) + num_sums
    host_rows = (0 if originals_in_hbm else num_rows) + all_sums - num_sums
    hbm_reads = int(table.sum_reads_R[:num_sums].sum())
    hbm_reads += int(
        table.plain_reads_N.sum() if originals_in_hbm else table.plain_reads_N[hot].sum()
    )
    hbm_bytes, host_bytes = hbm_rows * table.row_bytes, host_rows * table.row_bytes
    hbm_bytes += table.hot_map_bytes if hot.size else 0
    hbm_bytes += table.metadata_bytes if code_in_hbm else 0
    host_bytes += 0 if code_in_hbm else table.metadata_bytes
    return Placement(
        originals="hbm" if originals_in_hbm else "host",
        num_hbm_sums=num_sums,
        hot_items=hot,
        metadata="hbm" if code_in_hbm else "host",
        num_rows=num_rows,
        num_sums=all_sums,
        row_bytes=table.row_bytes,
        hbm=TierUse(hbm_rows, hbm_bytes, hbm_reads),
        host=TierUse(host_rows, host_bytes, table.total_reads - hbm_reads),
    )


def _check_host(
    tables: Sequence[TableReads], placements: Sequence[Placement], host_bytes: int
) -> None:
    """Refuse a layout whose sums and metadata overfill host memory; originals fit already."""
    over = sum(placement.host.bytes for placement in placements) - host_bytes
    if over <= 0:
        return
    stored = [
        placement.host.bytes - (table.original_bytes if placement.originals == "host" else 0)
        for table, placement in zip(tables, placements, strict=True)
    ]
    worst = int(np.argmax(stored))
    raise DoesNotFit(tables[worst].name, "sums", stored[worst], max(0, stored[worst] - over))
