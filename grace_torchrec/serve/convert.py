"""Convert: a model and its plan become a model to serve.

Flow: model + Plan -> copied -> tables in table batches, packed, sums formed from the float rows ->
sharded where asked -> rows assigned -> traced -> scheduled -> *Served*.  The model is only read.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, get_args

import torch
from torch import fx, nn
from torchrec.fx import Tracer
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from grace_torchrec.arguments import expect, expect_model, expect_number
from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.modules.refusals import refused_modules
from grace_torchrec.plans.files import check_plan_fits
from grace_torchrec.plans.plan import Plan, TablePlan
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.schedule.kept import KeptSchedule, schedule_again
from grace_torchrec.schedule.op_stats import OpStats
from grace_torchrec.schedule.same_values import same_values
from grace_torchrec.schedule.schedule import Machine
from grace_torchrec.schedule.stream_pass import Scheduled, schedule_
from grace_torchrec.schedule.touched import cloned
from grace_torchrec.schedule.tracing import LEAVES, trace
from grace_torchrec.serve.copies import put_everywhere, skeleton_of
from grace_torchrec.serve.masters import Masters, grouped_items
from grace_torchrec.serve.row_types import row_types
from grace_torchrec.serve.served import Conversion, Served, ServedModel, Target
from grace_torchrec.serve.sharding import Spread, check_spread, devices_told, shard_
from grace_torchrec.serve.slots import Slots
from grace_torchrec.serve.table_batch_collection import TABLE_BATCH, TableBatchCollection
from grace_torchrec.serve.torchscript import scripted

_log = logging.getLogger(__name__)


def convert(
    model: nn.Module,
    plan: Plan,
    *,
    example: tuple[Any, ...],
    streams: int | None = None,
    target: Target = "module",
    row_dtype: str | None = None,
    sharding: Spread | None = None,
    slots: int = 2,
    deltas: bool = True,
    strict: bool = False,
) -> Served:
    """Turn a model into one that serves; the model itself is only read.

    Args:
        model: Stock, or swapped by ``accelerate_``; its rows are the float master.
        plan: Made for the tables of this model.
        example: One batch: the model's positional arguments.
        streams: Streams at most for the operators of one query (target ``module``); default: 4.  Who
            asks for several and gets one, as the model cannot be traced, is warned.
        target: ``module`` (scheduled, takes deltas) or ``torchscript`` (stock operators only; takes
            the batches that ``script_batch`` makes).
        row_dtype: ``table``, ``fp32``, ``fp16``, ``int8`` or ``int4``; default: the plan's option.
        sharding: Spread the tables over devices and kernels of fbgemm; default: one table batch for
            each memory.
        slots: 2: a delta never makes a reader wait, and from the first delta on the rows are held
            twice.  1: held once, and readers wait while a delta is written.
        deltas: Keep the float rows of grouped items, which deltas need.
        strict: Refuse batches whose weights would be ignored (default: warn once).

    Returns:
        The served model; its version is 0.

    Raises:
        PlanMismatch: the plan was made for other tables; names the table and both values.
        NotSupported: the model holds no collection or cannot be copied; a row type cannot hold a
            table; or the target does not go with the rest.
        GraceError: an argument is unknown, or the example is not a batch of this model.
    """
    begin = time.perf_counter()
    if target not in get_args(Target):
        raise GraceError(f"convert: target must be one of {get_args(Target)}, got {target!r}")
    if slots not in (1, 2):
        raise GraceError(f"convert: slots must be 1 or 2, got {slots!r}")
    if not isinstance(example, tuple):
        raise GraceError(
            f"convert: example must be a tuple of the model's arguments, got {type(example).__name__}"
        )
    most_streams = Machine.streams if streams is None else streams
    expect_model("convert", model)
    expect("convert", "plan", plan, Plan)
    expect("convert", "deltas", deltas, bool)
    expect("convert", "strict", strict, bool)
    expect_number("convert", "streams", most_streams, 1, whole=True)
    skeleton, originals = skeleton_of(model)
    check_plan_fits(plan, table_specs(skeleton))
    types = row_types(plan, row_dtype)
    if sharding is not None:
        check_spread(sharding, {t.spec.name: types[key] for key, t in plan.tables.items()})
        sharding = sharding.as_planned(plan.memory.uvm)
    scripting = target == "torchscript"
    conversion = Conversion(
        target, types, most_streams, 1 if scripting else slots, plan.options.bad_ids, strict
    )
    # Shards have memory of their own: what they are made from needs none.
    device = "cpu" if sharding is None else "meta"
    apart = sharding is not None and bool(sharding.row_wise)
    eager, collections = with_table_batches(
        skeleton, originals, plan, conversion, device, types_apart=apart
    )
    weights = {path: weights_of(original) for path, original in originals.items()}
    for path, collection in collections.items():
        if sharding is not None:
            shard_(collection, sharding)
        collection.fill_from(weights[path])
    masters = None
    if deltas and not scripting:
        masters = _masters(collections, weights)
    refused = refused_modules_of(model)
    if scripting:
        module = scripted(eager, collections, example)
        model_slot = Slots(ServedModel(module, eager, collections))
        served = Served(model_slot, plan, conversion, None, None, refused)
    else:
        served = assemble(eager, collections, plan, conversion, example, masters, refused)
        found = served.scheduled
        if streams is not None and streams > 1 and found is not None and found.schedule is None:
            _log.warning(
                "convert: %d streams were asked for, it serves on one: %s", streams, found.reason
            )
    served.build_s = time.perf_counter() - begin
    return served


def with_table_batches(
    skeleton: nn.Module,
    originals: Mapping[str, EmbeddingBagCollection],
    plan: Plan,
    conversion: Conversion,
    device: str = "cpu",
    *,
    types_apart: bool = False,
) -> tuple[nn.Module, dict[str, TableBatchCollection]]:
    """Put the served form of every stock collection in its place, without rows yet.

    Returns:
        The model, and the collections by the first path of each.
    """
    collections: dict[str, TableBatchCollection] = {}
    for path, original in originals.items():
        plans: dict[str, TablePlan] = {}
        types: dict[str, str] = {}
        for key, table in plan.tables.items():
            if table.spec.module == path:
                plans[table.spec.name], types[table.spec.name] = table, conversion.row_types[key]
        collections[path] = TableBatchCollection(
            original, plans, types, bad_ids=conversion.bad_ids, strict=conversion.strict,
            path=path, device=device, types_apart=types_apart,
        )  # fmt: skip
        skeleton = put_everywhere(skeleton, original, collections[path])
    return skeleton.eval(), collections


def assemble(
    eager: nn.Module,
    collections: Mapping[str, TableBatchCollection],
    plan: Plan,
    conversion: Conversion,
    example: tuple[Any, ...],
    masters: Masters | None,
    refused: Mapping[str, str],
    stats: OpStats | None = None,
    kept: KeptSchedule | None = None,
    version: int = 0,
) -> Served:
    """Trace and schedule a model whose tables hold their rows.

    Args:
        eager: The model.
        collections: Its collections by path.
        plan: What it was converted by.
        conversion: How.
        example: One batch.
        masters: Float rows for deltas, or None.
        refused: Dotted path -> why a module was left as it was.
        stats: Costs of its operators; default: they are profiled.
        kept: Their schedule; default: it is searched.
        version: Of its rows.
    """
    for collection in collections.values():
        collection.lay_out()
        collection.warm_up(torch.get_num_threads())
        collection.splitter.is_counting = False  # the runs below are ours
    scheduled = schedule(eager, collections, conversion.streams, example, stats, kept)
    for collection in collections.values():
        collection.splitter.is_counting = True
    model = ServedModel(scheduled.module, eager, collections)
    copy = ServedModel.with_own_rows if conversion.num_slots == 2 else None
    return Served(Slots(model, copy, version), plan, conversion, scheduled, masters, refused)


def schedule(
    eager: nn.Module,
    collections: Mapping[str, TableBatchCollection],
    streams: int,
    example: tuple[Any, ...],
    stats: OpStats | None = None,
    kept: KeptSchedule | None = None,
) -> Scheduled:
    """Trace a model, with table batches as leaves, and schedule its operators.

    A collection that our lookup serves is one operator; else rewriting and the table batch of each
    memory are operators of their own.

    Raises:
        GraceError: the example is not a batch of this model.
        PlanMismatch: costs and schedule are those of a model that computes something else.
    """
    try:
        whole = all(collection.is_whole for collection in collections.values())
        with torch.no_grad(), nullcontext() if whole else devices_told():
            # Collections note the order of their features now, shards their devices.
            wanted = eager(*cloned(example))
    except Exception as error:  # whatever the model's own code raises
        told = str(error) if isinstance(error, GraceError) else f"{type(error).__name__}: {error}"
        raise GraceError(f"convert: the model refuses the example: {told}") from error
    try:
        traced = _traced(eager, all(c.is_direct for c in collections.values()))
        if stats is None:
            _check_trace(traced, wanted, example)
    except NotSupported as error:
        return Scheduled(eager, False, str(error))
    if stats is not None and kept is not None:
        return schedule_again(traced, example, Machine(streams), stats, kept)
    return schedule_(traced, example, streams, stats=stats)


def _traced(eager: nn.Module, direct: bool) -> fx.GraphModule:
    """Trace a model; collections that our lookup serves stay one operator.

    Raises:
        NotSupported: torch.fx cannot trace it.
    """
    if direct:
        return trace(eager, (*LEAVES, TableBatchCollection.__name__))
    try:
        graph = _TableBatchTracer().trace(eager)
    except Exception as error:  # whatever the model's own code raises on a proxy
        raise NotSupported(f"{type(eager).__name__}: cannot be traced: {error}") from error
    return fx.GraphModule(eager, graph, type(eager).__name__)


class _TableBatchTracer(Tracer):  # type: ignore[misc]  # untyped
    """TorchRec's tracer; rewriting, table batches and collections of our lookup stay one node each."""

    def __init__(self) -> None:
        super().__init__(leaf_modules=["EmbeddingCollection", TABLE_BATCH, "Splitter"])

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a call of ``m`` stays one node."""
        # Beside packed collections, one without sums may be read by our lookup.
        if isinstance(m, TableBatchCollection) and m.is_direct:
            return True
        return bool(super().is_leaf_module(m, module_qualified_name))


def _check_trace(traced: fx.GraphModule, wanted: Any, example: tuple[Any, ...]) -> None:
    """Refuse a trace that computes something else on the example.

    Raises:
        NotSupported: it does: the model's code depends on data.
    """
    with torch.no_grad():
        found = traced(*cloned(example))
    if not same_values(wanted, found):
        raise NotSupported(
            f"{type(traced).__name__}: its trace computes other values on the example (code "
            "that depends on data); it keeps running on a single stream"
        )


def weights_of(original: EmbeddingBagCollection) -> dict[str, torch.Tensor]:
    """Return table name -> its float rows."""
    return {
        config.name: original.embedding_bags[config.name].weight
        for config in original.embedding_bag_configs()
    }


def refused_modules_of(model: nn.Module) -> dict[str, str]:
    """Return what stays as it is; a swapped collection does not."""
    found = refused_modules(model)
    return {path: reason for path, reason in found.items() if "already swapped" not in reason}


def _masters(
    collections: Mapping[str, TableBatchCollection],
    weights: Mapping[str, Mapping[str, torch.Tensor]],
) -> Masters:
    """Keep the float rows of grouped items."""
    grouped: dict[str, torch.Tensor] = {}
    rows: dict[str, torch.Tensor] = {}
    for path, collection in collections.items():
        for table, plan in enumerate(collection.table_plans):
            grouped[plan.spec.key] = grouped_items(collection.sets, table)
            rows[plan.spec.key] = weights[path][plan.spec.name]
    return Masters.of(grouped, rows)
