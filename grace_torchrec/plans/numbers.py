"""Numbers: what values that also come from files take for one."""

import sys


def is_number(value: object) -> bool:
    """Tell a finite int or float from anything else (bools are no numbers)."""
    limit = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def is_count(value: object) -> bool:
    """Tell an integer >= 0 from anything else."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
