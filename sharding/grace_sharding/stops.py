"""Stops: how far HBM is filled with what was picked, for the least time of held-out bags.

Flow: rungs of what was picked, best first -> *Curve* -> the best stop -> joint choice.  Source: GRACE,
ASPLOS'23 (filling stops where both memories are busy alike).  Derived: time is the mean over resampled
groups of held-out bags, half as many as there are: what host memory reads too much costs 1 / beta of
what it reads too little, so filling stops short of the balance by what bags differ.
Shapes: K rungs of what was picked, G groups, W resamplings, S stops.
"""

from dataclasses import dataclass

import numpy as np

from grace_sharding.variants import GROUPS, Floats, Variant

RESAMPLINGS = 48
LAST_STEPS = 8  # in which each rung beside the best stop is taken
LEAST_STOP_GAIN = 0.01  # of the time: for less, HBM is filled


@dataclass(frozen=True, eq=False)
class Stop:
    """How far HBM is filled.

    Attributes:
        time_s: Mean time of the resampled bags, scaled to all of them.
        hbm_bytes: Bytes of HBM that are filled.
        worth: The least worth of a rung that is still taken.
    """

    time_s: float
    hbm_bytes: float
    worth: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Reads of resampled bags, by how many rungs are in HBM.

    Attributes:
        bytes_K1: Bytes of HBM after each rung.
        hbm_K1W: Bytes read from HBM then.
        host_W: Bytes read from host memory in any case.
        hbm_rate: Bytes a second.
        host_rate: The same of host memory.
    """

    bytes_K1: Floats
    hbm_K1W: Floats
    host_W: Floats
    hbm_rate: float
    host_rate: float

    def best(self, most_bytes: int, exact: bool) -> tuple[float, float]:
        """Return the bytes at which the mean time is least, and that time.

        Filling stops early only where that saves LEAST_STOP_GAIN of the time.

        Args:
            most_bytes: Bytes of HBM.
            exact: Look inside the rungs around the best stop too.
        """
        whole = int(np.searchsorted(self.bytes_K1, most_bytes, side="right"))
        last = min(float(most_bytes), float(self.bytes_K1[-1]))
        times = self._times(self.hbm_K1W[:whole])
        full_s = float(self._times(self._at(np.array([last])))[0])
        at = int(times.argmin())
        stops, times = np.append(self.bytes_K1[:whole], last), np.append(times, full_s)
        if exact:
            around = self.bytes_K1[max(0, at - 1) : at + 2]
            inside = np.linspace(around[0], min(float(around[-1]), last), 2 * LAST_STEPS)
            stops = np.append(stops, inside)
            times = np.append(times, self._times(self._at(inside)))
        best = int(times.argmin())
        if full_s * (1 - LEAST_STOP_GAIN) <= times[best]:
            return last, full_s
        return float(stops[best]), float(times[best])

    def _at(self, stops: Floats) -> Floats:
        """Bytes read from HBM at any stops, in a straight line inside a rung."""
        before = np.searchsorted(self.bytes_K1, stops, side="right") - 1
        after = np.minimum(before + 1, self.bytes_K1.size - 1)
        width = np.maximum(self.bytes_K1[after] - self.bytes_K1[before], 1e-30)
        part = ((stops - self.bytes_K1[before]) / width)[:, None]
        return self.hbm_K1W[before] + part * (self.hbm_K1W[after] - self.hbm_K1W[before])

    def _times(self, hbm_SW: Floats) -> Floats:
        """Mean time of the resamplings."""
        total_W = self.host_W + self.hbm_K1W[-1]
        slower = total_W - hbm_SW
        slower /= self.host_rate
        np.maximum(slower, hbm_SW / self.hbm_rate, out=slower)
        return np.asarray(slower.mean(axis=1), np.float64)


def drawn(variant: Variant, draws_WG: Floats) -> tuple[Floats, Floats, Floats]:
    """Resample the reads of a variant.

    Args:
        variant: Its reads, by group.
        draws_WG: Of :func:`draws`.

    Returns:
        Bytes read from HBM in any case ``[W]``, of its rungs ``[K, W]``, from host memory ``[W]``.
    """
    return (
        draws_WG @ variant.hbm_read_G,
        np.ascontiguousarray((draws_WG @ variant.rung_read_GK).T),
        draws_WG @ variant.host_read_G,
    )


def draws() -> Floats:
    """Return the resamplings, float64 ``[W, G]``: how often each group is in, times two.

    Half as many groups are drawn as there are.
    """
    rng = np.random.default_rng(0)
    drawn_WG = rng.multinomial(GROUPS // 2, np.full(GROUPS, 1 / GROUPS), RESAMPLINGS)
    return drawn_WG.astype(np.float64) * 2
