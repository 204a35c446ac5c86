"""PLAN on the command line: a plan folder, a sharding plan as JSON, or ``package.module:function``.

Flow: text -> *PlanSummary*; the folder of a plan of ours also gives the Plan itself.
"""

from pathlib import Path
from typing import Any

from grace_torchrec.arguments import told
from grace_torchrec.cli.function_argument import call_function, is_module, spelled
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.plan import Plan
from grace_torchrec.plans.stock_plan import read_stock_plan, stock_document, summarise_stock
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.summary import PlanSummary
from grace_torchrec.plans.table_spec import table_specs

HOW = "give a plan folder, a sharding plan as JSON, or package.module:function"


def load_summary(text: str) -> PlanSummary:
    """Return what the plan that PLAN names says.

    Args:
        text: A plan folder; a JSON file with a sharding plan of TorchRec; or
            ``package.module:function``, a function that returns a plan, a ShardingPlan, or
            (ShardingPlan, model): with the model, rows and bytes of every table are known.

    Raises:
        GraceError: there is no such plan, or it is damaged.
    """
    path = Path(text)
    if path.is_dir():
        return summarise(Plan.load(path), text)
    if path.is_file():
        return read_stock_plan(path)
    if ":" not in text:
        function = f" ({spelled(text)})" if is_module(text) else ""
        raise GraceError(f"PLAN {text!r}: no such folder or file; {HOW}{function}")
    return _summary_of(text, call_function("PLAN", text))


def _summary_of(text: str, found: Any) -> PlanSummary:
    """Tell what a function returned by what it has."""
    if isinstance(found, Plan):
        return summarise(found, text)
    plan, model = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(getattr(plan, "plan", None), dict):
        raise GraceError(f"PLAN {text!r}: returns {told(plan)}; return a ShardingPlan")
    specs = table_specs(model) if model is not None else ()
    return summarise_stock(stock_document(plan), text, specs)
