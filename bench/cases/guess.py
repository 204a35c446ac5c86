"""guess: how good the instant guess is on traces it was not fitted on, and its coefficients.

Flow: measured cuts, kept or measured anew -> leave one trace out: fit on all others, guess it ->
regret (cut of the best method minus cut of the guessed one) and error of the expected cut.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.fit_guess import (
    FEWEST_TRACES,
    Measurement,
    fit,
    load,
    measure_folder,
    predicted,
    save,
    without,
)
from bench.run import emit
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.guess import METHODS

FIXED = {"in_line": "subsets", "ahead": "set_merge"}  # what one would take without looking


def judge(measured: list[Measurement]) -> dict[str, Any]:
    """Leave every real trace out once.

    Returns:
        ``regret`` {in_line, ahead} of the guess and of always taking one method, each mean and
        greatest over traces and budgets; ``error`` of the expected cut of the guessed method.

    Raises:
        GraceError: there are too few traces to leave one out.
    """
    real = sorted({row.trace for row in measured if row.real})
    if len(real) < FEWEST_TRACES:
        raise GraceError(f"guess: {len(real)} traces, give {FEWEST_TRACES} or more")
    result: dict[str, Any] = {"traces": len(real)}
    guesses = [
        (row, predicted(fit(without(measured, row.trace)), row)) for row in measured if row.real
    ]
    for allow, methods in METHODS.items():
        picked = [max(methods, key=cuts.__getitem__) for _, cuts in guesses]
        best = [max(row.cuts[name] for name in methods) for row, _ in guesses]
        held = [row.cuts[name] for (row, _), name in zip(guesses, picked, strict=True)]
        fixed = [row.cuts[FIXED[allow]] for row, _ in guesses]
        expected = [cuts[name] for (_, cuts), name in zip(guesses, picked, strict=True)]
        result[allow] = {
            "regret": _summary(np.subtract(best, held)),
            f"regret_of_always_{FIXED[allow]}": _summary(np.subtract(best, fixed)),
            "error_of_expected_cut": _summary(np.abs(np.subtract(expected, held))),
        }
    return result


def _summary(values: Any) -> dict[str, float]:
    """Return mean and greatest value."""
    return {"mean": round(float(values.mean()), 4), "most": round(float(values.max()), 4)}


@click.command(name="guess", help=__doc__)
@click.option(
    "--measure",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Measure the traces (.npz) of this folder and keep the figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(folder: Path | None, as_json: bool) -> None:
    """Parse, measure, print."""
    if folder is not None:
        save(measure_folder(folder))
    measured = load()
    emit({**judge(measured), "coefficients": fit(measured)}, as_json, "guess")
