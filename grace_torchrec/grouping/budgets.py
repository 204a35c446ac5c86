"""Budgets: what every grouping method refuses alike."""

from grace_torchrec.errors import GraceError


def check_budget(budget: int) -> None:
    """Refuse budgets that are no number of rows.

    Raises:
        GraceError: ``budget`` is below 0.
    """
    if budget < 0:
        raise GraceError(f"grouping: budget {budget}, give the number of sums, 0 or more")
