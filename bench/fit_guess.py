"""Fitting the instant guess: measured cuts of each method -> its coefficients.

Flow: traces -> *measurements* (kept in ``data/guess.json``) -> ridge regression -> coefficients
of ``grace_torchrec.grouping.guess``, and how well they guess traces they were not fitted on.
Bags without structure stand beside the real traces, so that the guess for them is no sums.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.methods import METHODS
from grace_torchrec.grouping.guess import METHODS as GUESSED
from grace_torchrec.grouping.guess import MOST_CUT, Properties, features, measure_properties
from grace_torchrec.sums.count_reads import reads_of
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

KEPT = Path(__file__).parent / "data" / "guess.json"
SHARES = (1.0, 0.5, 0.25)
RIDGE = 0.03  # of each standardised coefficient, in units of the mean square
LEAST_CUT = 0.001  # a cut of 0 has no logit
FEWEST_TRACES = 3


@dataclass(frozen=True)
class Measurement:
    """Cuts of all methods on held-out bags, one trace and budget.

    Attributes:
        trace: Name of the trace.
        real: Whether people left it behind; the others are drawn without structure.
        properties: Of its train bags.
        budget_share: Sums over rows of the table.
        cuts: Method -> cut.
    """

    trace: str
    real: bool
    properties: Properties
    budget_share: float
    cuts: Mapping[str, float]


def measure(name: str, trace: Trace, real: bool) -> Iterator[Measurement]:
    """Fit every method for every budget on the train bags and count reads on the test bags."""
    split = split_bags(trace, 0)
    known = measure_properties(split.train)
    for share in SHARES:
        cuts = {}
        for method in GUESSED["ahead"]:
            stored = METHODS[method](split, int(share * trace.num_items), 0).stored
            bags = stored.rewrite(split.test)
            reads = reads_of(bags, trace.num_items, stored.num_sums, split.test.num_ids)
            cuts[method] = round(reads.cut, 4)
        yield Measurement(name, real, known, share, cuts)


def measure_folder(folder: Path) -> Iterator[Measurement]:
    """Measure every trace of a folder, then bags without structure."""
    for path in sorted(folder.glob("*.npz")):
        yield from measure(path.stem, read_npz(path), True)
    for bags, length in ((1500, 60), (6000, 15), (20_000, 8)):
        ids = np.random.default_rng(0).integers(0, 10_000, bags * length)
        drawn = Trace(np.arange(0, ids.size + 1, length), ids, 10_000)
        yield from measure(f"uniform_{length}", drawn, False)


def save(measured: Iterable[Measurement], path: Path = KEPT) -> None:
    """Write measurements, one a line."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in measured)
    path.write_text(f"[\n{lines}\n]\n", encoding="ascii")


def load(path: Path = KEPT) -> list[Measurement]:
    """Read measurements."""
    rows = json.loads(path.read_text(encoding="ascii"))
    return [Measurement(**{**row, "properties": Properties(**row["properties"])}) for row in rows]


def fit(measured: list[Measurement]) -> dict[str, tuple[float, ...]]:
    """Return the coefficients of each method: ridge on standardised features, four digits."""
    known = np.array([features(row.properties, row.budget_share) for row in measured])
    mean, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0  # what is the same everywhere explains nothing
    mean[0] = 0.0  # the constant stays what it is and is not shrunk
    scaled = (known - mean) / spread
    shrink = RIDGE * len(measured) * np.eye(spread.size)
    shrink[0, 0] = 0.0
    fitted = {}
    for method in GUESSED["ahead"]:
        cuts = np.array([max(row.cuts[method], LEAST_CUT) for row in measured])
        logits = np.log(cuts / (MOST_CUT - cuts))
        slopes = np.linalg.solve(scaled.T @ scaled + shrink, scaled.T @ logits) / spread
        slopes[0] -= float(slopes @ mean)
        fitted[method] = tuple(round(float(slope), 4) for slope in slopes)
    return fitted


def without(measured: list[Measurement], trace: str) -> list[Measurement]:
    """Return the measurements of all other traces."""
    return [row for row in measured if row.trace != trace]


def predicted(coefficients: Mapping[str, tuple[float, ...]], row: Measurement) -> dict[str, float]:
    """Return the cut that coefficients give each method of a measurement."""
    known: npt.NDArray[np.float64] = np.array(features(row.properties, row.budget_share))
    return {
        method: float(MOST_CUT / (1 + np.exp(-np.dot(slopes, known))))
        for method, slopes in coefficients.items()
    }
