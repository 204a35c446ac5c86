"""lookup: nanoseconds per requested id, stock and ours, from the raw ids that users have.

Flow: bags with a known share of saved reads (or a trace's held-out bags with our clusters) ->
every entrant is checked against ``F.embedding_bag`` -> entrants take turns in random order.
Ratios are stock over ours of the same round.  ``plain_gather`` is our gather without any sums:
what it gains is never the sums' doing.  ``fused`` is our op alone, ``in_line`` the module that calls it: the
ratio of ``fused`` to ``stock_ebc``, a module, is that of ``in_line``.  ``tbe`` is fbgemm's table batch for
training, ``tbe_inference`` the one for inference, both float32.  ``fused_ordered`` gets each bag in order of cluster code.
``fused_other`` is ``fused`` with rows prefetched in the way that this CPU does not use: while ids are rewritten, or by
who sums them.
``ahead`` gets bags that were rewritten before: rewriting stands beside it.  ``forward`` is what
the planner's model chooses.  ``subset_fused`` and ``subset_rewrite`` read the same stored rows through a
subset code (clusters joined to eight items that store what their parts stored: the same cut by
construction); ``subset_ns_per_id`` has their medians {fused, rewrite}, ``subset_over_cluster`` their time
over that of ClusterCode in the same round {fused, rewrite}.  Without ``--rows`` a table has four times the bytes of the last cache.
Shapes: N rows, D dimension, B bags of a batch, P ids per bag, R rounds.
"""

import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bench.inputs import load_trace
from bench.lookup_entrants import (
    Entrant,
    chosen_mode,
    make_entrants,
    make_int8,
    make_rewriting,
    make_table,
)
from bench.lookup_grid import Cell, run_grid
from bench.lookup_side import hidden, jit_seconds
from bench.measure import last_cache_bytes, machine
from bench.methods import picked
from bench.run import emit
from grace_sharding.lookup_costs import LookupCosts
from grace_sharding.memory_files import memory_named
from grace_torchrec.calibration.grouped_bags import GroupedBags, grouped_bags
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping.choose import refit
from grace_torchrec.modules.rewrite_ahead import rewrite_one
from grace_torchrec.timing import Samples
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

REWRITTEN_ITEMS = 1_000_000  # rewriting alone is timed over so many items, whatever the rows
LEAST_ROWS, CACHES = 1_000_000, 4  # rows of a table: beyond the last cache, several times
BYTES_BETWEEN_VISITS = 1 << 30  # rows read before a batch comes back: far beyond the L3 cache
MOST_BATCHES, LEAST_BATCHES = 64, 4
RELATIVE, INT8_RELATIVE = 1e-5, 0.02  # sums of int8 rows are rounded to int8 again
# entrant -> the stock entrants it is compared with
OPS = ("embedding_bag", "tbe", "tbe_inference")
RIVALS = {
    "ahead": (*OPS, "stock_ebc"),
    "in_line": (*OPS, "stock_ebc"),
    "fused": (*OPS, "stock_ebc"),
    "fused_ordered": ("embedding_bag",),
    "fused_other": ("fused",),
    "subset_fused": ("embedding_bag",),
    "plain_gather": ("embedding_bag",),
    "int8_ahead": ("int8_stock",),
    "forward": ("stock_ebc",),
}
MODULES = {("fused", "stock_ebc"): "in_line"}  # a module is compared with a module


@torch.no_grad()
def lookup(
    bags: GroupedBags,
    num_rows: int,
    dim: int,
    *,
    threads: int,
    rounds: int,
    seed: int = 0,
    rewritten: GroupedBags | None = None,
    only: tuple[str, ...] = (),
    costs: LookupCosts | None = None,
) -> dict[str, Any]:
    """Time every entrant on every batch.

    Args:
        bags: Sums and batches.
        num_rows: Rows N of the table.
        dim: Dimension D, float32.
        threads: Threads of torch, of fbgemm and of our lookup.
        rounds: Timed rounds.
        seed: Of weights and of the order of the entrants.
        rewritten: Bags that rewriting alone is timed on; None: ``bags``.
        only: Names of the entrants to time (and ``embedding_bag``); empty: all.
        costs: Of this CPU, for what ``forward`` is; None: not known.

    Raises:
        GraceError: an entrant's result differs from that of ``F.embedding_bag``.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    table = make_table(bags, num_rows, dim)
    saved = _saved(bags, table)
    mode = chosen_mode(bags, num_rows, dim, saved, costs)
    entrants = make_entrants(bags, table, mode)
    if only:
        entrants = {k: run for k, run in entrants.items() if k in (*only, "embedding_bag")}
    check_equal(entrants, len(bags.batches), "embedding_bag", RELATIVE)
    if not only:
        int8 = make_int8(bags, table)
        check_equal(int8, len(bags.batches), "int8_stock", INT8_RELATIVE)
        entrants |= int8
    times = times_of(entrants, len(bags.batches), rounds, seed)
    alone = rewritten or bags
    if not only:
        times |= times_of(make_rewriting(alone), len(alone.batches), rounds, seed)
    per_id = {
        name: Samples(samples.values_R * 1e9 / _ids(alone if "rewrite" in name else bags))
        for name, samples in times.items()
    }
    result: dict[str, Any] = {
        "dim": dim,
        "rows": num_rows,
        "sums": bags.sums.num_sums,
        "batches": len(bags.batches),
        "ids_per_batch": _ids(bags) / len(bags.batches),
        "saved": saved,
        "threads": threads,
        "mode": mode,
        "ns_per_id": {name: spread(samples) for name, samples in per_id.items()},
        "ratios": ratios_of(times),
        "machine": machine(),
    }
    if not only:
        result |= {
            "rewrite_ns_per_id": {
                "raw": per_id["rewrite"].median,
                "ordered": per_id["rewrite_ordered"].median,
                "items": alone.sums.num_items,
            },
            **_subsets(times, per_id),
            "address_share": per_id["rewrite"].median / per_id["fused"].median,
            **hidden(bags, table.ahead, rounds),
        }
    return result


def ratios_of(times: dict[str, Samples]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each entrant of ours, the time of its rivals over its own, round by round."""
    return {
        name: {
            rival: spread(times[rival].over(times[MODULES.get((name, rival), name)]))
            for rival in rivals
            if rival in times
        }
        for name, rivals in RIVALS.items()
        if name in times
    }


def _subsets(times: dict[str, Samples], per_id: dict[str, Samples]) -> dict[str, Any]:
    """Return what a subset code costs beside ClusterCode, empty where nothing is stored."""
    if "subset_fused" not in times:
        return {}
    names = ("fused", "rewrite")
    return {
        "subset_ns_per_id": {name: per_id[f"subset_{name}"].median for name in names},
        "subset_over_cluster": {
            name: spread(times[f"subset_{name}"].over(times[name])) for name in names
        },
    }


def _saved(bags: GroupedBags, table: Any) -> float:
    """Return the share of row reads that the sums save in these batches."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    if not bags.sums.num_sums:
        return 0.0
    read = 0
    for ids, offsets in bags.batches:
        kjt = KeyedJaggedTensor(keys=["f"], values=ids, offsets=offsets)
        read += int(rewrite_one(kjt, {"": table.ahead}).modules[""].reads[0, 1])
    return 1 - read / _ids(bags)


def _ids(bags: GroupedBags) -> int:
    """Return the ids of all batches."""
    return sum(values.numel() for values, _ in bags.batches)


def check_equal(
    entrants: dict[str, Entrant], num_batches: int, truth: str, relative: float
) -> None:
    """Refuse to time anything that does not return what the entrant ``truth`` returns."""
    for k in range(min(num_batches, 3)):
        want = entrants[truth](k)
        bound = relative * float(want.abs().max())
        for name, run in entrants.items():
            error = float((run(k) - want).abs().max())
            if not error <= bound:  # a comparison that a NaN cannot pass
                raise GraceError(f"lookup: {name} differs from {truth} on batch {k}; not timed")


def times_of(
    entrants: dict[str, Entrant], num_batches: int, rounds: int, seed: int
) -> dict[str, Samples]:
    """Return the seconds each entrant takes for all batches, round by round, in random order."""
    rng = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {name: [] for name in entrants}
    for turn in range(-1, rounds):
        for name in rng.permutation(list(entrants)):
            run = entrants[name]
            start = time.perf_counter()
            for k in range(num_batches):
                run(k)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Samples(np.array(values)) for name, values in seconds.items()}


def spread(samples: Samples) -> dict[str, float]:
    """Return median, p10 and p90."""
    p10, p90 = np.quantile(samples.values_R, (0.1, 0.9))
    return {"median": samples.median, "p10": float(p10), "p90": float(p90)}


def of_trace(trace: Trace, batch: int) -> GroupedBags:
    """Return the held-out bags of a trace in batches, and our sums of its train bags."""
    split = split_bags(trace)
    best = picked(split, trace.num_items, "grace")
    sums = refit(best, split.fit, split.train, trace.num_items).sums
    batches = []
    for first in range(0, split.test.num_bags, batch):
        part = split.test.take(np.arange(first, min(first + batch, split.test.num_bags)))
        ids = torch.from_numpy(part.ids_L.astype(np.int64))
        batches.append((ids, torch.from_numpy(part.offsets_B1)))
    return GroupedBags(sums, batches)


def default_rows(dim: int) -> int:
    """Return the rows of a float32 table several times larger than the last cache."""
    return max(LEAST_ROWS, -(-CACHES * last_cache_bytes() // (4 * dim)))


def made_bags(rows: int, dim: int, pooling: int, batch: int, saved: float) -> GroupedBags:
    """Return as many batches as keep a row out of the caches until it is read again."""
    num_batches = BYTES_BETWEEN_VISITS // (batch * pooling * dim * 4)
    num_batches = min(max(LEAST_BATCHES, num_batches), MOST_BATCHES)
    return grouped_bags(rows, pooling, batch, saved, num_batches)


def run_cell(cell: Cell, rounds: int, costs: LookupCosts | None) -> dict[str, Any]:
    """Measure one cell of the grid: the module as its plan chooses, beside the stock collection."""
    if cell.trace is not None:
        trace = load_trace(Path(cell.trace), None, seed=0)
        bags, rows = of_trace(trace, cell.batch), trace.num_items
    else:
        rows = default_rows(cell.dim)
        bags = made_bags(rows, cell.dim, cell.pooling, cell.batch, cell.saved)
    only = ("stock_ebc", "in_line", "ahead", "forward")
    return lookup(bags, rows, cell.dim, threads=cell.threads, rounds=rounds, only=only, costs=costs)


@click.command(help=__doc__)
@click.option("--dim", type=click.IntRange(1), default=128, show_default=True)
@click.option("--pooling", type=click.IntRange(1), default=60, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True)
@click.option("--saved", type=click.FloatRange(0, 0.6), default=0.4, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rows", type=click.IntRange(64), default=None, help="Rows of the table.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Held-out bags of a trace (.npz) with our clusters instead; more than one with --grid.",
)
@click.option("--grid", is_flag=True, help="All shapes, 1 and 2 threads; resumes from --out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("results/lookup_grid.jsonl"),
    show_default=True,
    help="Where finished cells of the grid are kept.",
)
@click.option(
    "--memory",
    default="cpu",
    show_default=True,
    help="Whose costs `forward` is chosen by: cpu (not known), or a file of grace-torchrec calibrate.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    dim: int, pooling: int, batch: int, saved: float, threads: int, rows: int | None, rounds: int,
    traces: tuple[Path, ...], grid: bool, out: Path, memory: str, as_json: bool,
) -> None:  # fmt: skip
    """Parse, measure, print."""
    costs = memory_named(memory).lookup_costs
    if grid:
        found = run_grid(lambda cell: run_cell(cell, rounds, costs), traces, out)
        emit(found, as_json, "lookup grid")
        return
    if traces:
        trace = load_trace(traces[0], None, seed=0)
        bags, rows = of_trace(trace, batch), trace.num_items
        rewritten = None
    else:
        rows = rows or default_rows(dim)
        bags = made_bags(rows, dim, pooling, batch, saved)
        rewritten = made_bags(REWRITTEN_ITEMS, dim, pooling, batch, saved)
    result = lookup(
        bags, rows, dim, threads=threads, rounds=rounds, rewritten=rewritten, costs=costs
    )
    result["jit_s"] = jit_seconds(dim)
    emit(result, as_json, "lookup")
