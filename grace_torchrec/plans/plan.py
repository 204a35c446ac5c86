"""Plan: per table what is stored, where it lives, how it is looked up, and why.

Flow: table specs + profile + options -> make_plan -> *Plan* -> modules, serve, views.
A plan is a frozen value; on disk it is a folder (:mod:`grace_torchrec.plans.files`).
Shapes: N items, R stored rows (sums), H hot rows.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from grace_sharding.memory_tiers import MemoryModel
from grace_sharding.placement import Placement
from grace_sharding.shards import Sharding
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.curve import CurvePoint, check_cuts, check_rising
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.inner_tables import inner_tables
from grace_torchrec.plans.numbers import is_count, is_number
from grace_torchrec.plans.options import METHOD_CODES, MOST_BUDGET, PlanOptions
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import few_take_most
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

__all__ = ["CurvePoint", "Plan", "PlanOptions", "Prediction", "TableLookup", "TablePlan", "Verdict"]

Verdict = Literal["use", "leave stock"]
TableLookup = Literal["fused", "ahead", "stock"]


@dataclass(frozen=True)
class Prediction:
    """What held-out bags read, counted by the op that serves, and the time that takes.

    Attributes:
        ids: Ids of the held-out (validation) bags: rows that the stock model reads.
        rows_read: Rows that the plan reads for the same bags.
        cut: ``1 - rows_read / ids``.
        extra_rows: Stored sums and hot rows beside the original table.
        extra_bytes: Every byte over the stock model: sums, hot rows, metadata and what is kept.
        metadata_bytes: Bytes of the arrays that turn ids into stored rows.
        kept_bytes: Bytes of the sets behind the stored rows and of what CPU kernels pack, in host
            memory beside what is placed (``plans.held``).
        hbm_s: Seconds the HBM is busy with the held-out bags on the target machine.
        host_s: The same for host memory.
        stock_hbm_s: Seconds the stock table keeps HBM busy with the same bags; its memory is the one
            that is best for all stock tables together.
        stock_host_s: The same for host memory.

    Raises:
        GraceError: a number is out of range, or does not follow from the others.
    """

    ids: int
    rows_read: int
    cut: float
    extra_rows: int
    extra_bytes: int
    metadata_bytes: int
    kept_bytes: int
    hbm_s: float
    host_s: float
    stock_hbm_s: float
    stock_host_s: float

    def __post_init__(self) -> None:
        """Check that every number is finite and in range."""
        counts = ("ids", "rows_read", "extra_rows", "extra_bytes", "metadata_bytes", "kept_bytes")
        for name in counts:
            value = getattr(self, name)
            if not is_count(value):
                raise GraceError(f"prediction: {name} must be an integer >= 0, got {value!r}")
        for name in ("cut", "hbm_s", "host_s", "stock_hbm_s", "stock_host_s"):
            if not is_number(getattr(self, name)) or getattr(self, name) < 0:
                raise GraceError(
                    f"prediction: {name} must be a finite number >= 0, got {getattr(self, name)!r}"
                )
        if self.rows_read > self.ids or self.metadata_bytes + self.kept_bytes > self.extra_bytes:
            raise GraceError(
                "prediction: rows_read exceed ids, or metadata_bytes and kept_bytes extra_bytes"
            )
        if abs(self.cut - (1 - self.rows_read / self.ids if self.ids else 0.0)) > 1e-9:
            raise GraceError(
                f"prediction: cut {self.cut} is not that of {self.rows_read} rows for {self.ids} ids"
            )

    @property
    def time_s(self) -> float:
        """Seconds of the planned model: the slower memory, never the sum."""
        return max(self.hbm_s, self.host_s)

    @property
    def stock_s(self) -> float:
        """Seconds of the stock model: the slower memory."""
        return max(self.stock_hbm_s, self.stock_host_s)

    @property
    def time_ratio(self) -> float:
        """Stock time over ours, both the maximum over the tiers (1 where nothing is read)."""
        return self.stock_s / self.time_s if self.time_s else 1.0


def _no_reads() -> npt.NDArray[np.int64]:
    """Reads that are not known."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, repr=False)
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
        parameter: Parameter of the method that validation chose, or empty.
        cuts: Every candidate (method and parameter) -> its cut on the validation bags, with the
            whole budget.
        curve: Cuts by budget, bags rewritten in line and ahead; empty where nothing was fitted.
        sum_reads_R: int64, how often the validation bags read each stored sum; empty if not known.
            These bags took part in the last fit, so that no sum of them is missing.

    Raises:
        GraceError: parts do not belong together: verdict and sums, method and code, placement and
            the bytes of what is stored.
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
    parameter: str = ""
    cuts: Mapping[str, float] = field(default_factory=dict, repr=False)
    curve: tuple[CurvePoint, ...] = field(default=(), repr=False)
    sum_reads_R: npt.NDArray[np.int64] = field(default_factory=_no_reads, repr=False)

    def __post_init__(self) -> None:
        """Check that the parts belong together."""
        self._check_decision()
        self._check_grouping()
        self._check_bytes()

    def __repr__(self) -> str:
        """What was decided, on one line."""
        told, stored = self.predicted, ""
        if self.verdict == "use":
            stored = f", {self.picked}: {self.num_sums:,} sums, cut {told.cut:.1%}, {self.lookup}"
        return f"TablePlan({self.spec.key!r}, {self.verdict}{stored}, {told.extra_bytes:,} extra bytes)"

    @property
    def num_sums(self) -> int:
        """Stored sums."""
        return self.sums.num_sums if self.sums else 0

    @property
    def picked(self) -> str:
        """Method and parameter in one text."""
        return f"{self.method} {self.parameter}".rstrip()

    @property
    def sums_for_95pct(self) -> int | None:
        """How few stored sums take 95 % of their reads; None if their reads are not known."""
        return few_take_most(self.sum_reads_R) if self.sum_reads_R.size == self.num_sums else None

    def _check_decision(self) -> None:
        """Check verdict, lookup and sums."""
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
        if self.lookup == "ahead" and not self.num_sums:
            raise GraceError(f"{where}: lookup 'ahead' does not go with no sums")
        if self.sums is None:
            return
        if self.sums.num_items != self.spec.num_rows:
            raise GraceError(
                f"{where}: sums are for {self.sums.num_items} rows, the table has {self.spec.num_rows}"
            )
        if isinstance(self.sums.code, SetCode) and self.lookup != "ahead":
            raise GraceError(
                f"{where}: lookup {self.lookup!r} does not go with sets, which are rewritten ahead"
            )

    def _check_grouping(self) -> None:
        """Check what was chosen, and what is told about it."""
        where = f"table {self.spec.key}"
        known = self.method in ("none", *METHOD_CODES)
        if not known or (self.method == "none") != (self.num_sums == 0):
            raise GraceError(
                f"{where}: method {self.method!r} does not go with {self.num_sums} sums"
            )
        if self.sums is not None and self.method != "none":
            code = METHOD_CODES[self.method]
            if not isinstance(self.sums.code, code):
                raise GraceError(
                    f"{where}: method {self.method!r} makes a {code.__name__}, "
                    f"its sums have a {type(self.sums.code).__name__}"
                )
        check_cuts(self.cuts, f"{where}: cuts")
        check_rising(self.curve, MOST_BUDGET * self.spec.num_rows, where)
        reads = self.sum_reads_R
        if reads.dtype != np.int64 or reads.ndim != 1 or reads.size not in (0, self.num_sums):
            raise GraceError(
                f"{where}: sum reads are {reads.dtype} of shape {reads.shape} for {self.num_sums} sums"
            )
        if reads.size and reads.min() < 0:
            raise GraceError(f"{where}: sum reads must not be below 0")

    def _check_bytes(self) -> None:
        """Check that placement and prediction are those of what is stored."""
        where = f"table {self.spec.key}"
        placed = (self.placement.num_rows, self.placement.num_sums, self.placement.row_bytes)
        wanted = (self.spec.num_rows, self.num_sums, self.spec.row_bytes)
        if placed != wanted:
            raise GraceError(
                f"{where}: placement is for (rows, sums, row bytes) {placed}, expected {wanted}"
            )
        if self.sums is None and self.placement.hot_items.size:
            raise GraceError(f"{where}: a stock table cannot hold hot rows")
        told, extra = self.predicted, extra_of(self.sums, self.placement)
        found = (told.extra_rows, told.extra_bytes, told.metadata_bytes, told.kept_bytes)
        if found != (extra.rows, extra.bytes, extra.metadata_bytes, extra.kept_bytes):
            raise GraceError(
                f"{where}: predicted extra rows and bytes {found} are not those it stores, {extra}"
            )
        held = self.placement.hbm.bytes + self.placement.host.bytes
        if held != self.spec.num_rows * self.spec.row_bytes + extra.bytes - extra.kept_bytes:
            raise GraceError(
                f"{where}: its {held:,} placed bytes are not its rows and what it stores"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Table key -> :class:`TablePlan`, and what it was made for.

    Attributes:
        tables: One entry for each table of the model, by :attr:`TableSpec.key`.
        memory: The machine the plan was made for.
        options: What the caller asked for.
        profile_fingerprint: Short hash of the profile the plan was made from.
        sharding: Which rank holds what, where the plan was made for ranks; ``memory`` is then that
            of all of them together.

    Raises:
        GraceError: a key names another table, the tables do not fit in ``memory``, or ``sharding``
            is of other tables.
    """

    tables: Mapping[str, TablePlan]
    memory: MemoryModel
    options: PlanOptions = field(default_factory=PlanOptions)
    profile_fingerprint: str = ""
    sharding: Sharding | None = None

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
        if self.sharding is not None:
            inner = inner_tables(self.tables.values())
            shapes = {
                (each.path, each.name): (each.num_rows, each.table.spec.dim) for each in inner
            }
            try:
                self.sharding.check_tables(shapes)
            except ValueError as error:
                raise GraceError(f"plan: {error}") from error

    def __repr__(self) -> str:
        """Tables, verdicts and memories, on one line; ``inspect`` shows the rest."""
        verdicts = Counter(table.verdict for table in self.tables.values())
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        extra = sum(table.predicted.extra_bytes for table in self.tables.values())
        return (
            f"Plan({len(self.tables)} tables{': ' if counts else ''}{counts}; for "
            f"{self.memory.machine}; {extra:,} extra bytes)"
        )

    def sharding_plan(self, device: str = "cuda") -> "ShardingPlan":
        """Return what DistributedModelParallel takes as ``plan``, for the swapped model.

        Args:
            device: Type of the ranks' device, ``cuda`` or ``cpu``.

        Raises:
            GraceError: the plan was not made for ranks.
        """
        from grace_sharding.planner_stats import sharding_plan

        if self.sharding is None:
            raise GraceError(
                "plan: has no sharding; make it with grace_torchrec.plan(world_size=..)"
            )
        return sharding_plan(self.sharding, device)

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
