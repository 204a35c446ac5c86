"""Prediction: what held-out bags read of one table by its plan, and the time that takes.

Flow: settling -> *Prediction* of a TablePlan -> views, demo, drift.
"""

from dataclasses import dataclass

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.numbers import is_count, is_number


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
