"""TensorBoard: a plan, its streams and live figures as tags beside those of the training.

Flow: Plan, Schedule, figures of a running model -> *Board* -> event files -> TensorBoard.
Tags: ``grace/<table>/{saved_reads,hbm_reads,uvm_reads,sum_hit,drift}``, shares of 0..1;
``recos/stream_<i>/{busy,queue}``; ``latency/{p50,p95,p99}`` in ms.  TensorBoard is an extra of the
installation, imported when a board is made.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.schedule.schedule import Schedule
from grace_torchrec.views.plan_figure import plan_figure

TABLES = "grace"
PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class TableShares:
    """What the bags of one table read, as shares; None: not known.

    Attributes:
        saved_reads: Of the ids, those for which no row is read: the cut.
        hbm_reads: Of the rows read, those in HBM.
        uvm_reads: Of the rows read, those in host memory.
        sum_hit: Of the rows read, stored sums.
        drift: Predicted cut less that of live bags.
    """

    saved_reads: float | None = None
    hbm_reads: float | None = None
    uvm_reads: float | None = None
    sum_hit: float | None = None
    drift: float | None = None


class Board:
    """Event files of one folder; close it, or use it in a ``with`` block.

    Args:
        folder: Where the event file goes, the folder that ``tensorboard --logdir`` is given.

    Raises:
        NotSupported: TensorBoard is not installed.
        GraceError: the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            writer = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise NotSupported(
                "TensorBoard is not installed; pip install 'grace-torchrec[report]'"
            ) from error
        try:
            self._writer = writer(os.fspath(folder))
        except OSError as error:
            raise GraceError(f"{folder}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> "Board":
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def plan(self, plan: Plan, step: int = 0) -> None:
        """Write what a plan predicts: its tables, its options as hparams, and its figure.

        The figure is left out where matplotlib is not installed.
        """
        summary = summarise(plan)
        self.tables({key: planned_shares(table) for key, table in plan.tables.items()}, step)
        results = {"cut": summary.cut, "time_ratio": summary.time_ratio}
        results["extra_bytes"] = float(sum(table.extra_bytes or 0 for table in summary.tables))
        self._hparams(
            _plain(asdict(plan.options) | {"machine": plan.memory.machine}), results, step
        )
        figure = plan_figure(summary)
        if figure is not None:
            self._writer.add_figure("grace/plan", figure, step)

    def tables(self, shares: Mapping[str, TableShares], step: int) -> None:
        """Write what the tables read; what is not known is left out."""
        for table, found in shares.items():
            for name, value in asdict(found).items():
                if value is not None:
                    self._writer.add_scalar(f"{TABLES}/{table}/{name}", value, step)

    def schedule(self, schedule: Schedule, step: int = 0) -> None:
        """Write how a schedule uses its streams: share of the predicted makespan, operators issued."""
        streams, times = np.asarray(schedule.stream_n), np.asarray(schedule.times_us)
        size = schedule.num_streams
        busy = np.bincount(streams, weights=times, minlength=size) / (schedule.makespan_us or 1.0)
        self.streams(busy.tolist(), np.bincount(streams, minlength=size).tolist(), step)

    def streams(self, busy: Sequence[float], queue: Sequence[float], step: int) -> None:
        """Write, for each stream, the share of time it is busy, and operators queued on it."""
        for number, (share, waiting) in enumerate(zip(busy, queue, strict=True)):
            self._writer.add_scalar(f"recos/stream_{number}/busy", share, step)
            self._writer.add_scalar(f"recos/stream_{number}/queue", waiting, step)

    def latency(self, p50_ms: float, p95_ms: float, p99_ms: float, step: int) -> None:
        """Write percentiles of the latency of requests."""
        for name, value in zip(PERCENTILES, (p50_ms, p95_ms, p99_ms), strict=True):
            self._writer.add_scalar(f"latency/{name}", value, step)

    def _hparams(self, options: dict[str, Any], results: dict[str, float], step: int) -> None:
        """Write hparams and their results into this folder; ``add_hparams`` would open another."""
        tags = {f"{TABLES}/{name}": value for name, value in results.items()}
        hparams = import_module("torch.utils.tensorboard.summary").hparams
        for part in hparams(options, tags):
            self._writer.file_writer.add_summary(part)
        for tag, value in tags.items():
            self._writer.add_scalar(tag, value, step)


def planned_shares(table: TablePlan) -> TableShares:
    """Return what a plan predicts of one table; reads of the memories are those of the profile."""
    placed = table.placement
    reads = {"hbm": placed.hbm.reads, "host": placed.host.reads}
    total = sum(reads.values())
    return TableShares(
        saved_reads=table.predicted.cut,
        hbm_reads=reads["hbm"] / total if total else None,
        uvm_reads=reads["host"] / total if total else None,
        sum_hit=_sum_hit(table),
    )


def _sum_hit(table: TablePlan) -> float | None:
    """Return the share of the rows read that are stored sums; None where their reads are unknown."""
    sums, reads_R = table.sums, table.sum_reads_R
    if sums is None or reads_R.size != sums.num_sums or not table.predicted.ids:
        return 0.0 if sums is None else None
    saved = int((reads_R * (np.diff(sums.set_indptr_R1) - 1)).sum())
    rows_read = table.predicted.ids - saved
    return float(reads_R.sum() / rows_read) if rows_read > 0 else None


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as TensorBoard takes them: numbers, truth values and texts."""
    return {
        name: value if isinstance(value, bool | int | float | str) else ", ".join(map(str, value))
        for name, value in options.items()
    }
