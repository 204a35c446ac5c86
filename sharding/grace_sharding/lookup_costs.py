"""Lookup costs: what one core of a CPU takes to read a row and to rewrite an id.

Flow: calibration, or a file of it -> *LookupCosts* in a memory model -> plans for that CPU.
Derived: GRACE pools on a GPU and rewrites beside it; on a CPU one core does both, so whether a sum
pays depends on how dear a row is *there*.
"""

import math
from dataclasses import dataclass, fields

from grace_sharding.errors import GraceError


class LookupCostsError(GraceError):
    """A cost makes no sense."""


@dataclass(frozen=True)
class LookupCosts:
    """Nanoseconds of one core, bags of some sixty ids.

    Attributes:
        near_byte_ns: Reading one byte of a row that a near cache holds.
        far_byte_ns: Reading one byte of a row far beyond what caches hold.
        doubling_ns: A row more for each doubling of what is read at random, beyond what caches hold:
            finding where its page lies in memory.
        rewrite_ns: Rewriting one id in line, codes in the cache.
        codes_ns: An id more for each doubling of the items beyond what the cache holds codes of.

    Raises:
        LookupCostsError: one is no finite number, is negative, or is zero where none can be.
    """

    near_byte_ns: float
    far_byte_ns: float
    doubling_ns: float
    rewrite_ns: float
    codes_ns: float

    def __post_init__(self) -> None:
        """Check every number once."""
        for field in fields(self):
            value = getattr(self, field.name)
            above = ">= 0" if field.name in ("doubling_ns", "codes_ns") else "> 0"
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not (good and 0 <= value < math.inf and (value > 0 or above == ">= 0")):
                raise LookupCostsError(
                    f"{field.name} must be a finite number {above}, got {value!r}"
                )
