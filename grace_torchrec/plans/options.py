"""Options: what the caller of a plan asks for.

Flow: caller -> *PlanOptions* -> choosing, settling, modules; kept in the plan.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.candidates import METHODS
from grace_torchrec.grouping.choose import LEAST_GAIN
from grace_torchrec.grouping.paper_greedy import SIZE_LIMITS
from grace_torchrec.plans.numbers import is_count, is_number
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.sets import SetCode
from grace_torchrec.sums.subsets import SubsetCode

Objective = Literal["time", "cut"]
Lookup = Literal["auto", "fused", "stock"]
Rewriting = Literal["in_line", "ahead"]
BadIds = Literal["raise", "drop", "zero_row"]
RowDtype = Literal["table", "fp32", "fp16", "int8", "int4"]
MOST_BUDGET = 1000
METHOD_CODES: dict[str, type] = {
    "grace": ClusterCode,
    "grace_floor": ClusterCode,
    "subsets": SubsetCode,
    "set_merge": SetCode,
}


@dataclass(frozen=True)
class PlanOptions:
    """What the caller asks for; checked when it is made.

    Attributes:
        budget: Most sums a table may store, as a multiple of its rows.
        objective: ``time``: of the best candidate of each method the one with the least modelled
            time is taken; ``cut``: the one with the greatest cut.
        methods: Grouping methods to try; no sums at all is always tried too. Those that bags as
            they arrive cannot use are fitted for the curve of the plan only.
        size_limits: Largest cluster sizes to try with method ``grace``, each 2..8.
        min_gain: Least cut on held-out bags for a verdict "use" (derived, not from the paper).
        lookup: ``fused`` (one op over both tiers), ``stock`` (the inner collections) or ``auto``.
        row_dtype: Type that ``convert`` gives all rows; ``table`` keeps that of each table.  A
            swapped module keeps its own type, and rows are priced by it.
        rewriting: How bags will arrive: plain, to be rewritten inside forward (``in_line``), or
            rewritten already by ``grace_torchrec.rewrite`` (``ahead``).
        bad_ids: What serving does with an id outside the table: ``raise``, ``drop`` it, or read row 0
            of the table instead (``zero_row``; not a row of zeros).

    Raises:
        GraceError: a value is out of range; the message names it.
    """

    budget: float = 1.0
    objective: Objective = "time"
    methods: tuple[str, ...] = METHODS
    size_limits: tuple[int, ...] = tuple(SIZE_LIMITS)
    min_gain: float = LEAST_GAIN
    lookup: Lookup = "auto"
    row_dtype: RowDtype = "table"
    rewriting: Rewriting = "in_line"
    bad_ids: BadIds = "raise"

    def __post_init__(self) -> None:
        """Check every field once."""
        if not is_number(self.budget) or not 0 <= self.budget <= MOST_BUDGET:
            raise GraceError(
                f"options: budget must be 0..{MOST_BUDGET} times the rows, got {self.budget!r}"
            )
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
        choices = (
            ("objective", Objective),
            ("lookup", Lookup),
            ("bad_ids", BadIds),
            ("row_dtype", RowDtype),
            ("rewriting", Rewriting),
        )
        for name, known in ((name, get_args(kind)) for name, kind in choices):
            if getattr(self, name) not in known:
                raise GraceError(
                    f"options: {name} must be one of {known}, got {getattr(self, name)!r}"
                )
        if self.methods and not self.usable_methods:
            raise GraceError(
                f"options: methods {self.methods!r} need bags that arrive rewritten: give "
                "rewriting='ahead' and lookup 'auto'"
            )

    @property
    def usable_methods(self) -> tuple[str, ...]:
        """The methods whose code bags can use as they arrive: what may be picked and served."""
        sets = self.rewriting == "ahead" and self.lookup == "auto"
        return tuple(name for name in self.methods if sets or METHOD_CODES[name] is not SetCode)
