"""Exported: a planned model as a torch.export program.

Flow: model + Plan -> copy -> swapped -> *exported*.  Only for models whose rows keep their type and
lie unsharded: table batches of fbgemm hold counters that torch.export cannot see through.  The
program calls operators of this package, so who runs it imports ``grace_kernels.ops``.
"""

import copy
from typing import Any

import torch
from torch import nn

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules.swap import accelerate_
from grace_torchrec.plans.files import check_plan_fits
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.serve.copies import put_everywhere, skeleton_of
from grace_torchrec.serve.row_types import row_types


def exported(
    model: nn.Module,
    plan: Plan,
    *,
    example: tuple[Any, ...],
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Return a swapped copy of a model as an exported program; the model is only read.

    Args:
        model: Stock or swapped.
        plan: Made for its tables.
        example: One batch: the model's positional arguments.
        dynamic_shapes: Of ``torch.export.export``; the number of ids is data to it.

    Raises:
        PlanMismatch: the plan was made for other tables.
        NotSupported: the plan asks for quantised rows, or torch.export cannot take the model.
    """
    for key, kind in row_types(plan, None).items():
        if kind != plan.tables[key].spec.dtype:
            raise NotSupported(
                f"export: table {key} is planned as {kind}: fbgemm's quantised table batches cannot "
                "be exported; use convert, or plan with row_dtype='table'"
            )
    skeleton, originals = skeleton_of(model)
    check_plan_fits(plan, table_specs(skeleton))
    for original in originals.values():
        skeleton = put_everywhere(skeleton, original, copy.deepcopy(original))
    skeleton.eval()
    accelerate_(skeleton, plan)
    try:
        with torch.no_grad():
            return torch.export.export(
                skeleton, example, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # whatever the model's own code raises on a symbol
        raise NotSupported(
            f"export: {type(model).__name__} cannot be exported: {error}; use convert"
        ) from error
