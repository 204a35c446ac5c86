"""Pricing: what each way to serve a table reads from each memory, on held-out bags.

Flow: bags + sums (or none) -> *Priced*: reads, outlook and rungs -> *Variants* of the table ->
joint choice.  Source: GRACE, ASPLOS'23 (memories work at the same time, so a time is a maximum,
never a sum).  Derived: an id that is looked up in the code, and a row that is looked up in the map
of hot rows, each cost one sector; bags rewritten ahead read no code; a software cache in front of
host memory is taken as the best static one.
Shapes: N items, T items that fit bags ask for, R sums, P rows read, G groups of bags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.outlook import Outlook, Ranks, each_count, rank_worth
from grace_sharding.table_reads import HOT_MAP_BYTES
from grace_sharding.variants import GROUPS, RUNGS, Rungs, Variant, climb
from grace_torchrec.plans.candidates import Bags
from grace_torchrec.plans.ordering import groups_of, worth_together
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.rewrite import RewrittenBags, rewrite
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.trace import Trace

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mode = Literal["sums", "hot", "stock"]  # sums, and hot rows where split; hot rows only; nothing
LEAST_TIME_GAIN = 0.01  # of the stock time: for less, nothing is stored beside a table (derived)


@dataclass(frozen=True)
class Busy:
    """Seconds that validation bags keep each memory busy."""

    hbm_s: float = 0.0
    host_s: float = 0.0

    @property
    def time_s(self) -> float:
        """The slower memory."""
        return max(self.hbm_s, self.host_s)

    def __add__(self, other: "Busy") -> "Busy":
        """Both one after the other, memory by memory."""
        return Busy(self.hbm_s + other.hbm_s, self.host_s + other.host_s)


@dataclass(frozen=True, eq=False)
class Priced:
    """One table with some sums, or none, read by its fit and validation bags.

    Attributes:
        sums: What is stored; None: nothing.
        ids: Ids of the validation bags: rows that they read without sums.
        rows_read: Rows that they read.
        ids_G: Ids that each group of them asks for.
        plain: Original rows.
        stored: Sums.
        plain_outlook: What counts of original rows say about bags to come.
        stored_outlook: The same of sums.
    """

    sums: StoredSums | None
    ids: int
    rows_read: int
    ids_G: Floats = field(repr=False)
    plain: Rungs = field(repr=False)
    stored: Rungs = field(repr=False)
    plain_outlook: Outlook = field(repr=False)
    stored_outlook: Outlook = field(repr=False)

    @property
    def cut(self) -> float:
        """Share of the reads that the sums save."""
        return 1.0 - self.rows_read / self.ids if self.ids else 0.0


@dataclass(frozen=True)
class Way:
    """What a variant means for the table.

    Attributes:
        mode: What is stored beside the originals.
        option: Number of the sums, -1 without.
    """

    mode: Mode
    option: int = -1


@dataclass(frozen=True, eq=False)
class Touched:
    """The items that fit bags ask for: of all others no fit bag says anything.

    Attributes:
        num_items: Rows N of the table.
        item_T: Their ids, rising.
        place_N: Their number, T for the others.
    """

    num_items: int
    item_T: Ints
    place_N: npt.NDArray[np.int32]

    @classmethod
    def of(cls, trace: Trace) -> "Touched":
        """List the items of a trace."""
        item_T = np.flatnonzero(trace.counts())
        place_N = np.full(trace.num_items, item_T.size, np.int32)
        place_N[item_T] = np.arange(item_T.size, dtype=np.int32)
        return cls(trace.num_items, item_T, place_N)


def priced(
    bags: Bags,
    sums: StoredSums | None,
    most_rungs: int = RUNGS,
    touched: Touched | None = None,
) -> Priced:
    """Count what the bags read with ``sums`` and learn what to expect of each row.

    Args:
        bags: Fit bags are counted, validation bags judge; all bags say how many rows there are.
        sums: Fitted on the fit bags.
        most_rungs: Steps in which rows of one kind may go to HBM, about.
        touched: Items of the fit bags (default: listed here).
    """
    touched = touched or Touched.of(bags.fit)
    num_sums = sums.num_sums if sums else 0
    fit_plain_T, fit_sums_R = _counted(_read(bags.fit, sums).rows, touched, num_sums)
    rows = _read(bags.validation, sums)
    held_T, held_sums_R = _counted(rows.rows, touched, num_sums)
    group_P = np.repeat(np.arange(rows.offsets_B1.size - 1) % GROUPS, np.diff(rows.offsets_B1))
    is_plain = rows.rows < touched.num_items
    outside = bags.all.num_items - touched.item_T.size
    missed = int(is_plain.sum() - held_T.sum())
    plain_outlook = Outlook.fit(fit_plain_T, held_T, (outside, missed))
    plain = Rungs.of(
        plain_outlook.expected(fit_plain_T),
        fit_plain_T,
        touched.place_N[rows.rows[is_plain]].astype(np.int64),
        group_P[is_plain],
        (outside, plain_outlook.unread),
        most_rungs,
        _rank(plain_outlook, fit_plain_T),
    )
    stored_outlook, stored = Outlook.fit(fit_sums_R, held_sums_R), Rungs.none()
    if sums is not None and num_sums:
        stored = Rungs.of(
            worth_together(stored_outlook.expected(fit_sums_R), groups_of(sums)),
            fit_sums_R,
            rows.rows[~is_plain] - touched.num_items,
            group_P[~is_plain],
            most=most_rungs,
            rank_R=_rank(stored_outlook, fit_sums_R) if isinstance(sums.code, SetCode) else None,
        )
    lengths_B = np.diff(bags.validation.offsets_B1)
    ids_G = np.bincount(np.arange(lengths_B.size) % GROUPS, lengths_B, GROUPS).astype(np.float64)
    ids, rows_read = bags.validation.num_ids, int(rows.rows.size)
    return Priced(sums, ids, rows_read, ids_G, plain, stored, plain_outlook, stored_outlook)


def _read(trace: Trace, sums: StoredSums | None) -> RewrittenBags:
    """The rows that bags read."""
    if sums is None:
        return RewrittenBags(trace.offsets_B1, trace.ids_L.astype(np.int64))
    return rewrite(trace, sums)


def _counted(rows_P: Ints, touched: Touched, num_sums: int) -> tuple[Ints, Ints]:
    """Count the reads of touched items and of sums."""
    reads = np.bincount(rows_P, minlength=touched.num_items + num_sums)
    return reads[touched.item_T], reads[touched.num_items :]


def _rank(outlook: Outlook, counted_R: Ints) -> Ranks:
    """Rank rows by what is expected of them; sets have no others that go with them."""
    return each_count(lambda counts: rank_worth(outlook.expected(counts)), counted_R)


def variants_of(
    spec: TableSpec, plain: Priced, options: Sequence[Priced], memory: MemoryModel, ahead: bool
) -> tuple[list[Variant], list[Way]]:
    """List the ways to serve a table; the first is the stock table in host memory.

    Args:
        spec: The table.
        plain: It without sums.
        options: It with sums.
        memory: The machine.
        ahead: Bags arrive rewritten: no code is read.
    """
    row, read = spec.row_bytes, memory.read_bytes(spec.row_bytes)
    table, hot_map = spec.num_rows * row, spec.num_rows * HOT_MAP_BYTES
    cached = memory.uvm == "cached" and memory.hbm is not None  # a software cache splits it too
    plain_G = plain.plain.reads_GK.sum(axis=1)
    none_G = np.zeros(GROUPS)
    rows = climb((plain.plain,), row, read)
    nothing = climb((Rungs.none(),), row, read)
    variants = [
        Variant("host", cached, 0, table, none_G, none_G, *rows)
        if cached
        else Variant("host", False, 0, table, none_G, plain_G * read, *nothing)
    ]
    ways = [Way("stock")]
    if memory.hbm is not None:
        map_G = plain_G * memory.sector_bytes
        variants += [
            Variant("hbm", False, table, 0, plain_G * read, none_G, *nothing),
            Variant("host", True, hot_map, table, map_G, none_G, *rows, LEAST_TIME_GAIN),
        ]
        ways += [Way("stock"), Way("hot")]
    for number, option in enumerate(options):
        found = _with_sums(spec, option, memory, ahead)
        variants += found
        ways += [Way("sums", number)] * len(found)
    return variants, ways


def code_in_host(memory: MemoryModel, ahead: bool) -> bool:
    """Tell whether the code of sums leaves HBM to rows: nobody reads it here where bags come rewritten."""
    return ahead and memory.host.num_bytes > 0


def _with_sums(spec: TableSpec, option: Priced, memory: MemoryModel, ahead: bool) -> list[Variant]:
    """Sums beside originals in host memory, there with hot rows too, or in HBM."""
    assert option.sums is not None
    row, read = spec.row_bytes, memory.read_bytes(spec.row_bytes)
    table, hot_map = spec.num_rows * row, spec.num_rows * HOT_MAP_BYTES
    code = option.sums.metadata_bytes_of(spec.num_rows)
    code_G = option.ids_G * (0 if ahead else memory.sector_bytes)
    plain_G = option.plain.reads_GK.sum(axis=1)
    none_G = np.zeros(GROUPS)
    if memory.hbm is None or code_in_host(memory, ahead) or code > memory.hbm.num_bytes:
        (hbm_code, host_code), (hbm_G, host_G) = (0, code), (none_G, code_G)
    else:
        (hbm_code, host_code), (hbm_G, host_G) = (code, 0), (code_G, none_G)
    stored = host_code + option.sums.num_sums * row
    sums = climb((option.stored,), row, read)
    both = climb((option.plain, option.stored), row, read)
    rows_G, map_G = plain_G * read, plain_G * memory.sector_bytes
    cost = LEAST_TIME_GAIN
    found = [Variant("host", False, hbm_code, table + stored, hbm_G, host_G + rows_G, *sums, cost)]
    if memory.hbm is not None:
        found += [
            Variant(
                "host", True, hbm_code + hot_map, table + stored, hbm_G + map_G, host_G, *both, cost
            ),
            Variant("hbm", False, hbm_code + table, stored, hbm_G + rows_G, host_G, *sums, cost),
        ]
    return found
