"""Notes: what a reader must know before he trusts the figures of a load test.

Flow: result of the rounds -> *notes_of* -> lines under the tables, and in the JSON object.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grace_torchrec.loadtest.intervals import LEAST_ROUNDS

BEYOND = 10  # slower answers than a quantile, at least: fewer, and it is about single requests
KEPT_UP = 0.95  # share of the asked rate


def notes_of(found: Mapping[str, Any]) -> list[str]:
    """Return what weakens the figures of a result, a sentence each.

    Args:
        found: The JSON object of ``serve-bench`` without its notes.
    """
    cells = [
        (label, name, cell)
        for label, by_name in found["clients"].items()
        for name, cell in by_name.items()
    ]
    return [*_of_samples(found, cells), *_of_answers(found, cells), *_of_rates(found, cells)]


Cells = list[tuple[str, str, Mapping[str, Any]]]


def _of_samples(found: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    """Yield what is said from too little."""
    fewest = min(cell["answered"] for _, _, cell in cells)
    if fewest * 0.01 < BEYOND:
        yield (
            f"p99 of a round is told from {fewest} answers, {fewest // 100} of them slower; "
            f"give --requests {100 * BEYOND} or more"
        )
    if found["rounds"] < LEAST_ROUNDS:
        count = f"{found['rounds']} round" + ("" if found["rounds"] == 1 else "s")
        yield f"{count} cannot give a 95 % interval; give --rounds {LEAST_ROUNDS} or more"


def _of_answers(found: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    """Yield what was not answered rightly; figures are of right answers only."""
    for label, name, cell in cells:
        wrong = {word: cell[word] for word in ("rejected", "failed", "wrong", "lost") if cell[word]}
        if not wrong:
            continue
        told = ", ".join(f"{count} {word}" for word, count in wrong.items())
        line = f"{name}, {_load(found, label)}: {told}; the figures are of the other requests"
        if cell["wrong"]:
            line += (
                f"; answers differ from stock by up to {cell['largest_difference']:.2g}, "
                f"--tolerance {found['settings']['tolerance']:g} (rows in fewer bits need more)"
            )
        yield line


def _of_rates(found: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    """Yield who did not keep up with an open loop."""
    for _, name, cell in cells:
        if found["pattern"] and cell["throughput"] < KEPT_UP * found["rate"]:
            yield (
                f"{name} answered {cell['throughput']:.0f} of {found['rate']:g} requests a second: "
                "its latencies are those of a queue, and grow with the length of the test"
            )


def _load(found: Mapping[str, Any], label: str) -> str:
    """Return the name of a load."""
    if found["pattern"]:
        return f"{label} {found['rate']:g}/s"
    return f"{label} client" + ("" if label == "1" else "s")
