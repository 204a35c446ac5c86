"""The main job on one trace: profile, plan, train, swap, verify, measure.

Flow: Trace -> *run* -> DemoResult.  Held-out bags (the last fifth in seeded order) are seen by
nothing but the proof and the figures.
"""

import copy
import os
import platform
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grace_sharding.calibration import is_loaded, load_now
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec import api
from grace_torchrec.demo.batches import Batch, history_batches
from grace_torchrec.demo.result import DemoResult, Measured, TableResult
from grace_torchrec.demo.train import train
from grace_torchrec.errors import GraceError
from grace_torchrec.models.dlrm import history_dlrm
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.summarise import summarise
from grace_torchrec.plans.summary import PlanSummary
from grace_torchrec.timing import Samples, interleave
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

DIM = 128
BATCH = 512
TRAIN_STEPS = 20
ROUNDS = 9
LEAST_IDS_TIMED = 50_000  # held-out batches are repeated up to about so many ids a round


def run(
    trace: Trace,
    name: str,
    memory: MemoryModel,
    out_dir: Path,
    options: PlanOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> DemoResult:
    """Do the whole job and return what was found.

    Args:
        trace: The bags of one table.
        name: How to call it.
        memory: Target machine that is modelled.
        out_dir: Receives ``profile/``, ``plan/`` and ``tensorboard/``.
        options: Of the plan.
        progress: Called with a line before each step.

    Raises:
        GraceError: the trace is too small to hold bags out, its table is too large for this
            machine, or ``out_dir`` cannot be written.
    """
    _refuse_sparse_ids(trace, name)
    torch.manual_seed(0)
    split = split_bags(trace)
    progress("building a DLRM and training it for a few steps")
    model = history_dlrm(trace.num_items, DIM)
    losses = train(
        model,
        islice(history_batches(split.train, 256, hold_out=True), TRAIN_STEPS),
        _writable(out_dir) / "tensorboard",
    )
    progress("profiling the train bags")
    start = time.perf_counter()
    profile = api.profile((b.inputs for b in history_batches(split.train)), model)
    plan = api.plan(model, profile, memory, options, in_order=True, progress=progress)
    plan_s = time.perf_counter() - start
    profile.save(out_dir / "profile")
    plan.save(out_dir / "plan")
    plan = Plan.load(out_dir / "plan")
    progress("swapping and building the stored rows")
    stock = copy.deepcopy(model)
    start = time.perf_counter()
    swapped = api.accelerate_(model, plan)
    build_s = plan_s + time.perf_counter() - start
    progress("verifying on the held-out bags")
    held_out = list(history_batches(split.test, BATCH))
    verified = api.verify(model, [b.inputs for b in held_out]) if swapped.modules else None
    progress("measuring")
    measured = _measure(stock, model, plan, held_out) if swapped.modules else None
    summary = summarise(plan)
    tables = _tables(plan, summary, model, verified, held_out)
    return DemoResult(
        trace=name,
        num_items=trace.num_items,
        num_bags=trace.num_bags,
        pooling_factor=trace.pooling_factor,
        tables=tables,
        losses=(losses[0], losses[-1]),
        plan_s=plan_s,
        build_s=build_s,
        measured=measured,
        target=memory.machine,
        time_ratio=summary.time_ratio,
        profile_path=str(out_dir / "profile"),
        plan_path=str(out_dir / "plan"),
        equal=verified.equal if verified is not None else True,
        doubts={table.table: table.doubt for table in summary.doubted},
        ids_for_a_launch=summary.ids_for_a_launch,
    )


def _refuse_sparse_ids(trace: Trace, name: str) -> None:
    """Refuse a trace whose table, held twice, is more than the memory of this machine."""
    need = 2 * trace.num_items * DIM * 4
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > have:
        raise GraceError(
            f"{name}: ids up to {trace.num_items - 1:,} need a table of {trace.num_items:,} rows, "
            f"{need / 2**30:,.0f} GiB for the model and its copy; this machine has "
            f"{have / 2**30:,.0f} GiB. Number the ids without gaps, as profile --remap does for its traces"
        )


def _writable(out_dir: Path) -> Path:
    """Create the folder for results, or say in one line why not."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraceError(f"{out_dir}: cannot be written: {error.strerror}; give -o DIR") from error
    return out_dir


def _tables(
    plan: Plan,
    summary: PlanSummary,
    model: nn.Module,
    verified: Any,
    held_out: list[Batch],
) -> tuple[TableResult, ...]:
    """Join what the plan said, what was counted and what was proven, table by table."""
    from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection

    checks = {check.table: check for check in verified.tables} if verified is not None else {}
    ids = {
        feature: sum(int(b.bags[feature].values().numel()) for b in held_out)
        for feature in ("history", "candidate")
    }
    told = {table.table: table.verdict_told for table in summary.tables}
    rows = []
    for key, table in plan.tables.items():
        check = checks.get(key)
        asked = sum(ids[feature] for feature in table.spec.features)
        module = model.get_submodule(table.spec.module)
        held = 0
        if isinstance(module, GraceEmbeddingBagCollection):
            held = module.extra_bytes_of(table.spec.name)
        rows.append(
            TableResult(
                table=key,
                verdict=table.verdict,
                reason=table.reason,
                verdict_told=told[key],
                ids=check.ids if check else asked,
                rows_read=check.rows_read if check else asked,
                extra_rows=table.predicted.extra_rows,
                extra_bytes=held,
                max_abs_error=check.max_abs_error if check else 0.0,
                max_rel_error=check.max_rel_error if check else 0.0,
                picked=table.picked,
                in_line_cut=table.curve[-1].in_line_cut if table.curve else None,
                ahead_cut=table.curve[-1].ahead_cut if table.curve else None,
                sums_for_95pct=table.sums_for_95pct if table.num_sums else None,
            )
        )
    return tuple(rows)


def _measure(stock: nn.Module, ours: nn.Module, plan: Plan, held_out: list[Batch]) -> Measured:
    """Time collection and whole model, stock and swapped in turns, on the held-out bags."""
    load = load_now()
    ids = sum(int(b.bags.values().numel()) for b in held_out)
    batches = held_out * max(1, LEAST_IDS_TIMED // max(ids, 1))
    path = next(iter(plan.tables.values())).spec.module

    def lookups(model: nn.Module) -> Callable[[], None]:
        """Return a function that looks all batches up."""
        collection = model.get_submodule(path)
        return lambda: _forward(collection, [(b.bags,) for b in batches])

    def whole(model: nn.Module) -> Callable[[], None]:
        """Return a function that runs the model on all batches."""
        return lambda: _forward(model, [b.inputs for b in batches])

    times = interleave(
        {"stock": lookups(stock), "ours": lookups(ours), "m_stock": whole(stock), "m_ours": whole(ours)},
        rounds=ROUNDS,
    )  # fmt: skip
    lookup_ratio = times["stock"].over(times["ours"])
    model_ratio = times["m_stock"].over(times["m_ours"])
    cores = os.cpu_count() or 1
    return Measured(
        machine=f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        lookup="+".join(sorted({t.lookup for t in plan.tables.values()})),
        dim=DIM,
        batch=BATCH,
        stock_us=_us_a_batch(times["stock"], len(batches)),
        ours_us=_us_a_batch(times["ours"], len(batches)),
        latency_ratio=lookup_ratio.median,
        spread=(lookup_ratio.q20, lookup_ratio.q80),
        model_ratio=model_ratio.median,
        model_spread=(model_ratio.q20, model_ratio.q80),
        busy=times["stock"].is_unsteady or times["ours"].is_unsteady or is_loaded(load, cores),
        load=load,
        cores=cores,
    )


def _us_a_batch(samples: Samples, batches: int) -> float:
    """Return the median microseconds of one batch."""
    return samples.median / batches * 1e6


@torch.no_grad()
def _forward(module: nn.Module, inputs: list[tuple[Any, ...]]) -> None:
    """Run a module on all inputs."""
    for arguments in inputs:
        module(*arguments)
