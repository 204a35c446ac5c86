"""Timing: entrants take turns A B A B, so that a slow moment of the machine hits all alike.

A figure of a busy machine is no figure: who prints times says the load and the spread with them.

Flow: the demo and the benches -> *Samples* of each entrant -> medians, quantiles, ratios.
A ratio is taken round by round, between neighbours in time, and then summarised.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace_sharding import calibration
from grace_torchrec.errors import GraceError


@dataclass(frozen=True, eq=False)
class Samples:
    """Wall times of one entrant, or ratios of two, in the order of the rounds.

    Attributes:
        values_R: float64, one for each round; seconds, or a plain number for a ratio.
    """

    values_R: npt.NDArray[np.float64]

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.values_R))

    @property
    def q20(self) -> float:
        """The value that 20 % of the rounds stay under."""
        return float(np.quantile(self.values_R, 0.2))

    @property
    def q80(self) -> float:
        """The value that 80 % of the rounds stay under."""
        return float(np.quantile(self.values_R, 0.8))

    @property
    def is_unsteady(self) -> bool:
        """Whether the rounds differ so much that the machine was busy with something else."""
        return calibration.is_unsteady(self.values_R)

    def over(self, other: "Samples") -> "Samples":
        """Return the ratio to ``other`` of each round.

        Raises:
            GraceError: the two were not measured in the same rounds.
        """
        if self.values_R.size != other.values_R.size:
            raise GraceError(
                f"ratio of {self.values_R.size} to {other.values_R.size} rounds; measure both together"
            )
        return Samples(self.values_R / other.values_R)

    def summary(self) -> dict[str, float]:
        """Return median, q20 and q80."""
        return {"median": self.median, "q20": self.q20, "q80": self.q80}


def interleave(
    entrants: Mapping[str, Callable[[], object]], rounds: int = 9, warmup: int = 1
) -> dict[str, Samples]:
    """Time every entrant once a round; each round starts with another entrant.

    Args:
        entrants: Name -> what is timed.
        rounds: Timed rounds.
        warmup: Rounds before them that are not counted (compilation, caches).

    Raises:
        GraceError: no entrant or no round.
    """
    if not entrants or rounds < 1:
        raise GraceError(
            f"measure: {len(entrants)} entrants over {rounds} rounds; give one or more of both"
        )
    names = list(entrants)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            entrants[name]()
            seconds = time.perf_counter() - start
            if turn >= 0:
                times[name].append(seconds)
    return {name: Samples(np.array(values)) for name, values in times.items()}
