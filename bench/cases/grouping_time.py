"""grouping_time: seconds and memory of grouping the train bags of a trace, pair counting included.

Flow: trace -> train bags -> every method in a process of its own, the methods in turn, several
rounds.  A process compiles first, on a small trace; its memory is what the fit adds at its peak.
``grace`` and ``grace_floor`` are one fit at their default settings; ``grace_chosen`` and
``grace_floor_chosen`` are what the published cuts are of: the size limit or the floor chosen on
validation bags, then the fit on all train bags.  The others choose nothing, but for ``auto``.
"""

import importlib.util
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.inputs import load_trace
from bench.measure import machine
from bench.memory import MB, forget_peak, peak_bytes
from bench.methods import METHODS
from bench.run import emit
from grace_torchrec.grouping import grace_floor, paper_greedy, set_merge, subset_clusters
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.timing import Samples
from grace_torchrec.traces.split import Split, split_bags
from grace_torchrec.traces.trace import Trace

Fit = Callable[[Trace, int, int], StoredSums]
FITS: dict[str, Fit] = {
    "grace": paper_greedy.fit,
    "grace_floor": grace_floor.fit,
    "subsets": subset_clusters.fit,
    "set_merge": set_merge.fit,
}
CHOSEN = {"grace_chosen": "grace", "grace_floor_chosen": "grace_floor"}  # name -> of bench.methods
RIVALS = ("merci",)  # bench/rivals/NAME.py with a fit of the same signature, where it is there


def methods() -> list[str]:
    """Return the names of all methods that can be timed."""
    rivals = [name for name in RIVALS if importlib.util.find_spec(f"bench.rivals.{name}")]
    return [*FITS, *CHOSEN, *rivals, "auto"]


def run_once(method: str, split: Split, budget: int, seed: int) -> None:
    """Fit one method; what chooses does so on the validation bags and refits."""
    if method in FITS:
        FITS[method](split.train, budget, seed)
    elif method in RIVALS:
        importlib.import_module(f"bench.rivals.{method}").fit(split.train, budget, seed)
    else:
        METHODS[CHOSEN.get(method, method)](split, budget, seed)


def measure(
    method: str, trace: Path | None, sizes: str | None, budget: float, seed: int
) -> tuple[float, float]:
    """Fit in this process, which has done nothing else; return seconds and MB at the peak."""
    split = split_bags(load_trace(trace, sizes, seed), seed)
    rows = int(budget * split.train.num_items)
    small = split_bags(Trace.from_bags([[0, 1, 2], [1, 0]] * 6))
    run_once(method, small, 4, seed)  # compiled, or read from the cache
    before = forget_peak()
    start = time.perf_counter()
    run_once(method, split, rows, seed)
    seconds = time.perf_counter() - start
    return seconds, max(peak_bytes() - before, 0) / MB


def grouping_time(
    trace: Path | None, sizes: str | None, names: list[str], budget: float, seed: int, rounds: int
) -> dict[str, Any]:
    """Time the methods in turn.

    Returns:
        method -> median_s, q20, q80, min_s, peak_mb (the greatest of all rounds), samples.
    """
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    context = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        for name in names:
            with context.Pool(1) as pool:
                samples[name].append(pool.apply(measure, (name, trace, sizes, budget, seed)))
    return {name: _summary(values) for name, values in samples.items()}


def faster_than_merci(timed: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of MERCI over those of each other method; empty where it was not timed.

    Returns:
        method -> median of the ratios of the rounds; ``METHOD_spread`` -> their q20 and q80.
    """
    if "merci" not in timed:
        return {}
    rounds = {name: Samples(np.array(times["samples"])) for name, times in timed.items()}
    merci = rounds.pop("merci")
    found: dict[str, Any] = {}
    for name, samples in rounds.items():
        ratios = merci.over(samples)
        found[name] = round(ratios.median, 2)
        found[f"{name}_spread"] = {"q20": round(ratios.q20, 2), "q80": round(ratios.q80, 2)}
    return found


def _summary(values: list[tuple[float, float]]) -> dict[str, Any]:
    """Return quantiles of the seconds and the greatest peak."""
    seconds = [round(value[0], 4) for value in values]
    q20, median, q80 = (float(q) for q in np.quantile(seconds, [0.2, 0.5, 0.8]))
    return {
        "median_s": median,
        "q20": q20,
        "q80": q80,
        "min_s": min(seconds),
        "peak_mb": round(max(value[1] for value in values), 1),
        "samples": seconds,
    }


@click.command(name="grouping_time", help=__doc__)
@click.option("--trace", type=click.Path(path_type=Path), help="A trace (.npz), split here.")
@click.option("--generate", "sizes", metavar="ITEMS,USERS", help="A generated trace.")
@click.option(
    "--method",
    "names",
    multiple=True,
    help="A method, may be given several times; default: all.",
)
@click.option("--budget", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    trace: Path | None,
    sizes: str | None,
    names: tuple[str, ...],
    budget: float,
    rounds: int,
    seed: int,
    as_json: bool,
) -> None:
    """Parse, measure, print."""
    unknown = [name for name in names if name not in methods()]
    if unknown:
        raise click.UsageError(f"--method {unknown[0]}: give one of {', '.join(methods())}")
    load_trace(trace, sizes, seed)  # a wrong call fails here, not in a child
    result = grouping_time(trace, sizes, list(names) or methods(), budget, seed, rounds)
    result["faster_than_merci"] = faster_than_merci(result)
    shown = result if as_json else {name: json.dumps(value) for name, value in result.items()}
    emit({**shown, "machine": machine()}, as_json, "grouping_time")
