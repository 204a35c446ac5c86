"""table1: shares of small grids and of parallel operators, beside the paper's.

Flow: A30 cost files -> operators joined as a compiler would -> shares.
"""

from typing import Any

import numpy as np

from bench.scheduling.figure6 import workload
from grace_torchrec.models.bundled import MODELS

PRINTED_GRID, PRINTED_PARALLEL = 0.85, 0.78
SMALL_GRID = 28  # half of the A30's multiprocessors


def table1() -> dict[str, Any]:
    """Return the shares of small grids and of parallel operators, beside the paper's."""
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        found = workload(name)
        rows.append(
            {
                "model": name,
                "operators": len(found.graph.ops),
                "grid_at_most_28": found.stats.grid_share(SMALL_GRID),
                "parallel": found.graph.parallel_share(),
            }
        )
    means = {
        key: float(np.mean([row[key] for row in rows])) for key in ("grid_at_most_28", "parallel")
    }
    return {
        "rows": rows,
        "mean": means,
        "printed": {"grid_at_most_28": PRINTED_GRID, "parallel": PRINTED_PARALLEL},
        "source": "grids are estimated for the A30 at batch 16; the paper's models are in-house",
    }
