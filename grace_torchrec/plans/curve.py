"""Curve: what sums save on validation bags at several budgets, rewritten in line and ahead.

Flow: choosing -> *CurvePoints* in the plan -> reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.numbers import is_count, is_number

BUDGET_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of the budget that was asked for


@dataclass(frozen=True)
class CurvePoint:
    """Cuts at one budget.

    Attributes:
        num_sums: The budget: most sums.
        in_line_cut: Share of the row reads that the best method saves whose code is rewritten while
            serving.
        ahead_cut: The same of all methods, bags rewritten before they are served.

    Raises:
        GraceError: a number is out of range, or ``ahead_cut`` is below ``in_line_cut``.
    """

    num_sums: int
    in_line_cut: float
    ahead_cut: float

    def __post_init__(self) -> None:
        """Check that the numbers can be cuts."""
        if not is_count(self.num_sums):
            raise GraceError(f"curve: num_sums must be an integer >= 0, got {self.num_sums!r}")
        check_cuts({"in_line_cut": self.in_line_cut, "ahead_cut": self.ahead_cut}, "curve")
        if self.ahead_cut < self.in_line_cut:
            raise GraceError("curve: ahead_cut is below in_line_cut, whose codes it may use too")


def check_cuts(cuts: Mapping[str, float], where: str) -> None:
    """Refuse what is no share of row reads.

    Raises:
        GraceError: names the entry.
    """
    for name, cut in cuts.items():
        if not isinstance(name, str) or not is_number(cut) or not 0 <= cut <= 1:
            raise GraceError(f"{where}: {name} must be a number in 0..1, got {cut!r}")


def check_rising(curve: Sequence[CurvePoint], most_sums: int, where: str) -> None:
    """Refuse points that do not stand in order of budget, or pass the greatest one.

    Raises:
        GraceError: a budget is below the one before, or above ``most_sums``.
    """
    budgets = [point.num_sums for point in curve]
    if budgets != sorted(budgets) or (budgets and budgets[-1] > most_sums):
        raise GraceError(
            f"{where}: budgets of the curve must rise to at most {most_sums:,}, got {budgets}"
        )
