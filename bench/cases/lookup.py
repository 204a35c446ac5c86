"""lookup: nanoseconds per requested id, stock and ours, from the raw ids that users have.

Flow: bags with a known share of saved reads (or a trace's held-out bags with our clusters) ->
every entrant is checked against ``F.embedding_bag`` -> entrants take turns in random order.
Ratios are stock over ours of the same round.  ``plain_gather`` is our gather without any sums:
what it gains is never the sums' doing.  ``fused_ordered`` gets each bag in order of cluster code.
Shapes: N rows, D dimension, B bags of a batch, P ids per bag, R rounds.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bench.grouped_bags import GroupedBags, grouped_bags
from bench.inputs import load_trace
from bench.measure import machine
from bench.planned import plan_of
from bench.run import emit
from grace_kernels import cpu
from grace_kernels.reference import RAISE
from grace_torchrec.errors import GraceError
from grace_torchrec.grouping import paper_greedy
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.plans.table_spec import table_specs
from grace_torchrec.timing import Samples
from grace_torchrec.traces.split import split_bags
from grace_torchrec.traces.trace import Trace

NUM_ROWS = 1_000_000
BYTES_BETWEEN_VISITS = 1 << 30  # rows read before a batch comes back: far beyond the L3 cache
RELATIVE = 1e-5
NO_CODE, NO_HOT = np.zeros(0, np.int32), np.zeros(0, np.int32)
# entrant -> the stock entrants it is compared with
RIVALS = {
    "fused": ("embedding_bag", "stock_ebc", "tbe"),
    "fused_ordered": ("embedding_bag",),
    "plain_gather": ("embedding_bag",),
    "forward": ("stock_ebc",),
}
Entrant = Callable[[int], Tensor]


@torch.no_grad()
def lookup(
    bags: GroupedBags, num_rows: int, dim: int, *, threads: int, rounds: int, seed: int = 0
) -> dict[str, Any]:
    """Time every entrant on every batch.

    Args:
        bags: Sums and batches.
        num_rows: Rows N of the table.
        dim: Dimension D, float32.
        threads: Threads of torch, of fbgemm and of our lookup.
        rounds: Timed rounds.
        seed: Of weights and of the order of the entrants.

    Raises:
        GraceError: an entrant's result differs from that of ``F.embedding_bag``.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    stock, ours = _collections(bags, num_rows, dim)
    entrants = _entrants(bags, stock, ours)
    _check_equal(entrants, len(bags.batches))
    times = _times(entrants, len(bags.batches), rounds, seed)
    ids = sum(values.numel() for values, _ in bags.batches)
    saved = 1 - sum(_rewritten(bags, k)[1].size for k in range(len(bags.batches))) / ids
    per_id = {name: Samples(samples.values_R * 1e9 / ids) for name, samples in times.items()}
    return {
        "dim": dim,
        "rows": num_rows,
        "sums": bags.sums.num_sums,
        "batches": len(bags.batches),
        "ids_per_batch": ids / len(bags.batches),
        "saved": saved,
        "threads": threads,
        "ns_per_id": {name: _spread(samples) for name, samples in per_id.items()},
        "ratios": {
            name: {rival: _spread(times[rival].over(times[name])) for rival in rivals}
            for name, rivals in RIVALS.items()
        },
        "rewrite_ns_per_id": {
            "raw": per_id["rewrite"].median,
            "ordered": per_id["rewrite_ordered"].median,
        },
        "address_share": per_id["rewrite"].median / per_id["fused"].median,
        "machine": machine(),
    }


def _collections(
    bags: GroupedBags, num_rows: int, dim: int
) -> tuple[EmbeddingBagCollection, GraceEmbeddingBagCollection]:
    """Return the stock collection and ours over the same table."""
    config = EmbeddingBagConfig(
        name="t", embedding_dim=dim, num_embeddings=num_rows, feature_names=["f"]
    )
    stock = EmbeddingBagCollection(tables=[config]).eval()
    spec = table_specs(torch.nn.Sequential(stock))[0]
    return stock, GraceEmbeddingBagCollection(stock, {"t": plan_of(spec, bags.sums)})


def _entrants(
    bags: GroupedBags, stock: EmbeddingBagCollection, ours: GraceEmbeddingBagCollection
) -> dict[str, Entrant]:
    """Return what is timed, each a function of the number of a batch."""
    weight, stored = ours.weight(0).detach(), ours.stored(0, "host").detach()
    code = bags.sums.code.item_code_N
    kjts = [
        KeyedJaggedTensor(keys=["f"], values=ids, lengths=offsets.diff(), offsets=offsets)
        for ids, offsets in bags.batches
    ]
    ordered = [(_in_code_order(ids, offsets, code), offsets) for ids, offsets in bags.batches]
    ids_of = {False: bags.batches, True: ordered}

    def fused(table: cpu.TableRows, in_order: bool) -> Entrant:
        """Look raw ids up with our kernel, without the module around it."""

        def run(k: int) -> Tensor:
            ids, offsets = ids_of[in_order][k]
            out = torch.empty(offsets.numel() - 1, weight.shape[1])
            cpu.pooled_lookup(
                ids.numpy(), offsets.numpy(), None, table, out.numpy(),
                mean=False, policy=RAISE, num_threads=torch.get_num_threads(),
            )  # fmt: skip
            return out

        return run

    with_sums = cpu.TableRows(weight.numpy(), stored[:0].numpy(), stored.numpy(), code, NO_HOT, 0)
    plain = cpu.TableRows(
        weight.numpy(), stored[:0].numpy(), stored[:0].numpy(), NO_CODE, NO_HOT, 0
    )
    return {
        "embedding_bag": lambda k: F.embedding_bag(
            bags.batches[k][0], weight, bags.batches[k][1], mode="sum", include_last_offset=True
        ),
        "stock_ebc": lambda k: stock(kjts[k]).values(),
        "tbe": _table_batch(weight, bags),
        "plain_gather": fused(plain, False),
        "fused": fused(with_sums, False),
        "fused_ordered": fused(with_sums, True),
        "forward": lambda k: ours(kjts[k]).values(),
        "rewrite": lambda k: _rewrite(bags.batches[k], code),
        "rewrite_ordered": lambda k: _rewrite(ordered[k], code),
    }


def _table_batch(weight: Tensor, bags: GroupedBags) -> Entrant:
    """Return fbgemm's table batch on the CPU, float32."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(weight.shape[0], weight.shape[1], EmbeddingLocation.HOST, ComputeDevice.CPU)]
    )
    tables.split_embedding_weights()[0].copy_(weight)
    return lambda k: tables(*bags.batches[k])


def _rewrite(batch: tuple[Tensor, Tensor], code: Any) -> Tensor:
    """Rewrite one batch and drop the result."""
    cpu.rewrite_counted(batch[0].numpy(), batch[1].numpy(), None, code, code.size, RAISE)
    return torch.empty(0)


def _rewritten(bags: GroupedBags, k: int) -> Any:
    """Return ids asked for, rows, offsets and weights of a rewritten batch."""
    ids, offsets = bags.batches[k]
    code = bags.sums.code.item_code_N
    return cpu.rewrite_counted(ids.numpy(), offsets.numpy(), None, code, code.size, RAISE)


def _in_code_order(ids: Tensor, offsets: Tensor, code: Any) -> Tensor:
    """Return the ids of each bag in order of cluster code."""
    bag = np.repeat(np.arange(offsets.numel() - 1), offsets.diff().numpy())
    order = np.lexsort((code[ids.numpy()], bag))
    return ids[torch.from_numpy(order)]


def _check_equal(entrants: dict[str, Entrant], num_batches: int) -> None:
    """Refuse to time anything that does not return what ``F.embedding_bag`` returns."""
    for k in range(min(num_batches, 3)):
        want = entrants["embedding_bag"](k)
        for name, run in entrants.items():
            got = run(k)
            if not got.numel():
                continue  # rewriting alone returns no sums
            error, bound = float((got - want).abs().max()), RELATIVE * float(want.abs().max())
            if not error <= bound:  # a comparison that a NaN cannot pass
                raise GraceError(
                    f"lookup: {name} differs from embedding_bag on batch {k}; not timed"
                )


def _times(
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


def _spread(samples: Samples) -> dict[str, float]:
    """Return median, p10 and p90."""
    p10, p90 = np.quantile(samples.values_R, (0.1, 0.9))
    return {"median": samples.median, "p10": float(p10), "p90": float(p90)}


def _of_trace(trace: Trace, batch: int) -> GroupedBags:
    """Return the held-out bags of a trace in batches, and our sums of its train bags."""
    split = split_bags(trace)
    picked = paper_greedy.fit_validated(split.fit, split.validation, split.train, trace.num_items)
    batches = []
    for first in range(0, split.test.num_bags, batch):
        part = split.test.take(np.arange(first, min(first + batch, split.test.num_bags)))
        ids = torch.from_numpy(part.ids_L.astype(np.int64))
        batches.append((ids, torch.from_numpy(part.offsets_B1)))
    return GroupedBags(picked.sums, batches)


@click.command(help=__doc__)
@click.option("--dim", type=click.IntRange(1), default=128, show_default=True)
@click.option("--pooling", type=click.IntRange(1), default=60, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=512, show_default=True)
@click.option("--saved", type=click.FloatRange(0, 0.6), default=0.4, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rows", type=click.IntRange(64), default=NUM_ROWS, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    help="Held-out bags of a trace (.npz) with our clusters instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    dim: int, pooling: int, batch: int, saved: float, threads: int, rows: int, rounds: int,
    trace_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Parse, measure, print."""
    if trace_file is not None:
        trace = load_trace(trace_file, None, seed=0)
        bags, rows = _of_trace(trace, batch), trace.num_items
    else:
        num_batches = max(4, BYTES_BETWEEN_VISITS // (batch * pooling * dim * 4))
        bags = grouped_bags(rows, pooling, batch, saved, min(num_batches, 64))
    result = lookup(bags, rows, dim, threads=threads, rounds=rounds)
    emit(result, as_json, "lookup")
