"""Cost of lookups on a CPU: whether reading fewer rows pays for rewriting ids.

Flow: table, sums, held-out cut and the CPU's costs -> *price_on_cpu* -> lookup and reason in the plan;
the bench takes the same decision.  Derived: a model with a few constants a CPU.  CPUs differ too much for
one set: of a table that one reads 1.3 times as fast with sums, another reads 0.85 times as fast.  ``grace-torchrec
calibrate`` measures the constants of a machine (``calibration/lookup_costs.py``).  Where they are not known, a plan
takes the CPU, of those that were measured, on which the sums gain least.  And a gain is taken only
where the model sees a clear one.
"""

import math
from dataclasses import dataclass

from grace_sharding.lookup_costs import LookupCosts
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.sums.subsets import SubsetCode

# ``python -m bench lookup`` on one core, 2 MB pages (docs/performance.md has the figures).
KNOWN = {
    "a Xeon (Emerald Rapids)": LookupCosts(
        near_byte_ns=0.02, far_byte_ns=0.068, doubling_ns=4.0, rewrite_ns=5.0, codes_ns=1.0
    ),
    "an EPYC (Zen 5)": LookupCosts(
        near_byte_ns=0.008, far_byte_ns=0.030, doubling_ns=0.25, rewrite_ns=6.8, codes_ns=0.75
    ),
}
NEAR_BYTES, FAR_DOUBLINGS = 1 << 21, 6  # what a near cache holds; doublings until all is far
CACHED_BYTES = 1 << 26  # beyond, rows cost page walks
CACHED_ITEMS = 1 << 17  # beyond, the cache does not hold all codes
SUBSETS_NS = 6.0  # per id, over rewriting clusters: masks are decoded by a table
# Stock time over ours that the model must see: what a call costs is not in it, and small batches lose a fifth by it.
LEAST_GAIN = 1.20


@dataclass(frozen=True)
class CpuPrice:
    """What the model says about one table.

    Attributes:
        stock_ns: Nanoseconds per id, plain rows read.
        ours_ns: Nanoseconds per id, ids rewritten in line.
        rewrite_ns: The part of ``ours_ns`` that rewriting takes.
        cpu: Name of the CPU whose costs these are; empty where the plan's memory model has its own.
    """

    stock_ns: float
    ours_ns: float
    rewrite_ns: float
    cpu: str = ""

    def share(self, ahead: bool) -> float:
        """Return the time of ours over that of stock; ``ahead``: bags arrive rewritten."""
        return (self.ours_ns - ahead * self.rewrite_ns) / self.stock_ns

    @property
    def gain(self) -> float:
        """Time of stock over that of ours, rewritten in line."""
        return 1 / self.share(ahead=False)

    @property
    def pays(self) -> bool:
        """Whether ours is clearly faster, rewritten in line."""
        return self.gain >= LEAST_GAIN

    @property
    def reason(self) -> str:
        """The decision about rewriting in line, in a sentence."""
        saved = self.stock_ns - (self.ours_ns - self.rewrite_ns)
        core = (
            f"one core of {self.cpu}" if self.cpu else "one core, by the costs in the memory model"
        )
        costs = (
            f"rewriting in line is modelled at {self.rewrite_ns:.0f} ns an id on {core}, "
            f"reading fewer rows saves {saved:.0f} of the {self.stock_ns:.0f} ns that reading takes"
        )
        if self.pays:
            return costs
        leave = "leave it stock, or rewrite ahead (PlanOptions(rewriting='ahead'))"
        if not self.cpu:
            return f"{costs}: {leave}"
        return f"{costs}: {leave}; other CPUs differ: grace-torchrec calibrate measures yours"


def price_on_cpu(
    num_rows: int,
    row_bytes: int,
    sums: StoredSums,
    cut: float,
    costs: LookupCosts | None = None,
    ahead: bool = False,
) -> CpuPrice:
    """Model the time per id of a table on a CPU.

    Args:
        num_rows: Rows N of the table.
        row_bytes: Bytes of a row.
        sums: Its stored sums.
        cut: Share of the row reads that the sums save.
        costs: Of the CPU; None: not known, the known CPU on which the sums gain least.
        ahead: Whether bags arrive rewritten: another CPU may be the one on which they gain least.
    """
    plain = num_rows * row_bytes
    with_sums = plain + sums.num_sums * row_bytes
    subsets_ns = SUBSETS_NS if isinstance(sums.code, SubsetCode) else 0.0
    prices = []
    for cpu, cost in (KNOWN if costs is None else {"": costs}).items():
        codes_ns = cost.codes_ns * doublings(num_rows, CACHED_ITEMS)
        rewrite_ns = cost.rewrite_ns + codes_ns + subsets_ns
        ours_ns = (1 - cut) * row_ns(row_bytes, with_sums, cost) + rewrite_ns
        prices.append(CpuPrice(row_ns(row_bytes, plain, cost), ours_ns, rewrite_ns, cpu))
    return max(prices, key=lambda price: price.share(ahead))


def row_ns(row_bytes: int, footprint_bytes: int, costs: LookupCosts) -> float:
    """Return the nanoseconds to read and add one row out of so many bytes."""
    far = min(1.0, doublings(footprint_bytes, NEAR_BYTES) / FAR_DOUBLINGS)
    byte_ns = costs.near_byte_ns + far * (costs.far_byte_ns - costs.near_byte_ns)
    return byte_ns * row_bytes + costs.doubling_ns * doublings(footprint_bytes, CACHED_BYTES)


def doublings(size: int, free: int) -> float:
    """Return how often ``free`` doubles before it is ``size``; 0 where it is enough."""
    return max(0.0, math.log2(max(size, 1) / free))
