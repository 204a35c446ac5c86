"""Plan: per table what is stored, where it lives, how it is looked up, and why.

Flow: table specs + profile + options -> make_plan -> *Plan* -> modules, serve, views.
A plan is a frozen value; on disk it is a folder (:mod:`grace_torchrec.plans.files`).
Shapes: N items, R stored rows (sums), H hot rows.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums

Verdict = Literal["use", "leave stock"]
Lookup = Literal["auto", "fused", "stock"]
TableLookup = Literal["fused", "ahead", "stock"]
Rewriting = Literal["in_line", "ahead"]
BadIds = Literal["raise", "drop", "zero_row"]
METHODS = ("grace",)
ROW_DTYPES = ("table", "fp32", "fp16", "int8", "int4")
SIZE_LIMITS = (3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class PlanOptions:
    """What the caller asks for; checked when it is made.

    Attributes:
        budget: Most sums a table may store, as a multiple of its rows.
        methods: Grouping methods to try; no sums at all is always tried too.
        size_limits: Largest cluster sizes to try, each 2..8.
        min_gain: Least cut on held-out bags for a verdict "use" (derived, not from the paper).
        lookup: ``fused`` (one op over both tiers), ``stock`` (the inner collections) or ``auto``.
        row_dtype: Type that ``convert`` gives all rows; ``table`` keeps that of each table.  A
            swapped module keeps its own type, and rows are priced by it.
        rewriting: How bags will arrive: plain, to be rewritten inside forward (``in_line``), or
            rewritten already by ``grace_torchrec.rewrite`` (``ahead``).
        bad_ids: What serving does with an id outside the table.

    Raises:
        GraceError: a value is out of range; the message names it.
    """

    budget: float = 1.0
    methods: tuple[str, ...] = METHODS
    size_limits: tuple[int, ...] = SIZE_LIMITS
    min_gain: float = 0.02
    lookup: Lookup = "auto"
    row_dtype: str = "table"
    rewriting: Rewriting = "in_line"
    bad_ids: BadIds = "raise"

    def __post_init__(self) -> None:
        """Check every field once."""
        if not is_number(self.budget) or not 0 <= self.budget <= 1000:
            raise GraceError(f"options: budget must be 0..1000 times the rows, got {self.budget!r}")
        if not is_number(self.min_gain) or not 0 <= self.min_gain < 1:
            raise GraceError(f"options: min_gain must be in 0..1, got {self.min_gain!r}")
        if not isinstance(self.methods, tuple) or any(name not in METHODS for name in self.methods):
            raise GraceError(
                f"options: methods must be a tuple out of {METHODS}, got {self.methods!r}"
            )
        if not isinstance(self.size_limits, tuple) or not all(
            is_count(k) and k in range(2, 9) for k in self.size_limits
        ):
            raise GraceError(
                f"options: size_limits must be a tuple of 2..8, got {self.size_limits!r}"
            )
        if self.methods and not self.size_limits:
            raise GraceError("options: size_limits is empty; give at least one of 2..8")
        choices = (("lookup", Lookup), ("bad_ids", BadIds), ("rewriting", Rewriting))
        for name, known in ((name, get_args(kind)) for name, kind in choices):
            if getattr(self, name) not in known:
                raise GraceError(
                    f"options: {name} must be one of {known}, got {getattr(self, name)!r}"
                )
        if self.row_dtype not in ROW_DTYPES:
            raise GraceError(
                f"options: row_dtype must be one of {ROW_DTYPES}, got {self.row_dtype!r}"
            )


@dataclass(frozen=True)
class Prediction:
    """What held-out bags read, counted by the op that serves, and the time that takes.

    Attributes:
        ids: Ids of the held-out (validation) bags: rows that the stock model reads.
        rows_read: Rows that the plan reads for the same bags.
        cut: ``1 - rows_read / ids``.
        extra_rows: Stored sums and hot rows beside the original table.
        extra_bytes: Every byte over the stock model: sums, hot rows and metadata.
        metadata_bytes: Bytes of the arrays that turn ids into stored rows.
        hbm_s: Seconds the HBM is busy with the held-out bags on the target machine.
        host_s: The same for host memory.
        stock_s: Seconds the stock model takes for the same bags (tables whole in one memory).
    """

    ids: int
    rows_read: int
    cut: float
    extra_rows: int
    extra_bytes: int
    metadata_bytes: int
    hbm_s: float
    host_s: float
    stock_s: float

    def __post_init__(self) -> None:
        """Check that every number is finite and in range."""
        for name in ("ids", "rows_read", "extra_rows", "extra_bytes", "metadata_bytes"):
            value = getattr(self, name)
            if not is_count(value):
                raise GraceError(f"prediction: {name} must be an integer >= 0, got {value!r}")
        for name in ("cut", "hbm_s", "host_s", "stock_s"):
            if not is_number(getattr(self, name)) or getattr(self, name) < 0:
                raise GraceError(
                    f"prediction: {name} must be a finite number >= 0, got {getattr(self, name)!r}"
                )
        if self.rows_read > self.ids or self.metadata_bytes > self.extra_bytes:
            raise GraceError("prediction: rows_read or metadata_bytes exceed ids or extra_bytes")
        if abs(self.cut - (1 - self.rows_read / self.ids if self.ids else 0.0)) > 1e-9:
            raise GraceError(
                f"prediction: cut {self.cut} is not that of {self.rows_read} rows for {self.ids} ids"
            )

    @property
    def time_s(self) -> float:
        """Seconds of the planned model: the slower memory, never the sum."""
        return max(self.hbm_s, self.host_s)

    @property
    def time_ratio(self) -> float:
        """Stock time over ours, both the maximum over the tiers (1 where nothing is read)."""
        return self.stock_s / self.time_s if self.time_s else 1.0


@dataclass(frozen=True, eq=False)
class TablePlan:
    """The decision for one table.

    Attributes:
        spec: The table this was planned for.
        verdict: ``use`` or ``leave stock``.
        reason: Why, one sentence for people.
        method: Grouping method, ``none`` without sums.
        sums: What is stored; None for ``leave stock``, without sums where only hot rows gain.
        placement: Where the originals, sums and hot rows live.
        lookup: Who reads the rows; ``ahead``: rows of bags that arrive rewritten.
        lookup_reason: Why that one.
        predicted: What held-out bags read.
    """

    spec: TableSpec
    verdict: Verdict
    reason: str
    method: str
    sums: StoredSums | None = field(repr=False)
    placement: Placement
    lookup: TableLookup
    lookup_reason: str
    predicted: Prediction

    def __post_init__(self) -> None:
        """Check that the parts belong together."""
        where = f"table {self.spec.key}"
        if self.verdict not in get_args(Verdict):
            raise GraceError(
                f"{where}: verdict must be one of {get_args(Verdict)}, got {self.verdict!r}"
            )
        if (self.sums is None) != (self.verdict == "leave stock"):
            raise GraceError(
                f"{where}: verdict {self.verdict!r} does not go with {'no ' if self.sums is None else ''}sums"
            )
        if self.lookup not in get_args(TableLookup):
            raise GraceError(
                f"{where}: lookup must be one of {get_args(TableLookup)}, got {self.lookup!r}"
            )
        num_sums = self.sums.num_sums if self.sums else 0
        if self.lookup == "ahead" and not num_sums:
            raise GraceError(f"{where}: lookup 'ahead' does not go with no sums")
        if self.method not in ("none", *METHODS) or (self.method == "none") != (num_sums == 0):
            raise GraceError(f"{where}: method {self.method!r} does not go with {num_sums} sums")
        if self.sums is not None:
            self.sums.clusters  # noqa: B018  # refuses sums that no table is served with
        if self.sums is not None and self.sums.num_items != self.spec.num_rows:
            raise GraceError(
                f"{where}: sums are for {self.sums.num_items} rows, the table has {self.spec.num_rows}"
            )
        placed = (self.placement.num_rows, self.placement.num_sums, self.placement.row_bytes)
        if placed != (self.spec.num_rows, num_sums, self.spec.row_bytes):
            raise GraceError(
                f"{where}: placement is for (rows, sums, row bytes) {placed}, "
                f"expected {(self.spec.num_rows, num_sums, self.spec.row_bytes)}"
            )
        if self.sums is None and self.placement.hot_items.size:
            raise GraceError(f"{where}: a stock table cannot hold hot rows")
        metadata = (self.sums.metadata_bytes if self.sums else 0) + self.placement.hot_map_bytes
        extra_rows = num_sums + self.placement.hot_items.size
        extra = (extra_rows, extra_rows * self.spec.row_bytes + metadata, metadata)
        told = self.predicted
        if (told.extra_rows, told.extra_bytes, told.metadata_bytes) != extra:
            raise GraceError(
                f"{where}: predicted extra rows and bytes are not those it stores, {extra}"
            )
        held = self.placement.hbm.bytes + self.placement.host.bytes
        if held != self.spec.num_rows * self.spec.row_bytes + told.extra_bytes:
            raise GraceError(
                f"{where}: its {held:,} placed bytes are not its rows and what it stores"
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """Table key -> :class:`TablePlan`, and what it was made for.

    Attributes:
        tables: One entry for each table of the model, by :attr:`TableSpec.key`.
        memory: The machine the plan was made for.
        options: What the caller asked for.
        profile_fingerprint: Short hash of the profile the plan was made from.
    """

    tables: Mapping[str, TablePlan]
    memory: MemoryModel
    options: PlanOptions = field(default_factory=PlanOptions)
    profile_fingerprint: str = ""

    def __post_init__(self) -> None:
        """Check that keys name their tables."""
        for key, table in self.tables.items():
            if key != table.spec.key:
                raise GraceError(f"plan: key {key!r} holds the table {table.spec.key!r}")
        for name in ("hbm", "host"):
            room = sum(tier.num_bytes for tier in self.memory.tiers if tier.name == name)
            need = sum(getattr(table.placement, name).bytes for table in self.tables.values())
            if need > room:
                raise GraceError(
                    f"plan: places {need:,} bytes in {name}, {self.memory.machine} has {room:,}"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan folder whole or not at all.

        Raises:
            GraceError: ``path`` is something else than a plan folder, or cannot be written.
        """
        from grace_torchrec.plans.files import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan folder and verify everything in it.

        Raises:
            GraceError: the folder is missing, damaged, or of a schema this version does not know.
        """
        from grace_torchrec.plans.files import load_plan

        return load_plan(path)


def is_number(value: object) -> bool:
    """Tell a finite int or float from anything else (bools are no numbers)."""
    limit = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def is_count(value: object) -> bool:
    """Tell an integer >= 0 from anything else."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
