"""Table plan: the decision for one table, and that its parts belong together.

Flow: settling, or a plan folder -> *TablePlan* -> Plan.
Shapes: N items, R stored rows (sums), H hot rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from grace_sharding.placement import Placement
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.curve import CurvePoint, check_cuts, check_rising
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.options import METHOD_CODES, MOST_BUDGET
from grace_torchrec.plans.prediction import Prediction
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.count_reads import few_take_most
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.stored_sums import StoredSums

Verdict = Literal["use", "leave stock"]
TableLookup = Literal["fused", "ahead", "stock"]


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
