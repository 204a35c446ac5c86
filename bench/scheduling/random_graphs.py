"""Random graphs like those of recommendation models: tables at the roots, layers, joins.

Flow: seed -> *OpGraph*, *OpStats*, *Machine* -> order.  Whole microseconds, so that an exact search
can judge them; grids from 4 to all of the 56 processors of the paper's GPU.
"""

import random

from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStat, OpStats
from grace_torchrec.schedule.schedule import Machine

PROCESSORS = 56
GRIDS = (4, 8, 16, 28, 28, 40, 56)


def random_problem(
    rng: random.Random, least_ops: int = 8, most_ops: int = 14
) -> tuple[OpGraph, OpStats, Machine]:
    """Return a graph, its costs and a machine of 2 to 4 streams and 56 processors.

    Args:
        rng: Source of the draws.
        least_ops: Operators at least.
        most_ops: Operators at most.
    """
    num_ops = rng.randint(least_ops, most_ops)
    roots = rng.randint(2, max(2, num_ops // 2))
    needs: list[set[int]] = [set() for _ in range(num_ops)]
    for op in range(roots, num_ops):
        near = range(max(0, op - 6), op)
        needs[op] = set(rng.sample(near, min(rng.randint(1, 3), len(near))))
    used = set().union(*needs)
    needs[-1] |= {op for op in range(num_ops - 1) if op not in used}
    graph = OpGraph.from_needs(needs)
    stats = [
        OpStat(float(rng.randint(2, 12)), grid=rng.choice(GRIDS), bytes_out=1024) for _ in needs
    ]
    machine = Machine(streams=rng.randint(2, 4), wait_us=0.0, capacity=PROCESSORS)
    return graph, OpStats.of(graph, stats, "json", "random"), machine
