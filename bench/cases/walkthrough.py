"""walkthrough: the printed example of the GRACE paper, five users and six items, counted by us.

Flow: the trace of the example -> pairs, bounds, clusters (budget 10, interpolation .5, tolerance .4)
-> the numbers that the paper prints for it, and those that it leaves open.  Deterministic.
"""

from typing import Any

import click

from bench.run import emit
from grace_torchrec.grouping.bounds import exact_saving, group_bounds
from grace_torchrec.grouping.pair_counts import count_pairs
from grace_torchrec.grouping.paper_greedy import fit
from grace_torchrec.sums.clusters import num_sums
from grace_torchrec.sums.count_reads import count_reads
from grace_torchrec.traces.trace import Trace

BAGS = [[0, 1, 2, 3], [2, 4, 5], [0, 2, 3], [4, 5], [2, 3, 4]]
BUDGET, INTERPOLATION, TOLERANCE = 10, 0.5, 0.4
PRINTED_PAIRS = ((2, 3), (0, 2), (4, 5))
TRIPLE = [[0, 1]] * 5 + [[1, 2]] * 4 + [[0, 2]] * 3  # pairs 5, 4 and 3


def walkthrough() -> dict[str, Any]:
    """Return edge weights, the anchor, bounds, what is stored and what it saves."""
    trace = Trace.from_bags(BAGS)
    pairs, open_pairs = count_pairs(trace), count_pairs(Trace.from_bags(TRIPLE))
    sums = fit(trace, BUDGET, tolerance=TOLERANCE, interpolation=INTERPOLATION)
    reads, bounds = count_reads(trace, sums), group_bounds(pairs, [0, 2, 3])
    triple = group_bounds(open_pairs, [0, 1, 2])  # each time all three meet saves one read less
    return {
        "weights": {f"{a}-{b}": pairs.weight(a, b) for a, b in PRINTED_PAIRS},
        "edges": pairs.num_edges,
        "anchor": int(pairs.weighted_degrees().argmax()),
        "saving_of_0_2_3": {
            "lower": bounds.lower,
            "exact": exact_saving(trace, [0, 2, 3]),
            "upper": bounds.upper,
        },
        "triple": {"together_at_least": 0, "together_at_most": triple.upper - triple.lower},
        "sums": sums.num_sums,
        "rows_before": reads.rows_before,
        "rows_after": reads.rows_after,
        "sums_of_five_items": num_sums(5),
    }


@click.command(name="walkthrough", help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Count and print."""
    emit(walkthrough(), as_json, "walkthrough")
