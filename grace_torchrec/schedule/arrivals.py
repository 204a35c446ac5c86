"""Arrivals: when the queries of an open loop come.

Flow: pattern + mean rate -> *times in microseconds* -> simulator.
Source: RecOS, IJCAI'25, section 4.3: pulse, bimodal and unimodal traffic.  Derived: their shapes; the
text gives only their names.  Within a shape, arrivals are a Poisson process.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError

Floats = npt.NDArray[np.float64]


def steady(share: Floats) -> Floats:
    """The same rate all the time."""
    return np.ones_like(share)


def pulse(share: Floats) -> Floats:
    """A tenth of the time at five times the rate of the rest."""
    return np.where((share > 0.45) & (share < 0.55), 5.0, 1.0)


def unimodal(share: Floats) -> Floats:
    """One smooth peak."""
    return np.asarray(0.2 + np.exp(-(((share - 0.5) / 0.15) ** 2)))


def bimodal(share: Floats) -> Floats:
    """Two smooth peaks, the second one higher."""
    first = 0.7 * np.exp(-(((share - 0.3) / 0.1) ** 2))
    return np.asarray(0.2 + first + np.exp(-(((share - 0.75) / 0.1) ** 2)))


PATTERNS: dict[str, Callable[[Floats], Floats]] = {
    "poisson": steady,
    "pulse": pulse,
    "unimodal": unimodal,
    "bimodal": bimodal,
}
STEPS = 1000


def arrivals(pattern: str, rate_per_s: float, count: int, seed: int = 0) -> list[float]:
    """Return ``count`` ascending times in microseconds with a mean rate.

    Args:
        pattern: One of ``PATTERNS``.
        rate_per_s: Mean queries a second.
        count: Queries.
        seed: Of the draws.

    Raises:
        GraceError: the pattern is unknown, or a number is not above zero.
    """
    if pattern not in PATTERNS or not rate_per_s > 0 or count < 1:
        raise GraceError(
            f"arrivals: {count} queries of {pattern!r} at {rate_per_s} a second; give numbers above "
            f"zero and one of {', '.join(PATTERNS)}"
        )
    edges = np.linspace(0, 1, STEPS + 1)
    weight = PATTERNS[pattern]((edges[1:] + edges[:-1]) / 2)
    at = np.concatenate([[0.0], np.cumsum(weight / weight.sum())])
    uniform = np.sort(np.random.default_rng(seed).random(count))
    share = np.interp(uniform, at, edges)
    return [float(t) for t in share * (count / rate_per_s * 1e6)]
