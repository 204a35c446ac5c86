"""scaling: seconds and memory of grouping as tables and traces grow, on generated traces.

Flow: each size in a process of its own: generate -> count pairs -> merge; then the slopes over the
ids (none where the sizes hardly differ in them), and what ten times the bags change once pairs are
counted.  Nothing of a size is kept for the next.
The largest table is that of the paper's largest data set.
"""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import scaling_figure
from bench.measure import machine
from bench.memory import MB, forget_peak, peak_bytes
from bench.run import emit
from grace_torchrec.grouping import set_merge, subset_clusters
from grace_torchrec.grouping.grace_floor import grow_to_floor
from grace_torchrec.grouping.pair_counts import PairCounts, count_pairs
from grace_torchrec.grouping.paper_greedy import GrowthRule, grow_clusters
from grace_torchrec.grouping.partners import Partners, RankedBags, best_partners, ranked_bags
from grace_torchrec.timing import interleave
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace

SIZES = ("10000,10000", "100000,100000", "1000000,1000000", "2345346,1000000")
REPEATED = (20_000, 20_000)  # items and bags of the trace that is repeated
TIMES = 10
FLOOR = 4.0  # reads a row
LEAST_GROWTH = 1.5  # of the ids, from the smallest to the largest size, for a slope
SLOPES = ("generate_s", "count_s", "fit_s", "peak_mb")
FITS: dict[str, tuple[Callable[[int], int], Callable[[RankedBags, Partners, int], object]]] = {
    "set_merge": (set_merge.set_partners, set_merge.merge_sets),
    "subsets": (subset_clusters.cluster_partners, subset_clusters.rank_subsets),
}


def measure(num_items: int, num_users: int, method: str, seed: int) -> dict[str, Any]:
    """Generate and group one size in this process, which has compiled but done nothing else."""
    partners_of, fit = FITS[method]
    _group(generate(300, 50), partners_of, fit)
    forget_peak()
    start = time.perf_counter()
    trace = generate(num_items, num_users, seed)
    generated = time.perf_counter()
    counted, fitted = _group(trace, partners_of, fit)
    return {
        "items": num_items,
        "users": num_users,
        "ids": trace.num_ids,
        "generate_s": round(generated - start, 3),
        "count_s": round(counted - generated, 3),
        "fit_s": round(fitted - counted, 3),
        "peak_mb": round(peak_bytes() / MB),
    }


def _group(
    trace: Trace,
    partners_of: Callable[[int], int],
    fit: Callable[[RankedBags, Partners, int], object],
) -> tuple[float, float]:
    """Count pairs, then merge for one sum an item; return when each was done."""
    bags = ranked_bags(trace)
    partners = best_partners(bags, partners_of(bags.num_items), progress=_say)
    counted = time.perf_counter()
    fit(bags, partners, trace.num_items)
    return counted, time.perf_counter()


def _say(done: int, items: int) -> None:
    """Tell how far large tables are."""
    if items >= 1_000_000:
        click.echo(f"pairs of {done:,} of {items:,} items are counted", err=True)


def why_no_slopes(rows: list[dict[str, Any]]) -> str | None:
    """Return why sizes give no slopes, or None: as many ids would divide noise by nothing."""
    least, most = (pick(row["ids"] for row in rows) for pick in (min, max))
    if most >= LEAST_GROWTH * least:
        return None
    return (
        f"the sizes have {least:,} to {most:,} ids: a slope needs {LEAST_GROWTH} times as many in the "
        "largest; give more users"
    )


def slopes(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the exponent of each figure in the number of ids: 1 grows in proportion.

    None where :func:`why_no_slopes` says why.
    """
    if why_no_slopes(rows) is not None:
        return dict.fromkeys(SLOPES)
    ids = np.log([row["ids"] for row in rows])
    return {
        name: round(float(np.polyfit(ids, np.log([max(row[name], 1e-3) for row in rows]), 1)[0]), 3)
        for name in SLOPES
    }


def tenfold(rounds: int, seed: int) -> dict[str, Any]:
    """Time the methods that stand on the graph of pairs, on bags and on ten copies of each.

    The pair set is the same and every count is ten times as high, so is the floor.
    """
    once = generate(*REPEATED, seed)
    many = once.take(np.tile(np.arange(once.num_bags), TIMES))
    start = time.perf_counter()
    graph = count_pairs(once)
    first = time.perf_counter()
    larger = count_pairs(many)
    second = time.perf_counter()
    fits: dict[str, Callable[[PairCounts, float], object]] = {
        "grace": lambda pairs, _: grow_clusters(pairs, once.num_items, GrowthRule()),
        "grace_floor": lambda pairs, floor: grow_to_floor(pairs, once.num_items, floor),
    }
    result: dict[str, Any] = {
        "pairs": graph.num_edges,
        "pairs_of_ten_times_the_bags": larger.num_edges,
        "count_s": [round(first - start, 3), round(second - first, 3)],
    }
    for name, fit in fits.items():
        samples = interleave(
            {
                "once": lambda fit=fit: fit(graph, FLOOR),  # type: ignore[misc]
                "many": lambda fit=fit: fit(larger, FLOOR * TIMES),  # type: ignore[misc]
            },
            rounds,
        )
        seconds = [float(samples[which].values_R.min()) for which in ("once", "many")]
        result[name] = {"fit_s": seconds, "change": round(seconds[1] / seconds[0] - 1, 4)}
    return result


@click.command(name="scaling", help=__doc__)
@click.option(
    "--size",
    "sizes",
    metavar="ITEMS,USERS",
    multiple=True,
    default=SIZES,
    show_default=True,
    help="May be given several times.",
)
@click.option("--method", type=click.Choice(sorted(FITS)), default="set_merge", show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--figure", type=click.Path(path_type=Path), help="Draw the figures here, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    sizes: tuple[str, ...], method: str, rounds: int, seed: int, figure: Path | None, as_json: bool
) -> None:
    """Parse, measure, print."""
    if figure is not None:
        scaling_figure.check(figure)
    asked = [_pair(size) for size in sizes]
    context = multiprocessing.get_context("spawn")
    rows = []
    for items, users in asked:
        with context.Pool(1) as pool:
            rows.append(pool.apply(measure, (items, users, method, seed)))
    result = {
        "method": method,
        "sizes": rows,
        "slopes": slopes(rows),
        "no_slopes_because": why_no_slopes(rows),
    }
    result["ten_times_the_bags"] = tenfold(rounds, seed)
    if figure is not None:
        scaling_figure.draw(result, figure)
    emit({**result, "machine": machine()}, as_json, "scaling")


def _pair(size: str) -> tuple[int, int]:
    """Return items and users of ``--size``."""
    numbers = size.split(",")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--size {size}: two whole numbers expected, as 100000,100000")
    return int(numbers[0]), int(numbers[1])
