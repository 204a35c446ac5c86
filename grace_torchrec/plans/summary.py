"""Summary: what a plan says of each table and memory, in one form for our plans and TorchRec's.

Flow: our plan (:mod:`grace_torchrec.plans.summarise`) or a sharding plan of TorchRec
(:mod:`grace_torchrec.plans.stock_plan`) -> *PlanSummary* -> inspect, diff, report.
Derived: slack, the time for which one memory waits until the slower one is done.
Shapes: R sums, H hot rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from grace_sharding.shards import Sharding
from grace_torchrec.sums.stored_sums import StoredSums

TIMES = "modelled: bytes of held-out bags over bandwidths of the machine; not measured"
RATE = "_bytes_per_s"  # settings of a plan: the bandwidth of each memory
LOOKUP = "lookup_"  # and each cost of a lookup on a CPU
Kind = Literal["grace", "torchrec"]


@dataclass(frozen=True)
class TierPart:
    """What one table keeps in one memory; None: the plan does not say.

    Attributes:
        tier: ``hbm``, ``host`` or ``ssd``.
        originals: Rows of the original table.
        sums: Stored sums.
        hot_rows: Copies of rows whose originals are in host memory.
        bytes: Bytes of all of these, metadata included.
        reads: Rows that the bags of the profile read here.
        time_s: Seconds that held-out bags keep this memory busy, modelled from bytes and bandwidth.
        stock_s: The same for the stock table.
        claimed_s: ``time_s`` as far as a gain is claimed (``plans.claims``).
    """

    tier: str
    originals: int | None
    sums: int = 0
    hot_rows: int = 0
    bytes: int | None = None
    reads: int | None = None
    time_s: float | None = None
    stock_s: float | None = None
    claimed_s: float | None = None

    @property
    def rows(self) -> int | None:
        """Rows of all kinds."""
        return None if self.originals is None else self.originals + self.sums + self.hot_rows


@dataclass(frozen=True, eq=False)
class Contents:
    """Which sums and hot rows a table holds, not only how many: a diff looks into them."""

    sums: StoredSums | None
    hot_items: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableSummary:
    """One table; None: the plan does not say.

    Attributes:
        table: Dotted path.
        verdict: ``use`` or ``leave stock`` (ours), ``stock`` (TorchRec's).
        method: Grouping method and its parameter (ours), way of sharding (TorchRec's).
        lookup: Who reads the rows (ours), compute kernel (TorchRec's).
        reason: Why, one sentence for people.
        num_rows: Rows of the original table.
        row_bytes: Bytes of one row.
        tiers: Its part in every memory of the machine.
        cut: Share of row reads saved on held-out bags.
        in_line_cut: The same of the best candidate whose bags are rewritten while serving.
        ahead_cut: The same of the best candidate whose bags are rewritten before.
        ids: Ids of the held-out bags.
        extra_bytes: Every byte over the stock model.
        metadata_bytes: Of these, the arrays that turn ids into stored rows.
        doubt: Why no gain in time is claimed; empty where one may be.
        verdict_told: The verdict as people read it: a bare ``use`` says that a gain in time is claimed.
        contents: The stored rows themselves.
    """

    table: str
    verdict: str
    method: str
    lookup: str
    reason: str
    num_rows: int | None
    row_bytes: int | None
    tiers: tuple[TierPart, ...]
    cut: float | None = None
    in_line_cut: float | None = None
    ahead_cut: float | None = None
    ids: int | None = None
    extra_bytes: int | None = None
    metadata_bytes: int | None = None
    doubt: str = ""
    verdict_told: str = ""
    contents: Contents | None = field(default=None, repr=False)

    @property
    def time_s(self) -> float | None:
        """Seconds of this table: the slower memory, never the sum."""
        return slower(self.tiers)

    @property
    def stock_s(self) -> float | None:
        """Seconds of the stock table for the held-out bags: the slower memory."""
        return slowest(part.stock_s for part in self.tiers)

    @property
    def claimed_s(self) -> float | None:
        """Seconds of this table as far as a gain is claimed: the slower memory."""
        return slowest(part.claimed_s for part in self.tiers)

    @property
    def extra_rows(self) -> int:
        """Sums and hot rows, in all memories."""
        return sum(part.sums + part.hot_rows for part in self.tiers)

    def document(self) -> dict[str, Any]:
        """Return the JSON object of one table."""
        names = (
            "table", "verdict", "verdict_told", "method", "lookup", "reason", "num_rows", "row_bytes", "cut",
            "in_line_cut", "ahead_cut", "ids", "extra_rows", "extra_bytes", "metadata_bytes", "time_s", "stock_s",
            "claimed_s", "doubt",
        )  # fmt: skip
        tiers = {part.tier: _tier_document(part, self.tiers) for part in self.tiers}
        return {**{name: getattr(self, name) for name in names}, "tiers": tiers}


@dataclass(frozen=True, eq=False)
class PlanSummary:
    """A whole plan.

    Attributes:
        kind: Whose plan it is.
        source: Where it was read.
        machine: What it was made for.
        rooms: Memory -> bytes it has for rows; empty: not known.
        tables: One entry for each table.
        settings: What was asked for and what it was made from, name -> value.
        sharding: Which rank holds what, where the plan was made for ranks.
        ids_for_a_launch: Ids of a batch from which the claimed gain is more than one kernel launch;
            None where that is not known.
        claimed_s: Seconds of all tables together as far as a gain is claimed (``plans.claims``).
    """

    kind: Kind
    source: str
    machine: str
    rooms: Mapping[str, int]
    tables: tuple[TableSummary, ...]
    settings: Mapping[str, Any]
    sharding: Sharding | None = None
    ids_for_a_launch: int | None = None
    claimed_s: float | None = None

    @property
    def tiers(self) -> tuple[TierPart, ...]:
        """All tables together, memory by memory."""
        names = dict.fromkeys([*self.rooms, *(p.tier for t in self.tables for p in t.tiers)])
        return tuple(
            _together(name, [p for t in self.tables for p in t.tiers if p.tier == name])
            for name in names
        )

    @property
    def time_s(self) -> float | None:
        """Seconds of all tables together: the slower memory."""
        return slower(self.tiers)

    @property
    def cut(self) -> float:
        """Share of all row reads saved on held-out bags."""
        ids = sum(table.ids or 0 for table in self.tables)
        saved = sum((table.cut or 0.0) * (table.ids or 0) for table in self.tables)
        return saved / ids if ids else 0.0

    @property
    def stock_s(self) -> float | None:
        """Seconds of the stock model: the slower memory."""
        return slowest(part.stock_s for part in self.tiers)

    @property
    def time_ratio(self) -> float:
        """Stock time over the claimed one (1 where nothing is read, or no gain is claimed)."""
        claimed_s = self.claimed_s
        return self.stock_s / claimed_s if claimed_s and self.stock_s is not None else 1.0

    @property
    def all_in_hbm_s(self) -> float | None:
        """Seconds with all rows in HBM; None unless host memory has rows for which HBM has room."""
        parts, beta = {part.tier: part for part in self.tiers}, self.settings.get("beta")
        if self.kind != "grace" or "hbm" not in parts or beta is None:
            return None
        hbm, host = parts["hbm"], parts["host"]
        if not host.rows or (hbm.bytes or 0) + (host.bytes or 0) > self.rooms["hbm"]:
            return None
        return (hbm.time_s or 0.0) + (host.time_s or 0.0) * float(beta)

    @property
    def doubted(self) -> tuple[TableSummary, ...]:
        """Tables that are used without a claim that it saves time."""
        return tuple(table for table in self.tables if table.doubt)

    def verdicts(self) -> dict[str, int]:
        """How many tables have each verdict, the most frequent one first."""
        return dict(Counter(table.verdict for table in self.tables).most_common())

    def verdicts_told(self) -> str:
        """Return the same for people, who want to know what a table is used for."""
        told = Counter(table.verdict_told for table in self.tables)
        return ", ".join(f"{count:,} {verdict}" for verdict, count in told.most_common())

    def document(self) -> dict[str, Any]:
        """Return the JSON object of ``inspect --json``."""
        tiers = self.tiers
        return {
            "kind": self.kind,
            "plan": self.source,
            "machine": self.machine,
            "settings": dict(self.settings),
            "verdicts": self.verdicts(),
            "time_s": self.time_s,
            "stock_s": self.stock_s,
            "claimed_s": self.claimed_s,
            "time_ratio": None if self.stock_s is None else self.time_ratio,
            "ids_for_a_launch": self.ids_for_a_launch,
            "all_in_hbm_s": self.all_in_hbm_s,
            "times": TIMES,
            "tiers": {
                part.tier: {**_tier_document(part, tiers), "room_bytes": self.rooms.get(part.tier)}
                for part in tiers
            },
            "tables": [table.document() for table in self.tables],
            "sharding": None if self.sharding is None else self.sharding.to_json(),
        }


def slower(tiers: tuple[TierPart, ...]) -> float | None:
    """Return the time of the slowest of several memories, None where none is known."""
    return slowest(part.time_s for part in tiers)


def slowest(times: Iterable[float | None]) -> float | None:
    """Return the longest known time, None where none is known."""
    return max((time_s for time_s in times if time_s is not None), default=None)


def slack_s(part: TierPart, tiers: tuple[TierPart, ...]) -> float | None:
    """Return for how long one memory waits for the slowest of ``tiers``."""
    longest = slower(tiers)
    return None if longest is None or part.time_s is None else longest - part.time_s


def _together(name: str, parts: list[TierPart]) -> TierPart:
    """Add the parts of all tables in one memory up; what one does not say, the total does not."""
    return TierPart(
        tier=name,
        originals=_total([part.originals for part in parts]),
        sums=sum(part.sums for part in parts),
        hot_rows=sum(part.hot_rows for part in parts),
        bytes=_total([part.bytes for part in parts]),
        reads=_total([part.reads for part in parts]),
        time_s=_total([part.time_s for part in parts]),
        stock_s=_total([part.stock_s for part in parts]),
        claimed_s=_total([part.claimed_s for part in parts]),
    )


def _total(values: list[Any]) -> Any:
    """Return the sum, None where one of the values is not known."""
    return None if any(value is None for value in values) else sum(values)


def _tier_document(part: TierPart, tiers: tuple[TierPart, ...]) -> dict[str, Any]:
    """Return the JSON object of one part."""
    kept = {key: value for key, value in asdict(part).items() if key != "tier"}
    return {**kept, "rows": part.rows, "slack_s": slack_s(part, tiers)}
