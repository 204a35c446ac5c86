"""The demo's result: one value, rendered as a table for people and as JSON for programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TableResult:
    """One table.

    Attributes:
        table: Dotted path.
        verdict: ``use`` or ``leave stock``: the plan's, for the target machine.
        reason: Why.
        verdict_told: The verdict as people read it, of the plan's summary.
        ids: Ids asked for by the held-out bags.
        rows_read: Rows the swapped module read for them, counted by the op that served.
        extra_rows: Stored rows.
        extra_bytes: Bytes held beside the original table, metadata included.
        max_abs_error: Against the original table.
        max_rel_error: The same, over the sum of absolute values.
        picked: Grouping method and parameter, ``none`` without sums.
        in_line_cut: Best cut on validation bags of the methods whose code is rewritten while serving;
            None where nothing was fitted.
        ahead_cut: The same of all methods, bags rewritten before they are served.
        sums_for_95pct: How few stored sums take 95 % of the reads of all; None without sums.
    """

    table: str
    verdict: str
    reason: str
    verdict_told: str
    ids: int
    rows_read: int
    extra_rows: int
    extra_bytes: int
    max_abs_error: float
    max_rel_error: float
    picked: str = "none"
    in_line_cut: float | None = None
    ahead_cut: float | None = None
    sums_for_95pct: int | None = None

    @property
    def cut(self) -> float:
        """Share of row reads saved on held-out bags."""
        return 1 - self.rows_read / self.ids if self.ids else 0.0


@dataclass(frozen=True)
class Measured:
    """Timed here: embedding collection and whole model, stock and swapped in turns.

    Attributes:
        machine: Processor and threads.
        lookup: Which lookup ran.
        dim: Embedding dimension.
        batch: Bags of a batch.
        stock_us: Median of the stock collection's forward, a batch.
        ours_us: The same of the swapped one.
        latency_ratio: Stock over ours, median over the rounds.
        spread: 20 % and 80 % quantiles of that ratio.
        model_ratio: The same for the whole model.
        model_spread: Its quantiles.
        busy: The rounds differ so much, or so many other processes ran, that no time means anything.
        load: Of the machine before, None where it does not say.
        cores: Of the machine.
    """

    machine: str
    lookup: str
    dim: int
    batch: int
    stock_us: float
    ours_us: float
    latency_ratio: float
    spread: tuple[float, float]
    model_ratio: float
    model_spread: tuple[float, float]
    busy: bool = False
    load: float | None = None
    cores: int = 0


@dataclass(frozen=True)
class DemoResult:
    """Everything the demo found out.

    Attributes:
        trace: Name of the trace.
        num_items: Rows of each table.
        num_bags: Bags of the trace.
        pooling_factor: Mean ids per bag.
        tables: One entry for each table of the model.
        losses: First and last training loss.
        plan_s: Seconds to choose, pair counting included.
        build_s: ``plan_s`` and the seconds to build the stored rows and swap.
        measured: Timed here; None where no table was swapped.
        target: Machine the plan was modelled for.
        time_ratio: Modelled stock time over ours there, lookups of all tables, as far as it is claimed.
        profile_path: Where the profile folder is.
        plan_path: Where the plan folder is.
        equal: Whether every output was equal within rounding.
        doubts: Used tables of which no gain in time is claimed there -> why.
        ids_for_a_launch: Ids of a batch from which the claimed gain is more than one kernel launch.
    """

    trace: str
    num_items: int
    num_bags: int
    pooling_factor: float
    tables: tuple[TableResult, ...]
    losses: tuple[float, float]
    plan_s: float
    build_s: float
    measured: Measured | None
    target: str
    time_ratio: float
    profile_path: str
    plan_path: str
    equal: bool
    doubts: Mapping[str, str] = field(default_factory=dict)
    ids_for_a_launch: int | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether any used table is said to gain time on the target machine."""
        return any(t.verdict == "use" and t.table not in self.doubts for t in self.tables)

    @property
    def cut(self) -> float:
        """Cut of the table of histories: the trace's own bags."""
        return self.tables[0].cut

    @property
    def verdict_here(self) -> str:
        """What the measurement on this machine says, in one sentence."""
        if self.measured is None:
            return "leave stock: no table gains"
        ratio, (low, high) = self.measured.latency_ratio, self.measured.spread
        if self.measured.busy:
            return f"none, the machine was too busy to tell (ratios {low:.2f} to {high:.2f}); run again"
        if low > 1:
            return f"use: lookups measured {ratio:.2f} times faster here"
        if high < 1:
            return (
                f"leave stock here: lookups measured {1 / ratio:.2f} times slower on this machine"
            )
        return f"no clear difference here: {low:.2f} to {high:.2f} times the stock speed"

    def document(self) -> dict[str, Any]:
        """Return the JSON object of ``demo --json``."""
        measured = self.measured
        return {
            "trace": self.trace,
            "num_items": self.num_items,
            "num_bags": self.num_bags,
            "pooling_factor": self.pooling_factor,
            "tables": {
                t.table: {
                    "verdict": t.verdict,
                    "verdict_told": t.verdict_told,
                    "reason": t.reason,
                    "cut": t.cut,
                    "ids": t.ids,
                    "rows_read": t.rows_read,
                    "extra_rows": t.extra_rows,
                    "extra_bytes": t.extra_bytes,
                    "picked": t.picked,
                    "validation_cut": {"in_line": t.in_line_cut, "ahead": t.ahead_cut},
                    "sums_for_95pct": t.sums_for_95pct,
                }
                for t in self.tables
            },
            "cut": self.cut,
            "extra_rows": sum(t.extra_rows for t in self.tables),
            "extra_bytes": sum(t.extra_bytes for t in self.tables),
            "plan_s": self.plan_s,
            "build_s": self.build_s,
            "measured": None
            if measured is None
            else {**vars(measured), "verdict": self.verdict_here},
            "modelled": {
                "machine": self.target,
                "time_ratio": self.time_ratio,
                "no_gain_claimed": dict(self.doubts),
                "ids_for_a_launch": self.ids_for_a_launch,
            },
            "losses": list(self.losses),
            "max_abs_error": max(t.max_abs_error for t in self.tables),
            "max_rel_error": max(t.max_rel_error for t in self.tables),
            "equal": self.equal,
            "profile": self.profile_path,
            "plan": self.plan_path,
        }
