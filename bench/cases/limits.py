"""limits: how far hot paths are from what memory allows, both measured in the same run.

Flow: bags with a known share of saved reads -> lookups and rewriting, a trace's bags -> pair counting;
each takes turns with the bare loops of :mod:`bench.bare_loops` over the very rows, codes and counters
that it uses.  ``distance`` is the product's time over the limit's of the same round, one thread.

- ``ahead``: one word of every cache line of the rows that it reads, asked for early (random gather);
  ``ahead_op`` is the same without the module, ``ahead_sums`` the rows added up, at known addresses.
  ``call_us``: what a call costs whose bags are empty, right after rows were gathered.
- ``fused``, the op without the module: that, and the codes of its ids with one increment for each of them.  ``fused_gather`` is
  its distance from the gather of rows alone.
- ``rewrite``: the code of every id and one increment for each; ``rewrite_codes``: the codes alone;
  ``split`` is the first of its two passes.
- ``pairs``: one increment for each two ids of a bag, of the counters that counting increments, their
  cache lines cleared and every edge written, where lines and edges are known before (``known``);
  ``pairs_increments``: the increments alone.
Without ``--rows`` a table has four times the bytes of the last cache.
Shapes: N rows, D dimension, L ids, P increments.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.bare_loops import (
    BAGS_A_STEP,
    COUNTERS_A_LINE,
    DISTANCES,
    count_known,
    increment_clusters,
    increment_partners,
    split_all,
    sum_known,
    touch_codes,
    touch_function,
    touched_lines,
)
from bench.cases.lookup import REWRITTEN_ITEMS, default_rows, made_bags, times_of
from bench.inputs import load_trace
from bench.lookup_entrants import (
    Entrant,
    Table,
    make_entrants,
    make_pooling,
    make_rewriting,
    make_table,
)
from bench.measure import machine
from bench.run import emit
from grace_kernels._merge import num_slots
from grace_kernels._places import table_of_row_ids
from grace_kernels._sum_rows import AHEAD, FLOAT32, sum_function
from grace_kernels.cpu import rewrite_counted
from grace_kernels.packed_codes import PackedCodes, pack_codes
from grace_kernels.reference import RAISE
from grace_torchrec.calibration.grouped_bags import GroupedBags
from grace_torchrec.grouping import _pair_core
from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.modules.rewrite_ahead import rewrite_one
from grace_torchrec.timing import Samples, interleave
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

MOST_INCREMENTS = 1 << 26  # of the items whose pairs are counted
EMPTY_BAGS, CALLS = 512, 60
Times = dict[str, Samples]


@torch.no_grad()
def lookup_limits(bags: GroupedBags, num_rows: int, dim: int, rounds: int) -> dict[str, Any]:
    """Return nanoseconds an id of fused and ahead lookups, of their limits, and distances."""
    torch.set_num_threads(1)
    table = make_table(bags, num_rows, dim)
    made = make_entrants(bags, table, "fused")
    entrants = {name: made[name] for name in ("fused", "ahead")}
    entrants["ahead_op"] = make_pooling(bags, table)
    weight, stored = table.ours.weight(0), table.ours.stored(0, "host")
    rewritten = [
        rewrite_counted(*_arrays(batch), None, table.codes, num_rows, RAISE)
        for batch in bags.batches
    ]
    rows = [_addresses(weight, stored, parts[1]) for parts in rewritten]
    padded = [np.append(of_batch, np.full(AHEAD, of_batch[-1])) for of_batch in rows]
    out = torch.empty(bags.batches[0][1].numel() - 1, dim)
    known = sum_function(dim, FLOAT32, False, True), out.data_ptr(), 4 * dim
    entrants["ahead_sums"] = _returning(
        lambda k: sum_known(known[0], padded[k], rewritten[k][2], *known[1:])
    )
    touch = touch_function(4 * dim)
    gathers = {
        f"gather {ahead}": _returning(lambda k, ahead=ahead: touch(rows[k], ahead))
        for ahead in DISTANCES
    }
    entrants |= gathers | {"increments": _increments(bags, table.codes)}
    times = times_of(entrants, len(bags.batches), rounds, seed=0)
    gather = min((times[name] for name in gathers), key=lambda samples: samples.median)
    both = Samples(gather.values_R + times["increments"].values_R)
    found = {
        "fused": times["fused"],
        "ahead": times["ahead"],
        "ahead_op": times["ahead_op"],
        "ahead_sums": times["ahead_sums"],
        "gather": gather,
        "gather_and_increments": both,
    }
    distances = {
        "ahead": times["ahead"].over(gather),
        "ahead_op": times["ahead_op"].over(gather),
        "ahead_sums": times["ahead_sums"].over(gather),
        "fused": times["fused"].over(both),
        "fused_gather": times["fused"].over(gather),
    }
    calls = call_costs(table, rows[0], CALLS)
    return _result(found, distances, _ids(bags)) | {"call_us": calls, "rows": num_rows, "dim": dim}


def call_costs(table: Table, rows: npt.NDArray[np.int64], rounds: int) -> dict[str, Any]:
    """Return microseconds of a call that has nothing to look up, right after rows were gathered.

    The gather has filled the second cache level, as one batch does before the next: a call finds
    its code and its objects further away than in a loop of calls.

    Args:
        table: Its forms are called with bags that are empty.
        rows: Addresses that are gathered before each call.
        rounds: Calls of each form.
    """
    lengths = torch.zeros(EMPTY_BAGS, dtype=torch.int64)
    bags = KeyedJaggedTensor(keys=["f"], values=lengths[:0], lengths=lengths)
    calls: dict[str, Callable[[], object]] = {
        "stock_ebc": lambda: table.stock(bags),
        "fused": lambda: table.ours(bags),
        "ahead": partial(table.ahead, rewrite_one(bags, {"": table.ahead})),
    }
    touch = touch_function(4 * table.stock.embedding_bag_configs()[0].embedding_dim)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name, call in calls.items():
            touch(rows, DISTANCES[-1])
            start = time.perf_counter()
            call()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Samples(np.array(values) * 1e6).summary() for name, values in seconds.items()}


def rewriting_limits(bags: GroupedBags, rounds: int) -> dict[str, Any]:
    """Return nanoseconds an id of rewriting, of its limits, and distances."""
    codes = pack_codes(bags.sums.code.item_code_N)
    made = make_rewriting(bags)
    entrants = {name: made[name] for name in ("rewrite", "rewrite_ordered")}
    padded = np.append(codes.codes_C, 0).astype(codes.codes_C.dtype)
    batches = [_arrays(batch) for batch in bags.batches]
    entrants |= {
        "codes": _returning(lambda k: touch_codes(batches[k][0], codes.words_W, padded)),
        "increments": _increments(bags, codes),
        "split": _returning(lambda k: split_all(*batches[k], table)),
    }
    table = table_of_row_ids(codes.num_items, codes, None)
    times = times_of(entrants, len(batches), rounds, seed=0)
    distances = {
        "split": times["split"].over(times["codes"]),
        "rewrite": times["rewrite"].over(times["increments"]),
        "rewrite_ordered": times["rewrite_ordered"].over(times["increments"]),
        "rewrite_codes": times["rewrite"].over(times["codes"]),
    }
    return _result(times, distances, _ids(bags)) | {"items": codes.num_items}


def pair_limits(trace: Trace, rounds: int) -> dict[str, Any]:
    """Return nanoseconds an increment of counting pairs, of its limits, and distances."""
    layers = layered_bags(trace)
    offsets, ids = layers.offsets_B1, layers.ids_L
    indptr, bags = _pair_core.bags_of_items(offsets, ids, layers.num_items)
    lengths = np.diff(offsets)
    events_N = np.bincount(ids, weights=np.repeat(lengths, lengths), minlength=layers.num_items)
    num = max(int(np.searchsorted(np.cumsum(events_N), MOST_INCREMENTS, side="right")), 1)
    num_increments = int(events_N[:num].sum())
    lines, edges, counts = np.empty((3, num_increments), np.int32)
    line_ends, degrees = np.empty((2, num), np.int64)
    counters = np.zeros((layers.num_items // COUNTERS_A_LINE + 1) * COUNTERS_A_LINE, np.int32)
    walked = offsets, ids, indptr, bags
    num_lines = touched_lines(*walked, lines, line_ends)
    used = _pair_core.count_pairs(*walked, 0, num, degrees, edges, counts)
    known = lines, line_ends, np.cumsum(degrees), counters, edges, counts
    entrants: dict[str, Callable[[], object]] = {
        "pairs": lambda: _pair_core.count_pairs(*walked, 0, num, degrees, edges, counts),
        "increments": lambda: increment_partners(*walked, num, counters),
        "known": lambda: count_known(*walked, *known),
    }
    times = interleave(entrants, rounds)
    distances = {
        "pairs": times["pairs"].over(times["known"]),
        "pairs_increments": times["pairs"].over(times["increments"]),
    }
    return _result(times, distances, num_increments) | {
        "items": num,
        "increments": num_increments,
        "lines": int(num_lines),
        "edges": int(used),
    }


def _increments(bags: GroupedBags, codes: PackedCodes) -> Entrant:
    """Return the loop over codes and counters, of a batch."""
    padded = np.append(codes.codes_C, 0).astype(codes.codes_C.dtype)
    batches = [_arrays(batch) for batch in bags.batches]
    longest = max(int(np.diff(offsets).max()) for _, offsets in batches)
    counters = np.zeros(num_slots(longest), np.int64)
    aside = np.empty(BAGS_A_STEP * longest + 1, np.int64)
    return _returning(
        lambda k: increment_clusters(*batches[k], codes.words_W, padded, counters, aside)
    )


def _returning(run: Callable[[int], Any]) -> Entrant:
    """Return an entrant that gives a tensor, as all do."""
    nothing = torch.empty(0)

    def entrant(k: int) -> torch.Tensor:
        """Run one batch."""
        run(k)
        return nothing

    return entrant


def _arrays(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, Any]:
    """Return ids and offsets of a batch."""
    return batch[0].numpy(), batch[1].numpy()


def _addresses(
    weight: torch.Tensor, stored: torch.Tensor, rows: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int64]:
    """Return where rows lie: below N in the table, from there on among the stored ones."""
    num_rows, row_bytes = weight.shape[0], weight.stride(0) * weight.element_size()
    plain = weight.data_ptr() + rows.astype(np.int64) * row_bytes
    return np.where(rows < num_rows, plain, stored.data_ptr() + (rows - num_rows) * row_bytes)


def _ids(bags: GroupedBags) -> int:
    """Return the ids of all batches."""
    return sum(ids.numel() for ids, _ in bags.batches)


def _result(times: Times, distances: Times, per: int) -> dict[str, Any]:
    """Return medians with their spread: nanoseconds for each of ``per`` things, and distances."""
    each = {name: Samples(samples.values_R * 1e9 / per) for name, samples in times.items()}
    return {
        "ns": {name: samples.summary() for name, samples in each.items()},
        "distance": {name: samples.summary() for name, samples in distances.items()},
    }


@click.command(help=__doc__)
@click.option("--dim", "dims", type=click.IntRange(4), multiple=True, default=(64, 128, 256), show_default=True)  # fmt: skip
@click.option("--rows", type=click.IntRange(64), default=None, help="Rows of the table.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--trace", type=click.Path(path_type=Path), help="A trace (.npz) whose pairs are counted.")  # fmt: skip
@click.option("--generate", "sizes", metavar="ITEMS,USERS", default="10000,12000", show_default=True, help="The same, generated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    dims: tuple[int, ...], rows: int | None, rounds: int, trace: Path | None, sizes: str, as_json: bool
) -> None:  # fmt: skip
    """Parse, measure, print."""
    result: dict[str, Any] = {}
    for dim in dims:
        num_rows = rows or default_rows(dim)
        bags = made_bags(num_rows, dim, pooling=60, batch=512, saved=0.4)
        result[f"lookup_{dim}"] = lookup_limits(bags, num_rows, dim, rounds)
    few = made_bags(REWRITTEN_ITEMS, 128, pooling=60, batch=512, saved=0.4)
    result["rewriting"] = rewriting_limits(few, rounds)
    read = load_trace(trace, None if trace else sizes, seed=0)
    result["pairs"] = pair_limits(split_bags(read).train, rounds)
    result["machine"] = machine()
    emit(result, as_json, "limits")
