"""Drifting traces: one world whose communities exchange items from period to period.

Flow: *generate_periods* -> a Trace for each period, for drift benchmarks and tests.
Derived, not from the paper: all bags are drawn from one world of ``synthetic.generate``; before each
period but the first, a random part of the items change their places in it (communities and popularity
alike), so bags of a period are like those of any other but for the names of the items.
Shapes: N items, L ids.
"""

from typing import Any

import numpy as np

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.synthetic import generate
from grace_torchrec.traces.trace import Trace


def generate_periods(
    num_items: int,
    bags_each: int,
    periods: int,
    seed: int = 0,
    *,
    moved: float = 0.25,
    **world: Any,
) -> list[Trace]:
    """Generate the bags of several periods; equal arguments give equal traces.

    Args:
        num_items: Rows N of the table.
        bags_each: Bags of each period.
        periods: 1 or more.
        seed: Of all draws.
        moved: Share of the items that change places before each period, 0..1.
        world: Options of ``synthetic.generate``.

    Raises:
        GraceError: an argument is out of range.
    """
    if periods < 1 or not 0 <= moved <= 1:
        raise GraceError(f"generate: periods {periods} and moved {moved}; give 1 or more, and 0..1")
    whole = generate(num_items, bags_each * periods, seed, **world)
    rng = np.random.default_rng(seed + 1)
    name_N = np.arange(num_items)
    found = []
    for period in range(periods):
        if period:
            some = rng.choice(num_items, round(moved * num_items), replace=False)
            name_N[some] = name_N[rng.permutation(some)]
        part = whole.take(np.arange(period * bags_each, (period + 1) * bags_each))
        found.append(Trace(part.offsets_B1, name_N[part.ids_L], num_items))
    return found


def without_structure(trace: Trace, seed: int = 0) -> Trace:
    """Return bags of the same lengths whose ids are drawn from all items alike: no sum can gain."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, trace.num_items, trace.num_ids)
    return Trace(trace.offsets_B1, ids, trace.num_items)
