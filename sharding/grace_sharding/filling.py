"""Filling: in which order rows, sums and whole tables take the bytes of HBM.

Flow: TableReads -> units, best first -> *who is in HBM* -> placement.  Derived: the measure of
value is host reads avoided per HBM byte, which for rows of one table is just how often they are
expected to be read; sums are valued in blocks because they are taken in order
(``TableReads.sum_blocks``), and rows that were never read are one block: nothing tells them apart.
Shapes: N items, R sums, U units, U1 = U + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_sharding.table_reads import DoesNotFit, Ints, TableReads

Floats = npt.NDArray[np.float64]
SUMS, UNREAD = -1, -2  # units that are no single item


@dataclass(frozen=True, eq=False)
class Units:
    """What may fill HBM, best first: single items, blocks of sums in order, rows never read."""

    reads_per_row_U: Floats
    table_U: Ints
    item_U: Ints  # SUMS: the next ``rows_U`` sums of the table; UNREAD: so many rows never read
    rows_U: Ints
    bytes_U1: Ints  # bytes of all units before
    counted_U: Floats  # bytes read of each unit

    def bytes_for(self, slow_share: float) -> int:
        """Bytes of the first units that leave no more than a share of what is read to the rest."""
        left_U1 = self.counted_U.sum() - np.concatenate([np.zeros(1), np.cumsum(self.counted_U)])
        wanted = slow_share * self.counted_U.sum() * (1 + 1e-9)
        return int(self.bytes_U1[np.argmax(left_U1 <= wanted)])


def reserve_metadata(
    tables: Sequence[TableReads], in_hbm: set[int], left: int
) -> tuple[set[int], set[int], int]:
    """Give HBM bytes to metadata before any row, most-read tables first.

    Args:
        tables: All tables.
        in_hbm: Tables whose originals are in HBM already: they need no map of hot rows.
        left: HBM bytes that are free.

    Returns:
        (tables with their code in HBM, tables with room for a map of hot rows, bytes left).
    """
    code, mapped = set(), set()
    for t in sorted(range(len(tables)), key=lambda t: -tables[t].total_reads):
        table = tables[t]
        if 0 < table.metadata_bytes <= left and not table.code_in_host:
            code.add(t)
            left -= table.metadata_bytes
        may_split = not table.stock and t not in in_hbm and table.layout in ("auto", "split")
        if may_split and table.hot_map_bytes <= left:
            mapped.add(t)
            left -= table.hot_map_bytes
    return code, mapped, left


def list_units(tables: Sequence[TableReads], mapped: set[int]) -> Units:
    """List every item of a table that may have hot rows, and every block of sums."""
    density, table_of, item_of, rows, counted = [], [], [], [], []
    for t, table in enumerate(tables):
        size = table.read_items.size if t in mapped else 0
        unread = table.plain_reads_N.size - size if t in mapped and table.unread_worth > 0 else 0
        block_rows, block_density = table.sum_blocks
        rest = np.zeros(int(unread > 0), np.int64)  # one unit, or none
        density += [block_density, table.item_worth[:size], rest + table.unread_worth]
        item_of += [np.full(block_rows.size, SUMS), table.read_items[:size], rest + UNREAD]
        rows += [block_rows, np.ones(size, np.int64), rest + unread]
        table_of.append(np.full(block_rows.size + size + rest.size, t, np.int64))
        read = [blocks_read(table), table.plain_reads_N[table.read_items[:size]], rest]
        counted.append(np.concatenate(read).astype(np.float64) * table.row_bytes)
    density_U, rows_U = np.concatenate(density), np.concatenate(rows)
    table_U, item_U = np.concatenate(table_of), np.concatenate(item_of)
    order = np.argsort(-density_U, kind="stable")  # stable: blocks of a table stay in order
    row_bytes = np.array([table.row_bytes for table in tables], np.int64)
    bytes_U1 = np.zeros(order.size + 1, np.int64)
    np.cumsum((rows_U * row_bytes[table_U])[order], out=bytes_U1[1:])
    counted_U = np.concatenate(counted)[order]
    return Units(
        density_U[order], table_U[order], item_U[order], rows_U[order], bytes_U1, counted_U
    )


def blocks_read(table: TableReads) -> Ints:
    """Reads of each block of sums."""
    rows_K, _ = table.sum_blocks
    total_R1 = np.concatenate([[0], np.cumsum(table.sum_reads_R)])
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows_K)])
    return np.asarray(np.diff(total_R1[ends]), np.int64)


def forced_to_hbm(tables: Sequence[TableReads], hbm_bytes: int, host_bytes: int) -> set[int]:
    """Return tables whose originals must live in HBM because host memory cannot hold all.

    Args:
        tables: What each reads and holds.
        hbm_bytes: Room in HBM.
        host_bytes: Room in host memory.

    Raises:
        DoesNotFit: the originals of a table fit in neither; names the largest that is left.
    """
    total = sum(table.original_bytes for table in tables)
    by_value = sorted(
        range(len(tables)), key=lambda t: -tables[t].total_reads / tables[t].original_bytes
    )
    by_size = sorted(range(len(tables)), key=lambda t: -tables[t].original_bytes)
    for order in (by_value, by_size):
        forced, hbm_left, in_host = set(), hbm_bytes, total
        for t in order:
            if in_host > host_bytes and tables[t].original_bytes <= hbm_left:
                forced.add(t)
                hbm_left -= tables[t].original_bytes
                in_host -= tables[t].original_bytes
        if in_host <= host_bytes:
            return forced
    worst = tables[next(t for t in by_size if t not in forced)]
    host_left = max(0, host_bytes - (in_host - worst.original_bytes))
    raise DoesNotFit(worst.name, "originals", worst.original_bytes, max(hbm_left, host_left))


def stock_in_hbm(
    tables: Sequence[TableReads], units: Units, in_hbm: set[int], left: int
) -> set[int]:
    """Return stock tables worth taking whole, after all units that are read more per row."""
    taken: set[int] = set()
    waiting = [
        t
        for t, table in enumerate(tables)
        if table.stock and table.layout == "auto" and t not in in_hbm
    ]
    for t in sorted(waiting, key=lambda t: -tables[t].total_reads / tables[t].plain_reads_N.size):
        mean_reads = tables[t].total_reads / tables[t].plain_reads_N.size
        better = int(np.searchsorted(-units.reads_per_row_U, -mean_reads, side="left"))
        if units.bytes_U1[better] + tables[t].original_bytes <= left:
            taken.add(t)
            left -= tables[t].original_bytes
    return taken


def fill(
    tables: Sequence[TableReads], units: Units, left: int
) -> tuple[list[Ints], list[int], int]:
    """Take units in order until HBM is full; the last block may be taken in part.

    Returns:
        (hot items of each table, sums in HBM of each table, bytes left).
    """
    taken = int(np.searchsorted(units.bytes_U1, left, side="right")) - 1
    item_U, rows_U = units.item_U[: taken + 1], units.rows_U[: taken + 1].copy()
    table_U = units.table_U[: taken + 1]
    left -= int(units.bytes_U1[taken])
    if taken < units.item_U.size:  # the unit that does not fit as a whole
        row_bytes = tables[int(table_U[-1])].row_bytes
        rows_U[-1] = left // row_bytes if item_U[-1] < 0 else 0
        left -= int(rows_U[-1]) * row_bytes
    kinds = [
        np.bincount(table_U[item_U == kind], rows_U[item_U == kind], len(tables)).astype(np.int64)
        for kind in (SUMS, UNREAD)
    ]
    single = (item_U >= 0) & (rows_U > 0)
    items = item_U[single]
    order = np.lexsort((items, table_U[single]))
    ends = np.cumsum(np.bincount(table_U[single], minlength=len(tables)))
    hot = np.split(items[order], ends[:-1])
    for t in np.flatnonzero(kinds[1]).tolist():
        unread = np.flatnonzero(tables[t].plain_reads_N == 0)[: kinds[1][t]]
        hot[t] = np.sort(np.concatenate([hot[t], unread]))
    return hot, kinds[0].tolist(), left


def promote(
    tables: Sequence[TableReads],
    in_hbm: set[int],
    mapped: set[int],
    hot: list[Ints],
    num_sums: list[int],
    left: int,
) -> None:
    """Give what is left to tables of which then everything is in HBM, least missing bytes first."""

    def missing(t: int) -> int:
        """Bytes that table ``t`` still needs in HBM; a whole table gives its map back."""
        rows = 0 if t in in_hbm else tables[t].plain_reads_N.size - hot[t].size
        rows += tables[t].sum_reads_R.size - num_sums[t]
        return rows * tables[t].row_bytes - (tables[t].hot_map_bytes if t in mapped else 0)

    open_tables = (t for t, one in enumerate(tables) if not one.stock and one.layout == "auto")
    for t in sorted(open_tables, key=missing):
        need = missing(t)
        if need > left:
            break
        left -= need
        num_sums[t] = tables[t].sum_reads_R.size
        in_hbm.add(t)
        hot[t] = np.zeros(0, np.int64)
