"""end_to_end: a whole DLRM on held-out bags, stock and swapped, and where the time goes.

Flow: trace -> plan -> two models over the same weights -> batches in turns, stock and ours.
The collection and the rewriting are timed by themselves; ``lookup`` and ``dense`` are what is
left of the collection and of the model without them: differences of medians, and the rewriting
runs on one thread, so the parts are exact only with ``--threads 1``.  ``lookup_share`` is the
collection's share of the stock model: a large table and several histories make a model
embedding-heavy, the size ``compute_heavy`` makes it compute-heavy.
Shapes: R rounds, K batches.
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bench.inputs import load_trace
from bench.measure import machine
from bench.run import emit
from grace_kernels.cpu import rewrite_counted
from grace_kernels.op_inputs import subset_tables
from grace_kernels.packed_codes import pack_codes
from grace_kernels.reference import RAISE
from grace_sharding.memory_tiers import MemoryModel
from grace_torchrec import api
from grace_torchrec.demo.batches import Batch, history_batches
from grace_torchrec.errors import GraceError
from grace_torchrec.models.dlrm import SIZES, history_dlrm
from grace_torchrec.plans.plan import PlanOptions
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

COLLECTION = "sparse_arch.embedding_bag_collection"
TABLE = f"{COLLECTION}.t_history"
MAX_ERROR = 1e-3  # of a logit, which sums products of pooled rows


@torch.no_grad()
def end_to_end(
    trace: Trace,
    size: str,
    *,
    dim: int,
    batch_size: int,
    rounds: int,
    memory: MemoryModel,
    histories: int = 1,
) -> dict[str, Any]:
    """Plan, swap and time a DLRM.

    Args:
        trace: Bags of the feature ``history``; the last fifth in seeded order is timed.
        size: A key of ``models.dlrm.SIZES``.
        dim: Embedding dimension.
        batch_size: Bags of a batch.
        rounds: Timed rounds over all held-out batches.
        memory: The machine the plan is made for.
        histories: Tables whose features hold the bags of the trace.
    """
    torch.manual_seed(0)
    split = split_bags(trace)
    stock = history_dlrm(trace.num_items, dim, size, histories).eval()
    ours = copy.deepcopy(stock)
    profile = api.profile((b.bags for b in history_batches(split.train, histories=histories)), ours)
    # least gain 0: a bench also shows tables where sums lose
    plan = api.plan(ours, profile, memory, PlanOptions(min_gain=0.0), in_order=True)
    table = plan.tables[TABLE]
    swapped = api.accelerate_(ours, plan)
    batches = list(history_batches(split.test, batch_size, histories=histories))
    result: dict[str, Any] = {"model": size, "dim": dim, "batch": batch_size, "batches": len(batches),
                              "verdict": table.verdict, "reason": table.reason}  # fmt: skip
    if not swapped.modules:
        return {**result, "machine": machine()}
    error = float(max((ours(*b.inputs) - stock(*b.inputs)).abs().max() for b in batches))
    if not error <= MAX_ERROR:
        raise GraceError(f"end_to_end: outputs differ by {error}; not timed")
    times = _times(_entrants(stock, ours, batches), len(batches), rounds)
    stock_parts = _parts(times["stock_model"], times["stock_collection"], None)
    our_parts = _parts(times["our_model"], times["our_collection"], times["rewrite"])
    return {
        **result,
        "cut": _cut(ours, batches),
        "lookup_share": stock_parts["lookup_ms"]
        / (stock_parts["lookup_ms"] + stock_parts["dense_ms"]),
        "lookup_share_spread": _ends(_by_round(times["stock_collection"] / times["stock_model"])),
        "stock": stock_parts,
        "ours": our_parts,
        "rewrite_over_lookup": our_parts["rewrite_ms"] / our_parts["lookup_ms"],
        "rewrite_over_lookup_spread": _ends(
            _by_round(times["rewrite"]) / _by_round(times["our_collection"] - times["rewrite"])
        ),
        "model_ratio": _ratio(times["stock_model"], times["our_model"]),
        "collection_ratio": _ratio(times["stock_collection"], times["our_collection"]),
        "max_abs_error": error,
        "threads": torch.get_num_threads(),
        "machine": machine(),
    }


def _entrants(
    stock: nn.Module, ours: nn.Module, batches: list[Batch]
) -> dict[str, Callable[[int], object]]:
    """Return what is timed, each called with the number of a batch."""
    stock_collection, our_collection = (m.get_submodule(COLLECTION) for m in (stock, ours))
    rewrites = [_rewrites(our_collection, batch) for batch in batches]
    return {
        "stock_model": lambda k: stock(*batches[k].inputs),
        "our_model": lambda k: ours(*batches[k].inputs),
        "stock_collection": lambda k: stock_collection(batches[k].bags),
        "our_collection": lambda k: our_collection(batches[k].bags),
        "rewrite": lambda k: [rewrite() for rewrite in rewrites[k]],
    }


def _rewrites(collection: nn.Module, batch: Batch) -> list[Callable[[], object]]:
    """Return the rewriting alone, on one thread, of each feature whose table has sums."""
    configs, codes = collection.embedding_bag_configs(), collection.rewriter.item_codes()
    subsets = subset_tables(*collection.rewriter.subsets(), len(codes))
    found: list[Callable[[], object]] = []
    for config, code, tables in zip(configs, codes, subsets, strict=True):
        bags = batch.bags[config.feature_names[0]]
        if code.numel():
            found.append(
                partial(
                    rewrite_counted, bags.values().numpy(), bags.offsets().numpy(), None,
                    pack_codes(code.numpy()), code.numel(), RAISE, tables,
                )
            )  # fmt: skip
    return found


def _times(
    entrants: dict[str, Callable[[int], object]], num_batches: int, rounds: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Return seconds ``[R, K]`` of each entrant; entrants take turns on every batch."""
    names = list(entrants)
    times = {name: np.zeros((rounds, num_batches)) for name in names}
    for turn in range(-1, rounds):  # turn -1 compiles and warms up
        for k in range(num_batches):
            shift = (turn + k) % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                entrants[name](k)
                times[name][turn, k] = time.perf_counter() - start
    return times


def _parts(
    model: npt.NDArray[np.float64],
    collection: npt.NDArray[np.float64],
    rewrite: npt.NDArray[np.float64] | None,
) -> dict[str, float]:
    """Return latency quantiles over the batches, in milliseconds, and its parts."""
    latency = np.median(model, axis=0) * 1e3
    whole, looked_up = float(np.median(model)) * 1e3, float(np.median(collection)) * 1e3
    rewritten = float(np.median(rewrite)) * 1e3 if rewrite is not None else 0.0
    return {
        "p50_ms": float(np.quantile(latency, 0.5)),
        "p95_ms": float(np.quantile(latency, 0.95)),
        "rewrite_ms": rewritten,
        "lookup_ms": looked_up - rewritten,
        "dense_ms": whole - looked_up,
    }


def _ratio(stock: npt.NDArray[np.float64], ours: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return stock over ours, round by round: median and quantiles."""
    ratios = stock.sum(1) / ours.sum(1)
    q20, median, q80 = np.quantile(ratios, (0.2, 0.5, 0.8))
    return {"median": float(median), "q20": float(q20), "q80": float(q80)}


def _by_round(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the median over the batches of each round."""
    medians: npt.NDArray[np.float64] = np.median(times, axis=1)
    return medians


def _ends(rounds: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return q20 and q80 of rounds."""
    q20, q80 = np.quantile(rounds, (0.2, 0.8))
    return {"q20": float(q20), "q80": float(q80)}


def _cut(ours: nn.Module, batches: list[Batch]) -> float:
    """Return the cut over all histories, counted by the module that serves."""
    collection = ours.get_submodule(COLLECTION)
    with collection.counting_reads() as reads:
        for batch in batches:
            collection(batch.bags)
    asked, read = reads[:-1].sum(0).tolist()  # the last table holds the candidates
    return 1 - read / asked


@click.command()
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Trace (.npz).")
@click.option("--generate", help="ITEMS,USERS of a generated trace instead.")
@click.option("--model", "size", type=click.Choice(sorted(SIZES)), default="embedding_heavy")
@click.option("--dim", type=click.IntRange(1), default=128, show_default=True)
@click.option("--histories", type=click.IntRange(1), default=1, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of torch and of our lookup.")
@click.option("--memory", default="a40", show_default=True, help="Machine the plan is made for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    trace_file: Path | None, generate: str | None, size: str, dim: int, histories: int, batch: int, rounds: int,
    threads: int | None, memory: str, as_json: bool,
) -> None:  # fmt: skip
    """Latency of a whole DLRM, stock and swapped, on held-out bags."""
    trace = load_trace(trace_file, generate, seed=0)
    if threads:
        torch.set_num_threads(threads)
    result = end_to_end(
        trace, size, dim=dim, batch_size=batch, rounds=rounds, memory=MemoryModel.named(memory),
        histories=histories,
    )  # fmt: skip
    emit(result, as_json, f"end to end, {size}")
