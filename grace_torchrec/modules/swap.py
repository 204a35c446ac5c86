"""The swap: stock collections out, GraceEmbeddingBagCollections in; and back.

Flow: model + Plan -> *accelerate_* -> the same model, swapped -> *restore_* undoes it.
Modules are matched by exact type, instance by instance; nothing is patched by name.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from grace_sharding.placement import Placement, TierUse
from grace_torchrec.errors import GraceError, NotSupported, PlanMismatch
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.refusals import all_places, no_collection, refused_modules
from grace_torchrec.plans.files import check_plan_fits
from grace_torchrec.plans.plan import Plan, Prediction, TablePlan
from grace_torchrec.plans.table_spec import stock_collections, table_specs

Filter = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class Swapped:
    """What :func:`accelerate_` did.

    Attributes:
        modules: Dotted path -> names of the tables that use sums there; a module that the model
            holds at several places stays one module, and each of its paths is listed.
        refused: Dotted path of a module or table -> why it was left alone.
        originals: Dotted path -> the stock module, for :func:`restore_`.
        marks: Dotted path -> ``swap_mark`` of the module that stands there now, by which it is known
            without being kept.  A copy of the model has marks of its own, for ``originals`` are not
            its; one that is copied or pickled together with this record has those of the copied record.
    """

    modules: dict[str, tuple[str, ...]]
    refused: dict[str, str]
    originals: dict[str, EmbeddingBagCollection] = field(repr=False)
    marks: dict[str, object] = field(default_factory=dict, repr=False, compare=False)


def accelerate_(
    model: nn.Module,
    plan: Plan,
    *,
    filter_fn: Filter | None = None,
    tables: Collection[str] | None = None,
    strict: bool = False,
) -> Swapped:
    """Swap the collections the plan helps; arguments and errors: ``grace_torchrec.api``."""
    found = dict(stock_collections(model))
    refused = refused_modules(model)
    if not found:
        raise no_collection("accelerate_", model)
    if "" in found:
        raise NotSupported(
            "model is itself an EmbeddingBagCollection: wrap it, e.g. nn.Sequential(model)"
        )
    if any(module.training for module in found.values()):
        raise NotSupported(
            "model is in training mode: call model.eval() first (sums are inference only)"
        )
    _check_not_swapped(model, plan)
    check_plan_fits(plan, table_specs(model))
    _check_table_names(found, tables)

    swaps: dict[str, GraceEmbeddingBagCollection] = {}
    originals: dict[str, EmbeddingBagCollection] = {}
    used: dict[str, tuple[str, ...]] = {}
    places = list(all_places(model))
    for path, collection in found.items():
        if filter_fn is not None and not filter_fn(collection, path):
            refused[path] = "filter_fn left it out"
            continue
        plans = {t.spec.name: t for t in plan.tables.values() if t.spec.module == path}
        chosen = {name: _as_chosen(p, tables) for name, p in plans.items()}
        refused |= {p.spec.key: p.reason for p in chosen.values() if p.sums is None}
        names = tuple(name for name, p in chosen.items() if p.sums is not None)
        if names:
            swap = GraceEmbeddingBagCollection(
                collection, chosen, bad_ids=plan.options.bad_ids, strict=strict, path=path
            )
            everywhere = [place for place, module in places if module is collection]
            used |= dict.fromkeys(everywhere, names)
            swaps |= dict.fromkeys(everywhere, swap)
            originals |= dict.fromkeys(everywhere, collection)
    if swaps:
        for module in set(swaps.values()):
            module.swap_mark = object()
            module.warm_up(torch.get_num_threads())
    for path, module in swaps.items():
        _put(model, path, module)
    return Swapped(used, refused, originals, {path: m.swap_mark for path, m in swaps.items()})


def _check_not_swapped(model: nn.Module, plan: Plan) -> None:
    """Refuse a plan one of whose tables is in a swapped module already.

    Raises:
        PlanMismatch: names the module.
    """
    planned = {table.spec.module for table in plan.tables.values()}
    for path, module in model.named_modules():
        if path in planned and isinstance(module, GraceEmbeddingBagCollection):
            raise PlanMismatch(f"{path}: is already swapped; restore_ it first")


def restore_(model: nn.Module, swapped: Swapped) -> None:
    """Put the stock modules back; arguments and errors: ``grace_torchrec.api``."""
    present: dict[str, GraceEmbeddingBagCollection] = {}
    for path in swapped.originals:
        try:
            module = model.get_submodule(path)
        except AttributeError:
            module = None
        if not isinstance(module, GraceEmbeddingBagCollection):
            raise PlanMismatch(f"{path}: holds no swapped module; was the model already restored?")
        if module.is_sharded:
            raise NotSupported(f"{path}: is sharded; restore_ before DistributedModelParallel")
        if module.swap_mark is not swapped.marks.get(path):
            raise PlanMismatch(
                f"{path}: was not swapped by this accelerate_ call (a copy of the model?); restore_ the "
                "model it was called with, and copy that, or copy model and record together: "
                "copy.deepcopy((model, swapped))"
            )
        present[path] = module
    for path, original in swapped.originals.items():
        for table, config in enumerate(original.embedding_bag_configs()):
            original.embedding_bags[config.name].weight = present[path].weight(table)
        original.train(present[path].training)
        _put(model, path, original)


def rebuild_sums_(model: nn.Module, progress: Callable[[str], None] | None = None) -> int:
    """Build every stored row anew; arguments and errors: ``grace_torchrec.api``."""
    swapped = [m for m in model.modules() if isinstance(m, GraceEmbeddingBagCollection)]
    if not swapped:
        raise GraceError(
            "rebuild_sums_: model holds no swapped module; call accelerate_ first (where it was called: its "
            "plan leaves every table stock, swapped.refused says why)"
        )
    return sum(module.rebuild_sums(progress) for module in swapped)


def _check_table_names(
    found: dict[str, EmbeddingBagCollection], tables: Collection[str] | None
) -> None:
    """Refuse names that no collection has."""
    if isinstance(tables, str):
        raise GraceError(f"accelerate_: tables is text; give names, as [{tables!r}]")
    known = {c.name for module in found.values() for c in module.embedding_bag_configs()}
    unknown = sorted(set(tables or ()) - known)
    if unknown:
        raise GraceError(f"accelerate_: model has no table {unknown[0]!r}; it has {sorted(known)}")


def _as_chosen(plan: TablePlan, tables: Collection[str] | None) -> TablePlan:
    """Return the plan, without its sums where the caller did not choose the table."""
    if tables is None or plan.spec.name in tables or plan.sums is None:
        return plan
    return without_sums(plan, "not among the tables chosen")


def without_sums(plan: TablePlan, reason: str) -> TablePlan:
    """Return the same plan with its originals where they are and nothing stored."""
    row_bytes, rows = plan.spec.row_bytes, plan.spec.num_rows
    reads = plan.predicted.ids
    whole, nothing = TierUse(rows, rows * row_bytes, reads), TierUse(0, 0, 0)
    in_hbm = plan.placement.originals == "hbm"
    placement = Placement(
        originals=plan.placement.originals,
        num_hbm_sums=0,
        hot_items=np.zeros(0, np.int64),
        metadata=plan.placement.metadata,
        num_rows=rows,
        num_sums=0,
        row_bytes=row_bytes,
        hbm=whole if in_hbm else nothing,
        host=nothing if in_hbm else whole,
    )
    before = plan.predicted
    stock_s = before.stock_s
    predicted = Prediction(
        ids=reads, rows_read=reads, cut=0.0, extra_rows=0, extra_bytes=0, metadata_bytes=0, kept_bytes=0,
        hbm_s=stock_s if in_hbm else 0.0, host_s=0.0 if in_hbm else stock_s,
        stock_hbm_s=before.stock_hbm_s, stock_host_s=before.stock_host_s,
    )  # fmt: skip
    return replace(
        plan, verdict="leave stock", reason=reason, method="none", parameter="", sums=None,
        sum_reads_R=np.zeros(0, np.int64),
        placement=placement, predicted=predicted,
        lookup="fused" if plan.lookup == "ahead" else plan.lookup,  # there is nothing to rewrite
    )  # fmt: skip


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Set the submodule at a dotted path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
