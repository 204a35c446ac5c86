"""Cost of lookups on a CPU: whether reading fewer rows pays for rewriting ids in line.

Flow: table, sums and held-out cut -> *in_line_on_cpu* -> lookup and reason in the plan; the bench
takes the same decision.  Derived: a model with a few constants, fitted to ``python -m bench lookup``
on one core of a Xeon (Emerald Rapids, 2.9 GHz, 300 MB of shared L3, 2 MB pages; docs/performance.md has
the figures).  A decision has to hold elsewhere, so a gain is taken only where the model sees a clear
one.
"""

import math
from dataclasses import dataclass

from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode

NEAR_BYTE_NS, FAR_BYTE_NS = 0.02, 0.068  # reading one byte of a row, from the cache and from memory
NEAR_BYTES, FAR_DOUBLINGS = 1 << 21, 6  # what a near cache holds; doublings until all is far
DOUBLING_NS = 4.0  # of each doubling of what is read at random, beyond what caches hold: page walks
CACHED_BYTES = 1 << 26
REWRITE_NS = 5.0  # per id: split and merge, codes in the cache
SUBSETS_NS = 6.0  # per id, over that: masks are decoded by a table
CODES_NS = 1.0  # per id, of each doubling of the items beyond what the cache holds codes of
CACHED_ITEMS = 1 << 17
LEAST_GAIN = 1.10  # stock time over ours that the model must see


@dataclass(frozen=True)
class InLine:
    """What the model says about one table.

    Attributes:
        stock_ns: Nanoseconds per id, plain rows read.
        ours_ns: Nanoseconds per id, ids rewritten in line.
        rewrite_ns: The part of ``ours_ns`` that rewriting takes.
    """

    stock_ns: float
    ours_ns: float
    rewrite_ns: float

    @property
    def pays(self) -> bool:
        """Whether ours is clearly faster."""
        return self.stock_ns >= LEAST_GAIN * self.ours_ns

    @property
    def reason(self) -> str:
        """The decision in a sentence."""
        saved = self.stock_ns - (self.ours_ns - self.rewrite_ns)
        costs = (
            f"rewriting in line is modelled at {self.rewrite_ns:.0f} ns an id on one CPU core, "
            f"reading fewer rows saves {saved:.0f} of the {self.stock_ns:.0f} ns that reading takes"
        )
        if self.pays:
            return costs
        return f"{costs}: leave it stock, or rewrite ahead (PlanOptions(rewriting='ahead'))"


def rewrite_ns_of(sums: StoredSums) -> float:
    """Return the nanoseconds per id of rewriting with the code of ``sums``, codes in the cache."""
    return REWRITE_NS + (SUBSETS_NS if isinstance(sums.code, SubsetCode) else 0.0)


def in_line_on_cpu(
    num_rows: int, row_bytes: int, num_sums: int, cut: float, rewrite_ns: float = REWRITE_NS
) -> InLine:
    """Model the time per id of a table on a CPU.

    Args:
        num_rows: Rows N of the table.
        row_bytes: Bytes of a row.
        num_sums: Stored sums.
        cut: Share of the row reads that the sums save.
        rewrite_ns: Nanoseconds per id of rewriting, codes in the cache (:func:`rewrite_ns_of`).

    >>> in_line_on_cpu(2_400_000, 512, 1_600_000, 0.4).pays
    True
    >>> in_line_on_cpu(10_000, 256, 10_000, 0.4).pays
    False
    """
    plain = num_rows * row_bytes
    rewrite_ns += CODES_NS * _doublings(num_rows, CACHED_ITEMS)
    ours = (1 - cut) * _row_ns(row_bytes, plain + num_sums * row_bytes) + rewrite_ns
    return InLine(_row_ns(row_bytes, plain), ours, rewrite_ns)


def _row_ns(row_bytes: int, footprint_bytes: int) -> float:
    """Nanoseconds to read and add one row out of so many bytes."""
    far = min(1.0, _doublings(footprint_bytes, NEAR_BYTES) / FAR_DOUBLINGS)
    byte_ns = NEAR_BYTE_NS + far * (FAR_BYTE_NS - NEAR_BYTE_NS)
    return byte_ns * row_bytes + DOUBLING_NS * _doublings(footprint_bytes, CACHED_BYTES)


def _doublings(size: int, free: int) -> float:
    """How often ``free`` doubles before it is ``size``; 0 where it is enough."""
    return max(0.0, math.log2(max(size, 1) / free))
