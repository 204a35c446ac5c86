"""Pricing: how long the tables keep each memory busy, if each stores what its mode says.

Flow: Choice per table + mode -> placement on the fit bags -> *seconds on the validation bags*.
Source: GRACE, ASPLOS'23 (memories work at the same time, so a time is a maximum, never a sum).
Derived: an id that is looked up in the code, and a row that is looked up in the map of hot rows,
each cost one sector; a software cache in front of host memory is taken as the best static one.
Shapes: N items, R sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement, place_tables
from grace_sharding.table_reads import TableReads
from grace_torchrec.plans.candidates import Choice
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import RowReads, count_reads
from grace_torchrec.sums.stored_sums import StoredSums

Mode = Literal["sums", "hot", "stock"]  # sums and hot rows; hot rows only; nothing of ours
Part = Literal["fit", "validation", "all"]


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


@dataclass(eq=False)
class Candidate:
    """One table, what it could store, and the mode under trial.

    Attributes:
        spec: The table.
        choice: Its best sums, or none.
        mode: What it stores now.
        reason: Why it does not store more; empty while it stores all it could.
    """

    spec: TableSpec
    choice: Choice
    mode: Mode
    reason: str
    _reads: dict[tuple[bool, Part], RowReads] = field(default_factory=dict, repr=False)
    _tables: dict[tuple[Mode, Part, bool], TableReads] = field(default_factory=dict, repr=False)

    def sums(self, part: Part) -> StoredSums | None:
        """Sums of the fit that may be judged on ``part``; None where the mode stores none."""
        if self.mode != "sums":
            return None
        return self.choice.sums if part == "all" else self.choice.held_sums

    def reads(self, part: Part) -> RowReads:
        """Rows that the bags of ``part`` read in this mode (counted once)."""
        sums = self.sums(part)
        key = sums is not None, part
        if key not in self._reads:
            trace = getattr(self.choice.bags, part)
            plain = RowReads(trace.counts(), np.zeros(0, np.int64), trace.num_ids)
            self._reads[key] = plain if sums is None else count_reads(trace, sums)
        return self._reads[key]

    def table_reads(self, part: Part, cached: bool) -> TableReads:
        """What there is to place in this mode (written once: it values its sums).

        Args:
            part: The bags whose reads count.
            cached: Host memory has a software cache, which splits stock tables too.
        """
        key = self.mode, part, cached
        if key not in self._tables:
            reads, sums = self.reads(part), self.sums(part)
            self._tables[key] = TableReads(
                name=self.spec.key,
                plain_reads_N=reads.plain_reads_N,
                sum_reads_R=reads.stored_reads_R,
                row_bytes=self.spec.row_bytes,
                metadata_bytes=sums.metadata_bytes if sums else 0,
                stock=self.mode == "stock" and not cached,
            )
        return self._tables[key]


def place_candidates(
    candidates: Sequence[Candidate], memory: MemoryModel, part: Part
) -> tuple[Placement, ...]:
    """Place all tables by the reads of ``part``.

    Raises:
        DoesNotFit: originals or sums fit in no memory.
    """
    cached = memory.uvm == "cached"
    return place_tables([candidate.table_reads(part, cached) for candidate in candidates], memory)


def price(candidate: Candidate, placement: Placement, memory: MemoryModel) -> Busy:
    """Return how long the validation bags of one table keep each memory busy."""
    reads = candidate.reads("validation")
    rows = placement.reads_by_tier(reads.plain_reads_N, reads.stored_reads_R)
    row_bytes = memory.read_bytes(placement.row_bytes)
    tier_bytes = {"hbm": rows["hbm"] * row_bytes, "host": rows["host"] * row_bytes}
    if candidate.mode == "sums":
        tier_bytes[placement.metadata] += reads.rows_before * memory.sector_bytes
    if candidate.mode != "stock" and placement.hot_items.size:
        tier_bytes["hbm"] += int(reads.plain_reads_N.sum()) * memory.sector_bytes
    seconds = memory.tier_s({tier.name: tier_bytes[tier.name] for tier in memory.tiers})
    return Busy(seconds.get("hbm", 0.0), seconds["host"])
