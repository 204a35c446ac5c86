"""Priorities: which ready operator is launched first.

Flow: OpGraph + OpStats -> *one number an operator*, larger first -> list schedule or launcher.
Source: RecOS, IJCAI'25, section 3.2 (DepValue) and Opara's launch order.  The equation of DepValue
is not in the text we hold; only "in-degree" is: both readings here are derived, and both agree
with every case of the paper's figure 3.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from grace_torchrec.errors import GraceError
from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats

Floats = npt.NDArray[np.float64]


def dep_local(graph: OpGraph, stats: OpStats) -> Floats:
    """DepValue, derived: the sum, over those that need an operator, of 1 / their in-degree.

    Args:
        graph: Operators.
        stats: Not used.
    """
    value = np.zeros(len(graph.ops))
    for op in graph.ops:
        for need in op.needs:
            value[need] += 1 / len(op.needs)
    return value


def dep_recursive(graph: OpGraph, stats: OpStats) -> Floats:
    """DepValue, derived, recursive: the sum of (1 + DepValue of the needer) / its in-degree.

    Args:
        graph: Operators.
        stats: Not used.
    """
    value = np.zeros(len(graph.ops))
    for place in reversed(range(len(graph.ops))):
        needs = graph.ops[place].needs
        for need in needs:
            value[need] += (1 + value[place]) / len(needs)
    return value


def time_to_end(graph: OpGraph, stats: OpStats) -> Floats:
    """The b-level: microseconds of the heaviest path from an operator to the end.

    Args:
        graph: Operators.
        stats: Their times.
    """
    times = stats.times_us
    level = np.array(times, np.float64)
    for place in reversed(range(len(graph.ops))):
        for need in graph.ops[place].needs:
            level[need] = max(level[need], times[need] + level[place])
    return level


def topological(graph: OpGraph, stats: OpStats) -> Floats:
    """The order in which the model calls its operators.

    Args:
        graph: Operators.
        stats: Not used.
    """
    return np.arange(len(graph.ops), 0, -1, dtype=np.float64)


def opara(graph: OpGraph, stats: OpStats) -> Floats:
    """Opara's: the operator that takes the least of the GPU first.

    Args:
        graph: Operators.
        stats: Their grids.
    """
    return 1.0 / np.array(stats.grids, np.float64)


Policy = Callable[[OpGraph, OpStats], Floats]
PRIORITIES: dict[str, Policy] = {
    "dep_local": dep_local,
    "dep_recursive": dep_recursive,
    "time_to_end": time_to_end,
    "topological": topological,
    "opara": opara,
}


def priority(name: str, graph: OpGraph, stats: OpStats) -> Floats:
    """Return the numbers of a named priority.

    Raises:
        GraceError: no priority has this name.
    """
    if name not in PRIORITIES:
        raise GraceError(f"priority {name!r}: not one of {', '.join(PRIORITIES)}; choose one")
    return PRIORITIES[name](graph, stats)


def perturbed(key_n: Floats, starts: int, spread: float, seed: int) -> Floats:
    """Return ``starts`` rows: the keys themselves, then keys times 1 +- ``spread``.

    Args:
        key_n: A priority.
        starts: Rows K.
        spread: Largest change, as a share.
        seed: Of the changes.
    """
    rng = np.random.default_rng(seed)
    factors = rng.uniform(1 - spread, 1 + spread, (starts, key_n.size))
    factors[:1] = 1.0
    return factors * key_n


def orders_of(names: Sequence[str], graph: OpGraph, stats: OpStats) -> Floats:
    """Return the named priorities, one a row."""
    return np.stack([priority(name, graph, stats) for name in names])
