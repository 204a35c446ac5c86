"""A plan that stores given sums, all in one memory: cases decide what is stored, not the planner."""

import numpy as np

from grace_sharding.placement import Placement, TierUse
from grace_torchrec.plans.held import extra_of
from grace_torchrec.plans.plan import Prediction, TablePlan
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.sums.stored_sums import StoredSums


def plan_of(spec: TableSpec, sums: StoredSums) -> TablePlan:
    """Return a plan for ``spec`` with ``sums`` beside it in host memory, looked up by our op."""
    rows = spec.num_rows + sums.num_sums
    placed = rows * spec.row_bytes + sums.metadata_bytes
    placement = Placement(
        originals="host",
        num_hbm_sums=0,
        hot_items=np.zeros(0, np.int64),
        metadata="host",
        num_rows=spec.num_rows,
        num_sums=sums.num_sums,
        row_bytes=spec.row_bytes,
        hbm=TierUse(0, 0, 0),
        host=TierUse(rows, placed, 0),
    )
    extra = extra_of(sums, placement)
    return TablePlan(
        spec=spec,
        verdict="use",
        reason="given",
        method="grace",
        sums=sums,
        placement=placement,
        lookup="fused",
        lookup_reason="given",
        predicted=Prediction(
            0,
            0,
            0.0,
            extra.rows,
            extra.bytes,
            extra.metadata_bytes,
            extra.kept_bytes,
            0.0,
            0.0,
            0.0,
            0.0,
        ),
    )
