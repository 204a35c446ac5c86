"""degree: the cut of the paper's clusters beside mean degree and density of the graph of pairs.

Flow: traces -> graph of all bags, cut on held-out bags -> a row a trace, and how far the two orders
agree (Spearman's rank correlation; 1: the denser the graph, the greater the cut).  Deterministic.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.methods import METHODS
from bench.run import emit
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.sums.count_reads import reads_of
from grace_torchrec.traces.readers.npz import read_npz
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

FEWEST = 3  # traces; two always agree or disagree


def of_trace(trace: Trace, budget_share: float, seed: int) -> dict[str, float]:
    """Return degree and density of the graph over requested items, and the cut on test bags."""
    edges = count_pairs(trace).num_edges
    requested = int(np.count_nonzero(trace.counts()))
    split = split_bags(trace, seed)
    stored = METHODS["grace"](split, math.floor(budget_share * trace.num_items), seed).stored
    bags = stored.rewrite(split.test)
    reads = reads_of(bags, trace.num_items, stored.num_sums, split.test.num_ids)
    return {
        "mean_degree": 2 * edges / requested,
        "density": 2 * edges / (requested * max(requested - 1, 1)),
        "cut": reads.cut,
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values keep their order.

    >>> rank_correlation([1, 2, 3], [10, 20, 30]), rank_correlation([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (first, second)]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 12)


def degree(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows and the two rank correlations with the cut."""
    columns = {name: [row[name] for row in rows] for name in ("mean_degree", "density", "cut")}
    return {
        "rows": rows,
        "rank_correlation": {
            name: rank_correlation(columns[name], columns["cut"])
            for name in ("mean_degree", "density")
        },
    }


@click.command(name="degree", help=__doc__)
@click.option("--trace", "traces", type=click.Path(path_type=Path), multiple=True, required=True, help="A trace (.npz); three or more.")  # fmt: skip
@click.option("--budget", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Sums, in tables of N rows.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the split.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(traces: tuple[Path, ...], budget: float, seed: int, as_json: bool) -> None:
    """Parse, measure, print."""
    if len(traces) < FEWEST:
        raise GraceError(f"degree: {len(traces)} traces, give {FEWEST} or more")
    rows = [{"trace": path.stem, **of_trace(read_npz(path), budget, seed)} for path in traces]
    emit({"budget": budget, "seed": seed, **degree(rows)}, as_json, "degree")
