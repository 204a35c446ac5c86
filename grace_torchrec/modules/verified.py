"""Verified: what a proof of a swap found, table by table.

Flow: verify -> *Verified* -> demo, callers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableCheck:
    """What was compared for one table.

    Attributes:
        table: Dotted path of the table.
        ids: Ids asked for.
        rows_read: Rows that are read for them, served as the batches were given: plain bags read plain
            rows of a table planned ``ahead``.
        max_abs_error: Largest absolute difference of any pooled value.
        max_rel_error: The same, over the sum of absolute values behind the pooled value.
        stale: Why its sums do not match its rows, None if they all do.
        equal: Whether all is within rounding; False where nothing was compared.
        non_finite: Pooled values that are NaN or infinite in the originals: these have no error.
        rewritten_rows_read: Rows that are read once plain bags are rewritten ahead, as ``verify`` does
            to prove the sums; None where it rewrote nothing for this table.
        unproven: Why nothing is known of a table that uses sums, None if it was compared.
    """

    table: str
    ids: int
    rows_read: int
    max_abs_error: float
    max_rel_error: float
    stale: str | None
    equal: bool
    non_finite: int = 0
    rewritten_rows_read: int | None = None
    unproven: str | None = None

    @property
    def cut(self) -> float:
        """Share of row reads that the sums save, served as the batches were given."""
        return self._cut_of(self.rows_read)

    @property
    def rewritten_cut(self) -> float | None:
        """Share that they save of plain bags rewritten ahead; None where nothing was rewritten here."""
        return None if self.rewritten_rows_read is None else self._cut_of(self.rewritten_rows_read)

    def _cut_of(self, rows_read: int) -> float:
        """Return the share of ids that need no row of their own."""
        return 1 - rows_read / self.ids if self.ids else 0.0


@dataclass(frozen=True)
class Verified:
    """The result of :func:`verify`.

    Attributes:
        tables: One entry for each table.
        batches: Batches that were compared.
        rewrote: Of these, plain ones that were rewritten here, because tables are planned ``ahead``.
    """

    tables: tuple[TableCheck, ...]
    batches: int
    rewrote: int = 0

    def __bool__(self) -> bool:
        """Be ``equal``: ``assert verify(..)`` asserts what it seems to."""
        return self.equal

    @property
    def note(self) -> str:
        """What the cuts do not say by themselves; mostly empty."""
        if not self.rewrote:
            return ""
        return (
            f"{self.rewrote:,} of {self.batches:,} batches came plain: tables planned ahead read plain "
            "rows for them, and save nothing; their sums were proven on bags rewritten here "
            "(grace_torchrec.rewrite does it while serving)"
        )

    @property
    def equal(self) -> bool:
        """Whether every table is equal within rounding, none is stale, and all that use sums were read."""
        return all(table.equal for table in self.tables)

    @property
    def max_abs_error(self) -> float:
        """Largest absolute difference of any table."""
        return max((table.max_abs_error for table in self.tables), default=0.0)

    @property
    def non_finite(self) -> int:
        """Pooled values of all tables that are NaN or infinite in the originals."""
        return sum(table.non_finite for table in self.tables)

    @property
    def max_rel_error(self) -> float:
        """Largest relative difference of any table."""
        return max((table.max_rel_error for table in self.tables), default=0.0)
