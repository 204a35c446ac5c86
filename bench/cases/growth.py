"""growth: the paper's clusters with one setting changed at a time, cut on held-out bags.

Flow: trace -> pairs of the train bags, counted once -> clusters for every size limit, tolerance and
place between the bounds, all others as the rule has them -> reads of the test bags.  Deterministic.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.inputs import load_trace
from bench.run import emit
from grace_kernels.reference import SLOT_BITS
from grace_torchrec.grouping.pair_counts import PairCounts, count_pairs
from grace_torchrec.grouping.paper_greedy import GrowthRule, grow_clusters
from grace_torchrec.sums.clusters import ClusterCode
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.sums.stored_sums import StoredSums
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

SWEEPS: dict[str, Sequence[float]] = {
    "size_limit": (2, 3, 4, 5, 6, 7, 8),
    "tolerance": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2),
    "interpolation": (0.0, 0.25, 0.5, 0.75, 1.0),
}


def growth(pairs: PairCounts, test: Trace, budget: int, rule: GrowthRule) -> dict[str, Any]:
    """Return the cut of every setting, for each of the three sweeps.

    Args:
        pairs: Of the train bags.
        test: Held-out bags.
        budget: Most sums.
        rule: What the other two settings are.
    """
    found: dict[str, Any] = {name: [] for name in SWEEPS}
    for name, values in SWEEPS.items():
        for value in values:
            changed: dict[str, Any] = {name: value}
            figures = _grown(pairs, test, budget, replace(rule, **changed))
            found[name].append({**changed, **figures})
    return found


def _grown(pairs: PairCounts, test: Trace, budget: int, rule: GrowthRule) -> dict[str, Any]:
    """Grow clusters by one rule; return their cut and their sizes."""
    sums = grow_clusters(pairs, budget, rule)
    return {
        "cut": count_reads(test, sums).cut,
        "sums": sums.num_sums,
        "mean_cluster_size": mean_cluster_size(sums),
    }


def mean_cluster_size(sums: StoredSums) -> float:
    """Return how many items a cluster has, 0 where there are none."""
    assert isinstance(sums.code, ClusterCode)
    clustered = sums.code.item_code_N[sums.code.item_code_N >= 0]
    return clustered.size / max(np.unique(clustered >> SLOT_BITS).size, 1)


@click.command(name="growth", help=__doc__)
@click.option("--trace", type=click.Path(path_type=Path), help="A trace (.npz), split here.")
@click.option("--generate", "sizes", metavar="ITEMS,USERS", help="A generated trace.")
@click.option("--budget", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Sums, in tables of N rows.")  # fmt: skip
@click.option("--size-limit", type=click.IntRange(2, 8), default=4, show_default=True, help="While another setting changes.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the split.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    trace: Path | None, sizes: str | None, budget: float, size_limit: int, seed: int, as_json: bool
) -> None:
    """Parse, measure, print."""
    split = split_bags(load_trace(trace, sizes, seed), seed)
    rows = math.floor(budget * split.test.num_items)
    found = growth(count_pairs(split.train), split.test, rows, GrowthRule(size_limit))
    given = {"budget": budget, "size_limit_of_others": size_limit, "seed": seed}
    emit({**given, **found}, as_json, "growth")
